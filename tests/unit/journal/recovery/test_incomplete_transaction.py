"""Incomplete transactions at the end of a log: quarantined bytes and the recovery report."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from tests.helpers.staged_files import stage
from tests.unit.journal.written import Written, next_offset
from tickertape.batch import MessageBatch, batch_from_bodies
from tickertape.journal.format.identity import IDENTITY_FILE, read_identity
from tickertape.journal.format.segment import QUARANTINE_DIRECTORY, segment_path
from tickertape.journal.format.staging_file import (
    STAGING_DIRECTORY,
    StagedFiles,
    StagedPartLabel,
    StageDrop,
    StageOpen,
    prepared_path_of,
)
from tickertape.journal.recovery import recovery as unfinished_module
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.testing.disk import StrictDisk

COUNTS = (4, 5, 6, 1)
JOBS = 3
TORN = b"remains of the next commit"


def unfinished(*, staged: bool, torn: bool = False) -> tuple[Written, int, bytes]:
    """Return a server killed during a transaction, the offset of the transaction, and its bytes."""
    written = Written(segment_bytes=1 << 16)
    written.publish()
    active = written.journal.commits.active
    assert active is not None
    begin = active.offset
    written.transact(*COUNTS, jobs=JOBS, staged=staged)
    end = next_offset(written)
    handle = written.disk.open(segment_path(1))
    if torn:
        written.disk.write(handle, end, [TORN])
    written.disk.sync(handle)
    written.disk.close(handle)
    return written, begin, written.disk.contents()[segment_path(1)][begin:end]


def blocks_of(disk: StrictDisk) -> list[MessageBatch]:
    """Return the batches staged in file 1 and drop the file."""
    staging = StagedFiles(disk)
    batches = [MessageBatch.parse(bytes(block)) for block in staging.run(StageOpen(1))]
    staging.run(StageDrop(1))
    return batches


def recovered(written: Written) -> tuple[dict[str, bytes], list[str]]:
    """Return quarantined files and the report of the next start."""
    disk = written.disk.kill_clone()
    report = recover_journal(disk, bytes(range(16))).report
    contents = disk.contents()
    return {name: contents[name] for name in contents if name.startswith(QUARANTINE_DIRECTORY)}, report


def test_recovery_copies_a_chain_that_is_not_staged() -> None:
    written, begin, chain = unfinished(staged=False)
    aside, report = recovered(written)
    assert aside == {f"{QUARANTINE_DIRECTORY}/0000000001-{begin}.tail": chain}
    assert report[:1] == [
        (
            f"segment 1: the transaction at offset {begin} has no end and was cut off. {len(chain)} bytes "
            f"at offset {begin} were moved to quarantine/"
        )
    ]


def test_recovery_copies_an_unstaged_chain_and_the_bytes_behind() -> None:
    written, begin, chain = unfinished(staged=False, torn=True)
    aside, _ = recovered(written)
    assert aside == {f"{QUARANTINE_DIRECTORY}/0000000001-{begin}.tail": chain + TORN}


def test_recovery_copies_no_chain_that_is_staged() -> None:
    written, begin, _ = unfinished(staged=True)
    aside, report = recovered(written)
    assert aside == {}
    assert report[:1] == [
        (
            f"segment 1: the transaction at offset {begin} has no end and was cut off. Its messages are "
            "still in transactions/"
        )
    ]


def test_recovery_copies_only_the_bytes_behind_a_staged_chain() -> None:
    written, begin, chain = unfinished(staged=True, torn=True)
    aside, report = recovered(written)
    end = begin + len(chain)
    assert aside == {f"{QUARANTINE_DIRECTORY}/0000000001-{end}.tail": TORN}
    assert report[:1] == [
        (
            f"segment 1: the transaction at offset {begin} has no end and was cut off. Its messages are "
            f"still in transactions/. {len(TORN)} bytes at offset {end} were moved to quarantine/"
        )
    ]


def damage_block(disk: StrictDisk) -> None:
    """Flip a bit in the last block, which the chain has not reached."""
    handle = disk.open(prepared_path_of(1))
    at = disk.size(handle) - 60
    disk.write(handle, at, [bytes([disk.read(handle, at, 1)[0] ^ 1])])
    disk.close(handle)


def cut_foot(disk: StrictDisk) -> None:
    handle = disk.open(prepared_path_of(1))
    disk.truncate(handle, disk.size(handle) - 1)
    disk.close(handle)


def other_messages(disk: StrictDisk) -> None:
    """A transaction of the same shape."""
    staging = StagedFiles(disk)
    staging.run(StageDrop(1))
    label = StagedPartLabel(journal=bytes(range(16)), publisher="p", space="", name="1", part="0")
    stage(staging, 2, label, [batch_from_bodies("orders", [bytes(100)] * count) for count in COUNTS])


def other_journal(disk: StrictDisk) -> None:
    """The same messages, of another journal."""
    label = StagedPartLabel(journal=bytes(16), publisher="p", space="", name="1", part="0")
    stage(StagedFiles(disk), 2, label, blocks_of(disk))


@pytest.mark.parametrize("damage", [damage_block, cut_foot, other_messages, other_journal])
def test_recovery_copies_a_chain_with_an_uncommittable_staged_part(
    damage: Callable[[StrictDisk], None],
) -> None:
    written, begin, chain = unfinished(staged=True)
    damage(written.disk)
    aside, _ = recovered(written)
    assert aside == {f"{QUARANTINE_DIRECTORY}/0000000001-{begin}.tail": chain}


def test_recovery_finds_a_chain_in_several_parts_beside_foreign_files() -> None:
    written, _, _ = unfinished(staged=True)
    disk = written.disk
    batches = blocks_of(disk)
    for number, part in enumerate((batches[2:], batches[:2]), 5):
        label = StagedPartLabel(journal=bytes(range(16)), publisher="p", space="", name="1", part=str(number))
        stage(StagedFiles(disk), number, label, part)
    disk.close(disk.open(f"{STAGING_DIRECTORY}/notes.txt", create=True))
    assert recovered(written)[0] == {}


@pytest.mark.parametrize("publisher", ["p", "q"])
def test_recovery_checks_staged_parts_of_the_same_publisher_only(
    publisher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        unfinished_module,
        "derived_publisher_id",
        lambda name, instance: {("p", "here"): 9}.get((name, instance)),
    )
    written, _, _ = unfinished(staged=True)
    disk = written.disk
    label = StagedPartLabel(journal=bytes(range(16)), publisher=publisher, space="", name="1", part="0")
    stage(StagedFiles(disk), 2, label, blocks_of(disk))
    identity = msgspec.structs.replace(read_identity(disk), instance="here")
    handle = disk.open(IDENTITY_FILE)
    disk.truncate(handle, 0)
    disk.write(handle, 0, [msgspec.json.encode(identity)])
    disk.close(handle)
    assert bool(recovered(written)[0]) is (publisher == "q")


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("operation", ["write", "sync", "sync_directory", "rename", "truncate", "open"])
def test_interrupted_recovery_of_a_chain_loses_no_bytes(operation: str, staged: bool) -> None:
    written, _begin, chain = unfinished(staged=staged, torn=True)
    whole = chain + TORN
    for nth in range(1, 40):
        disk = written.disk.kill_clone()
        disk.fail(operation, nth, errno.EIO)
        try:
            recover_journal(disk, bytes(range(16)))
        except OSError:
            pass
        else:
            break
        disk = disk.crash_clone(Random(nth))
        report = recover_journal(disk, bytes(range(16))).report
        contents = disk.contents()
        aside = [data for name, data in contents.items() if name.startswith(QUARANTINE_DIRECTORY)]
        wanted = TORN if staged else whole
        assert any(wanted in data for data in aside), (nth, report)
    else:
        pytest.fail("the fault did not happen")
    assert nth > 1
