"""Staging files: bytes of docs/formats/staging.md, every kind of damage, and recovery at a start."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import struct
import subprocess
import sys
from pathlib import Path
from random import Random
from unittest.mock import patch

import msgspec
import pytest
from crc32c import crc32c

from tests.helpers.staged_files import GOLDEN_PART, JOURNAL_ID, LABEL, batches, golden_bytes, stage
from tests.simulation.journal_world import FailingDisk, PowerLost
from tickertape.batch import MessageBatch
from tickertape.journal.format import staging_file as staging_module
from tickertape.journal.format.segment import QUARANTINE_DIRECTORY
from tickertape.journal.format.staging_file import (
    STAGING_DIRECTORY,
    PreparedPart,
    StagedFileDamaged,
    StagedFiles,
    StageDrop,
    StageOpen,
    StagePrepare,
    StageWrite,
    blocks_of,
    encode_foot,
    encode_label,
    find_staged,
    path_of,
    prepared_path_of,
)
from tickertape.testing.disk import StrictDisk


@pytest.fixture
def disk() -> StrictDisk:
    return StrictDisk(Random(1))


def put(disk: StrictDisk, path: str, data: bytes) -> None:
    if STAGING_DIRECTORY not in disk.names("."):
        disk.make_directory(STAGING_DIRECTORY)
    handle = disk.open(path, create=True)
    disk.write(handle, 0, [data])
    disk.sync(handle)
    disk.close(handle)
    disk.sync_directory(STAGING_DIRECTORY)
    disk.sync_directory(".")


def test_written_staging_file_equals_the_golden_file() -> None:
    assert golden_bytes() == GOLDEN_PART.read_bytes()


def test_golden_staging_file_matches_the_documented_layout() -> None:
    data = GOLDEN_PART.read_bytes()
    magic, version, size, body_crc, crc = struct.unpack_from("<8sIIII", data)
    assert (magic, version, crc32c(data[:20])) == (b"TKTSTG\0\0", 0, crc)
    body = data[24 : 24 + size]
    assert crc32c(body) == body_crc
    fields = {"journal": JOURNAL_ID, "publisher": "billing", "space": "nightly", "name": "7", "part": "0"}
    assert msgspec.msgpack.decode(body) == fields
    at = 24 + size + -(24 + size) % 8
    for batch in batches():
        assert struct.unpack_from("<IIII", data, at) == (
            *(0x42545354, batch.count, batch.nbytes, crc32c(batch.encode())),
        )
        assert data[at + 16 : at + 16 + batch.nbytes] == batch.encode()
        at += 16 + batch.nbytes
    assert struct.unpack_from("<8sQQI", data, at) == (b"TKTPREP\0", at, 3, 2)
    assert struct.unpack_from("<I", data, at + 28) == (crc32c(data[at : at + 28]),)
    assert len(data) == at + 32


def test_staged_batches_read_back_and_are_removed_on_drop(disk: StrictDisk) -> None:
    staging = StagedFiles(disk)
    stage(staging, 5, LABEL, batches())
    found = [MessageBatch.parse(block) for block in staging.run(StageOpen(5))]
    assert [batch.encode() for batch in found] == [batch.encode() for batch in batches()]
    staging.run(StageDrop(5))
    assert disk.names(STAGING_DIRECTORY) == []
    assert [batch.body(0) for batch in found] == [b'{"id":1}', b'{"of":1}'], (
        "returned blocks remain readable after the removal"
    )
    staging.run(StageDrop(5))  # as after a failed first write


def test_prepared_parts_survive_power_loss_and_unprepared_ones_are_removed(disk: StrictDisk) -> None:
    staging = StagedFiles(disk)
    offset = stage(staging, 1, LABEL, batches())
    stage(staging, 2, LABEL, batches(), prepare=False)
    for seed in range(30):
        after = disk.crash_clone(Random(seed))
        found, report = find_staged(after, JOURNAL_ID)
        assert found == [PreparedPart(1, LABEL, 3, offset + 32, 2)]
        assert report == []
        assert after.names(STAGING_DIRECTORY) == [Path(prepared_path_of(1)).name]
        assert len(StagedFiles(after).run(StageOpen(1))) == 2


def test_failed_read_of_a_staging_file_raises_on_open(disk: StrictDisk) -> None:
    stage(StagedFiles(disk), 1, LABEL, batches())
    before = disk.calls["read"]
    StagedFiles(disk).run(StageOpen(1))
    reads = disk.calls["read"] - before
    assert reads >= 4
    for memory in (256 << 20, 0):
        for nth in range(1, reads + 1):
            disk.fail("read", nth, errno.EIO)
            with (
                patch.object(staging_module, "staged_memory_bytes_max", memory),
                pytest.raises(OSError, match="Input/output"),
            ):
                StagedFiles(disk).run(StageOpen(1))
            assert disk.faults_left == 0


def test_staged_parts_above_the_memory_limit_are_mapped_until_memory_is_released(
    disk: StrictDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[int] = []
    whole = disk.map

    def counted(handle: int) -> memoryview:
        mapped.append(handle)
        return whole(handle)

    monkeypatch.setattr(disk, "map", counted)
    monkeypatch.setattr(staging_module, "staged_memory_bytes_max", len(golden_bytes()) + 100)
    staging = StagedFiles(disk)
    wanted = [batch.encode() for batch in batches()]
    for file in (1, 2, 3):
        stage(staging, file, LABEL, batches())
    first = staging.run(StageOpen(1))
    for block in first:
        assert block.readonly
    assert not mapped
    second = staging.run(StageOpen(2))
    assert len(mapped) == 1
    assert [bytes(block) for block in first] == [bytes(block) for block in second] == wanted
    parsed = [MessageBatch.parse(block) for block in first]
    del first, block
    gc.collect()
    staging.run(StageOpen(3))
    assert len(mapped) == 2, "the batches still hold the memory"
    del parsed
    gc.collect()
    staging.run(StageOpen(3))
    assert len(mapped) == 2


_CUT_AFTERWARDS = """
import os, sys
from pathlib import Path
from tests.helpers.staged_files import LABEL, batches, stage
from tickertape.journal.disk import SystemDisk
from tickertape.journal.format.staging_file import StageOpen, StagedFiles, prepared_path_of
disk = SystemDisk(sys.argv[1])
staging = StagedFiles(disk)
stage(staging, 1, LABEL, batches())
blocks = staging.run(StageOpen(1))
os.truncate(Path(sys.argv[1], prepared_path_of(1)), 0)
assert [bytes(block) for block in blocks] == [batch.encode() for batch in batches()]
"""


def test_opened_staged_blocks_do_not_depend_on_the_file(tmp_path: Path) -> None:
    """Access to a missing page of a mapped file would end the process with a signal."""
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _CUT_AFTERWARDS, str(tmp_path)], env=paths, check=False)
    assert done.returncode == 0


def test_empty_disk_has_no_staged_files(disk: StrictDisk) -> None:
    assert find_staged(disk, JOURNAL_ID) == ([], [])


def test_flipped_bit_in_a_staging_file_is_detected(disk: StrictDisk) -> None:
    good = golden_bytes()
    for at in range(len(good)):
        data = bytearray(good)
        data[at] ^= 1 << at % 8
        with pytest.raises(StagedFileDamaged):
            blocks_of(memoryview(bytes(data)))


def test_truncated_staging_file_is_removed_as_unprepared(disk: StrictDisk) -> None:
    good = golden_bytes()
    for size in range(len(good)):
        path = path_of(size + 1)
        put(disk, path, good[:size])
        assert find_staged(disk, JOURNAL_ID) == ([], [])
        assert disk.names(STAGING_DIRECTORY) == []
        with pytest.raises(StagedFileDamaged):
            blocks_of(memoryview(good[:size]))


def relabelled(**changes: object) -> bytes:
    """Return the golden file with another label and an adjusted foot."""
    label = encode_label(msgspec.structs.replace(LABEL, **changes))
    blocks = golden_bytes()[len(encode_label(LABEL)) : -32]
    return label + blocks + encode_foot(len(label) + len(blocks), 3, 2)


def versioned(version: int) -> bytes:
    data = bytearray(golden_bytes())
    data[8:12] = version.to_bytes(4, "little")
    data[20:24] = crc32c(bytes(data[:20])).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (relabelled(journal=bytes(16)), "it belongs to another journal"),
        (versioned(1), "it has the format version 1"),
        (versioned(1) + b"another foot", "it has the format version 1"),
        (b"X" + golden_bytes()[1:], "it does not start like a staging file"),
        (golden_bytes()[:30] + b"X" + golden_bytes()[31:], "its label does not match its checksum"),
        (encode_foot(0, 0, 0), "it does not start like a staging file"),
    ],
)
def test_unusable_prepared_file_is_quarantined_and_reported(
    disk: StrictDisk, data: bytes, cause: str
) -> None:
    put(disk, path_of(9), data)
    put(disk, path_of(10), golden_bytes())
    found, report = find_staged(disk, JOURNAL_ID)
    assert [prepared.file for prepared in found] == [10]
    aside = f"{QUARANTINE_DIRECTORY}/{9:020d}-0.part"
    assert report == [f"{path_of(9)}: {cause}. Moved to {aside}. It cannot be committed."]
    for seed in range(10):
        after = disk.crash_clone(Random(seed)).contents()
        assert after[aside] == data
        assert prepared_path_of(10) in after
    put(disk, path_of(9), data)
    find_staged(disk, JOURNAL_ID)
    assert len(disk.names(QUARANTINE_DIRECTORY)) == 2, "no file overwrites another"
    assert disk.names(STAGING_DIRECTORY) == [Path(prepared_path_of(10)).name]


def ends() -> list[bytes]:
    """Return prepared parts with a damaged end."""
    good = golden_bytes()
    damaged = [good[:size] for size in range(len(good))]
    damaged += [
        good + b"\0",
        good + good[:8],
        good[:-32] + bytes(32),
        good[:-40] + bytes(40),
        bytes(len(good)),
    ]
    for at in range(len(good) - 32, len(good), 3):
        damaged.append(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
    return damaged


def test_prepared_part_with_a_damaged_end_is_quarantined(disk: StrictDisk) -> None:
    for file, data in enumerate(ends()):
        put(disk, prepared_path_of(file), data)
    found, report = find_staged(disk, JOURNAL_ID)
    assert found == []
    assert disk.names(STAGING_DIRECTORY) == []
    assert len(report) == len(ends())
    for file, (data, line) in enumerate(zip(ends(), report, strict=True)):
        aside = f"{QUARANTINE_DIRECTORY}/{file:020d}-0.part"
        cause = "it was prepared, but its end is missing"
        assert line == f"{prepared_path_of(file)}: {cause}. Moved to {aside}. It cannot be committed."
        for seed in range(2):
            assert disk.crash_clone(Random(seed)).contents()[aside] == data


def test_acknowledged_prepared_part_keeps_the_prepared_name_after_power_loss(disk: StrictDisk) -> None:
    """Power is lost before each operation. A start renames parts prepared by an earlier version."""
    for operations in range(20):
        fresh = StrictDisk(Random(operations))
        with contextlib.suppress(PowerLost):
            stage(StagedFiles(FailingDisk(fresh, operations)), 1, LABEL, batches())
            assert operations > 8, "the client was notified"
            for seed in range(10):
                names = fresh.crash_clone(Random(seed)).names(STAGING_DIRECTORY)
                assert names == [Path(prepared_path_of(1)).name]
        for seed in range(10):
            after = fresh.crash_clone(Random(seed))
            found, report = find_staged(after, JOURNAL_ID)
            assert report == [], "no valid file is reported as damaged"
            if found:
                assert after.names(STAGING_DIRECTORY) == [Path(prepared_path_of(1)).name]
                assert len(StagedFiles(after).run(StageOpen(1))) == 2
    put(disk, path_of(3), golden_bytes())
    assert len(find_staged(disk, JOURNAL_ID)[0]) == 1
    assert disk.names(STAGING_DIRECTORY) == [Path(prepared_path_of(3)).name]


def test_find_staged_ignores_and_reports_unknown_files(disk: StrictDisk) -> None:
    names = ["1.part", "0" * 20 + ".part.new", "readme"]
    for name in names:
        put(disk, f"{STAGING_DIRECTORY}/{name}", golden_bytes())
    found, report = find_staged(disk, JOURNAL_ID)
    assert found == []
    assert sorted(report) == sorted(f"{STAGING_DIRECTORY}/{n}: not a staging file, ignored" for n in names)
    assert sorted(disk.names(STAGING_DIRECTORY)) == sorted(names)


@pytest.mark.parametrize(("messages", "blocks"), [(2, 2), (3, 1), (3, 3)])
def test_staging_file_with_wrong_counts_in_the_foot_is_damaged(messages: int, blocks: int) -> None:
    data = golden_bytes()[:-32]
    with pytest.raises(StagedFileDamaged, match=f"it does not hold {messages} messages in {blocks} blocks"):
        blocks_of(memoryview(data + encode_foot(len(data), messages, blocks)))


def test_closed_staged_files_hold_no_open_handles(disk: StrictDisk) -> None:
    staging = StagedFiles(disk)
    stage(staging, 1, LABEL, batches(), prepare=False)
    assert len(disk._handles) == 1
    staging.close()
    assert len(disk._handles) == 0


def test_open_staging_files_are_limited_while_many_are_written(
    disk: StrictDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "staging_files_open_max", 3)
    staging = StagedFiles(disk)
    begin = len(encode_label(LABEL))
    offsets = dict.fromkeys(range(1, 9), 0)
    for batch in batches():
        for file, offset in offsets.items():
            label = None if offset else LABEL
            staging.run(StageWrite(file, offset, label, batch.count, list(batch.buffers())))
            offsets[file] = (offset or begin) + 16 + batch.nbytes
            assert len(disk._handles) <= 3
    for file, offset in offsets.items():
        staging.run(StagePrepare(file, offset, 3, 2))
    assert len(disk._handles) == 0
    for file in offsets:
        assert [bytes(block) for block in staging.run(StageOpen(file))] == [b.encode() for b in batches()]
