"""Manifest, base and delta files of SOW topics: golden files, all kinds of damage, and refusals.

`TICKERTAPE_GOLDEN=write` regenerates the golden files.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
import pytest
from crc32c import crc32c

from tests.helpers.state_files import (
    BASE_BLOCKS,
    BLOCK_HEAD,
    DELTA_BLOCKS,
    DIRECTORY,
    FINGERPRINT,
    GOLDEN,
    JOURNAL_ID,
    STAMP,
    TOPIC,
    TRAILER,
    Block,
    Row,
    base_entry,
    block_of,
    block_places,
    checkpoint,
    dead_keys_of,
    delta_entry,
    keys_of,
    manifest_of,
    matching,
    mended_manifest,
    mended_state_file,
    rows_of,
    state_file,
    written,
)
from tickertape.base.errors import JournalCorrupt, JournalVersion
from tickertape.base.limits import message_bytes_max
from tickertape.batch.format import Labels
from tickertape.journal.format import sow_blocks, sow_checkpoint
from tickertape.journal.format.sow_blocks import DeadKeys, RecordBlock, key_column, key_list
from tickertape.journal.format.sow_checkpoint import (
    StateFile,
    StateFileEntry,
    StateFileName,
    StateFileWriter,
    StateManifest,
    base_name,
    decode_manifest,
    delta_name,
    encode_manifest,
    manifest_checksum,
    parse_file_name,
    read_file,
    state_directory,
    state_path,
)
from tickertape.journal.limits import (
    sow_file_block_bytes_max,
    sow_file_key_bytes_max,
    sow_files_max,
    sow_fingerprint_bytes_max,
    sow_manifest_bytes_max,
)

replace = msgspec.structs.replace
SMALL = checkpoint()
MANIFEST = encode_manifest(SMALL.manifest)
BASE, DELTA = SMALL.manifest.files


def read(data: bytes, entry: StateFileEntry, manifest: StateManifest = SMALL.manifest) -> list[Block]:
    return list(read_file(data, manifest, entry))


def plain(block: Block) -> list[Any]:
    return rows_of(block) if isinstance(block, RecordBlock) else keys_of(block)


def refused(data: bytes, entry: StateFileEntry, cause: str = "Cannot read") -> JournalCorrupt:
    """Read a file that is refused, and return the error."""
    with pytest.raises(JournalCorrupt, match=cause) as caught:
        read(data, entry)
    assert str(caught.value).startswith(f"Cannot read '{state_path(TOPIC, entry.name)}'")
    assert str(caught.value).endswith(". Restore sow/ from the backup, or start with --rebuild-sow NAME.")
    return caught.value


def read_mended(data: bytes, entry: StateFileEntry) -> list[Block]:
    """Read a changed file with correct checksums."""
    mended = mended_state_file(data)
    return read(mended, matching(entry, mended))


# -- names --------------------------------------------------------------------------------------------


def test_state_directory_is_the_hash_of_the_topic_in_hexadecimal_digits() -> None:
    assert state_directory(TOPIC) == blake2b(b"orders", digest_size=16).hexdigest()
    assert len(state_directory("Ü")) == 32
    assert state_path(TOPIC, "manifest") == f"sow/{DIRECTORY}/manifest"


def test_state_file_names_have_zero_padded_positions() -> None:
    assert base_name(7) == "base-00000000000000000007.sow"
    assert delta_name(7, 2**63 - 1) == "delta-00000000000000000007-09223372036854775807.sow"
    assert parse_file_name(base_name(7)) == StateFileName(None, 7)
    assert parse_file_name(base_name(0)) == StateFileName(None, 0)
    assert parse_file_name(delta_name(3, 7)) == StateFileName(3, 7)
    assert parse_file_name(delta_name(0, 7)) == StateFileName(0, 7)


@pytest.mark.parametrize(
    "name",
    [
        "manifest",
        "manifest.new",
        "base-7.sow",
        base_name(2**63),
        base_name(7) + "\n",
        "../" + base_name(7),
        base_name(7).replace("0", "\N{ARABIC-INDIC DIGIT ZERO}"),
        delta_name(8, 7),
        delta_name(7, 2**63),
        "delta-00000000000000000007.sow",
    ],
)
def test_other_names_are_not_names_of_state_files(name: str) -> None:
    assert parse_file_name(name) is None


# -- golden files -------------------------------------------------------------------------------------

FILES: dict[str, Callable[[], bytes]] = {
    "sow-manifest": lambda: MANIFEST,
    "sow-base": lambda: SMALL.base,
    "sow-delta": lambda: SMALL.delta,
}


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.bin").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_written_state_files_equal_the_golden_files(name: str) -> None:
    data = FILES[name]()
    if os.environ.get("TICKERTAPE_GOLDEN") == "write":
        (GOLDEN / f"{name}.bin").write_bytes(data)
    assert data == golden(name), "the format changed: describe the change in an ADR, then regenerate the file"


def test_golden_state_files_decode_to_the_written_records() -> None:
    manifest = decode_manifest(golden("sow-manifest"), DIRECTORY, JOURNAL_ID)
    assert manifest == SMALL.manifest
    for entry, name, blocks in zip(
        manifest.files, ("base", "delta"), (BASE_BLOCKS, DELTA_BLOCKS), strict=True
    ):
        found = read(golden(f"sow-{name}"), entry, manifest)
        assert [plain(block) for block in found] == [plain(block) for block in blocks]


def test_golden_manifest_matches_the_documented_layout() -> None:
    data = golden("sow-manifest")
    magic, version, checksum, journal, *numbers, chain, size = struct.unpack_from("<8sII16sQQQQII", data)
    assert (magic, version, journal) == (b"TKTSOW\0\0", 0, JOURNAL_ID)
    assert checksum == crc32c(data[16:], crc32c(data[:12])) == manifest_checksum(data)
    assert (*numbers, chain) == (130, 120, 15, 2, 0xBEEF)
    assert size == len(data) - 72
    assert msgspec.msgpack.decode(data[72:]) == {
        "topic": TOPIC,
        "fingerprint": FINGERPRINT,
        "complete": False,
        "incomplete_because": "the log started at position 40",
        "records": 3,
        "order_stamp": STAMP + 5,
        "files": [
            [base_name(100), len(SMALL.base), BASE.checksum, 90, 100, 12, 2, 0xDEAD],
            [delta_name(90, 130), len(SMALL.delta), DELTA.checksum, 120, 130, 15, 2, 0xBEEF],
        ],
    }


@pytest.mark.parametrize(
    ("name", "entry", "totals"), [("base", BASE, (7, 0, 2)), ("delta", DELTA, (1, 2, 2))]
)
def test_golden_file_matches_the_documented_frame(
    name: str, entry: StateFileEntry, totals: tuple[int, ...]
) -> None:
    data = golden(f"sow-{name}")
    magic, version, checksum, size, kind, journal, topic_bytes, fingerprint_bytes = struct.unpack_from(
        "<8sIIII16sII", data
    )
    assert (magic, version, journal) == (b"TKTSTF\0\0", 0, JOURNAL_ID)
    assert kind == {"base": 1, "delta": 2}[name]
    assert (topic_bytes, fingerprint_bytes, size) == (6, 5, 64)
    assert data[48:64] == TOPIC.encode() + FINGERPRINT + bytes(5)
    assert checksum == crc32c(data[16:64], crc32c(data[:12]))
    running = crc32c(data[12:16])
    at = 64
    while at < len(data) - 48:
        magic, kind, size, checksum, own = struct.unpack_from("<IIQII", data, at)
        assert magic == 0x4B4C4254
        assert checksum == crc32c(data[at + 24 : at + 24 + size])
        assert own == crc32c(data[at : at + 20])
        running = crc32c(data[at + 20 : at + 24], running)
        at += 24 + size
    magic, *counts, size, checksum, own = struct.unpack_from("<8sQQQQII", data, at)
    assert (magic, tuple(counts), size) == (b"TKTSTE\0\0", totals, len(data))
    assert (checksum, own) == (running, crc32c(data[at : at + 44]))
    assert (entry.checksum, at + 48) == (own, len(data))


def test_golden_base_matches_the_documented_columns() -> None:
    data = golden("sow-base")
    (at, size), _ = block_places(data)
    assert struct.unpack_from("<IIII", data, at + 24) == (2, 63, 0, 2)
    body = data[at + 40 : at + 24 + size]
    sections = (
        struct.pack("<2Q", 41, 60),
        struct.pack("<2Q", 3, 2**63),
        struct.pack("<2q", STAMP + 1, STAMP + 2),
        struct.pack("<2q", STAMP, STAMP + 1),
        struct.pack("<2Q", 7, 2**64 - 1),
        struct.pack("<2I", 0, 3),
        struct.pack("<3i", 0, 8, 16),
        b"orders/aorders/b",
        struct.pack("<2I", 0, 1),
        struct.pack("<2q", 5_000, 0),
        struct.pack("<3i", 0, 1, 2),
        b"12",
        struct.pack("<3i", 0, 2, 2),
        b"c1",
        struct.pack("<3i", 0, 0, 2),
        b"k2",
        struct.pack("<3i", 0, 5, 5),
        b"\x81\xa1h\xa1v",
        struct.pack("<3i", 0, 8, 8),
        b'{"id":1}',
    )
    assert body == b"".join(section + bytes(-len(section) % 8) for section in sections)


def test_golden_delta_has_a_block_of_dead_keys_first() -> None:
    data = golden("sow-delta")
    (at, size), (_, _) = block_places(data)
    assert struct.unpack_from("<I", data, at + 4) == (2,)
    assert data[at + 24 : at + 24 + size] == struct.pack("<IIII3i", 2, 0, 0, 0, 0, 1, 5) + bytes(4) + (
        b"3gone" + bytes(3)
    )


def test_block_of_few_publishers_has_a_table_and_numbers() -> None:
    data = golden("sow-base")
    _, (at, _) = block_places(data)
    assert struct.unpack_from("<IIII", data, at + 24) == (5, 0, 1, 0)
    publishers = at + 24 + 16 + 3 * 40
    assert struct.unpack_from("<Q5I", data, publishers) == (7, 0, 0, 0, 0, 0)


# -- damage -------------------------------------------------------------------------------------------


def test_each_flipped_bit_of_a_manifest_is_refused() -> None:
    for at in range(len(MANIFEST)):
        for bit in range(8):
            data = bytearray(MANIFEST)
            data[at] ^= 1 << bit
            with pytest.raises(JournalCorrupt, match=f"Cannot read 'sow/{DIRECTORY}/manifest': "):
                decode_manifest(bytes(data), DIRECTORY, JOURNAL_ID)


def test_truncated_or_extended_manifest_is_refused() -> None:
    for size in range(len(MANIFEST)):
        with pytest.raises(JournalCorrupt):
            decode_manifest(MANIFEST[:size], DIRECTORY, JOURNAL_ID)
        with pytest.raises(JournalCorrupt):
            decode_manifest(mended_manifest(MANIFEST[:size]), DIRECTORY, JOURNAL_ID)
    for more in (b"\0", b"\xc0", MANIFEST):
        with pytest.raises(JournalCorrupt):
            decode_manifest(MANIFEST + more, DIRECTORY, JOURNAL_ID)


@pytest.mark.parametrize("delta", [False, True])
def test_each_flipped_bit_of_a_state_file_is_refused(delta: bool) -> None:
    good, entry = (SMALL.delta, DELTA) if delta else (SMALL.base, BASE)
    for at in range(len(good)):
        for bit in range(8):
            data = bytearray(good)
            data[at] ^= 1 << bit
            refused(bytes(data), entry)


@pytest.mark.parametrize("delta", [False, True])
def test_truncated_or_extended_state_file_is_refused(delta: bool) -> None:
    good, entry = (SMALL.delta, DELTA) if delta else (SMALL.base, BASE)
    for size in range(len(good)):
        refused(good[:size], entry, f"it has {size} bytes, not {len(good)}")
        refused(good[:size], matching(entry, good[:size]))
    for more in (bytes(8), good[-TRAILER:], good):
        refused(good + more, entry)
        refused(good + more, matching(entry, good + more))


def test_state_file_with_missing_or_exchanged_blocks_is_refused() -> None:
    (first, size), (second, other) = block_places(SMALL.base)
    begin, middle, end = first + BLOCK_HEAD + size, second, second + BLOCK_HEAD + other
    for data in (
        SMALL.base[:first] + SMALL.base[begin:],
        SMALL.base[:middle] + SMALL.base[end:],
        SMALL.base[:first] + SMALL.base[second:end] + SMALL.base[first:begin] + SMALL.base[end:],
    ):
        refused(data, BASE)
        refused(data, matching(BASE, data))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_state_file_with_wrong_totals_in_the_trailer_is_refused(count: int) -> None:
    data = bytearray(SMALL.base)
    data[len(data) - TRAILER + 8 + 8 * count] ^= 1
    data[-4:] = crc32c(bytes(data[-TRAILER:-4])).to_bytes(4, "little")
    error = refused(bytes(data), matching(BASE, bytes(data)), "its blocks do not match its trailer")
    assert error.offset == len(data) - TRAILER
    assert error.file == state_path(TOPIC, BASE.name)


def test_state_file_that_differs_from_the_entry_is_refused() -> None:
    refused(SMALL.base, replace(BASE, checksum=BASE.checksum ^ 1), "its trailer does not match its manifest")
    other = written(state_file(), BASE_BLOCKS[1:])
    refused(other[0], replace(BASE, size=len(other[0])), "its trailer does not match its manifest")
    refused(SMALL.base, replace(BASE, end=97), "a record is at or above position 97")
    assert read(SMALL.base, replace(BASE, end=98))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"journal_id": bytes(16)}, "it belongs to another journal"),
        ({"topic": "ordert"}, "it belongs to another topic"),
        ({"fingerprint": b"\x91\xa3/ie"}, "it has another fingerprint than its manifest"),
        ({"delta": True}, "its name does not match its kind"),
    ],
)
def test_state_file_of_another_state_is_refused(changes: dict[str, Any], cause: str) -> None:
    data, checksum = written(replace(state_file(), **changes), BASE_BLOCKS)
    refused(data, base_entry(data, checksum), cause)


def test_manifest_of_another_journal_or_directory_is_refused() -> None:
    with pytest.raises(JournalCorrupt, match="it belongs to another journal"):
        decode_manifest(MANIFEST, DIRECTORY, bytes(16))
    other = state_directory("fills")
    with pytest.raises(
        JournalCorrupt, match=f"Cannot read 'sow/{other}/manifest': it belongs to another topic"
    ):
        decode_manifest(MANIFEST, other, JOURNAL_ID)


def test_newer_versions_are_refused_as_a_newer_format() -> None:
    for version in (1, 2**32 - 1):
        number = version.to_bytes(4, "little")
        manifest = mended_manifest(MANIFEST[:8] + number + MANIFEST[12:])
        with pytest.raises(JournalVersion, match="it has a newer format"):
            decode_manifest(manifest, DIRECTORY, JOURNAL_ID)
        base = mended_state_file(SMALL.base[:8] + number + SMALL.base[12:])
        with pytest.raises(JournalVersion, match=f"Cannot read '{state_path(TOPIC, BASE.name)}'"):
            read(base, matching(BASE, base))


# -- manifest -----------------------------------------------------------------------------------------


def with_files(*files: StateFileEntry) -> StateManifest:
    return manifest_of(*files)


def with_file(number: int, **changes: object) -> StateManifest:
    """Return the manifest with a changed entry, and with the point of the last entry."""
    files = list(SMALL.manifest.files)
    files[number] = replace(files[number], **changes)
    return manifest_of(*files)


def third() -> StateFileEntry:
    return replace(DELTA, name=delta_name(120, 150), start=140, end=150, commit=20, epoch=3)


QUIET = replace(DELTA, name=delta_name(100, 100), start=100, end=100, commit=12)
"""Delta for changes during the scan of a base, without later ones."""


@pytest.mark.parametrize(
    "manifest",
    [
        manifest_of(BASE),
        with_files(BASE, DELTA, third()),
        replace(SMALL.manifest, start=130, end=130),
        replace(SMALL.manifest, start=500, end=500, commit=60, epoch=9, chain=1),
        replace(SMALL.manifest, complete=True, incomplete_because=""),
        replace(SMALL.manifest, topic="t" * 1024, fingerprint=bytes(sow_fingerprint_bytes_max)),
        replace(SMALL.manifest, records=2**63 - 1, order_stamp=2**63 - 1),
        # Nothing was added to the log while the base was written, and during its scan a record changed.
        with_files(BASE, replace(DELTA, name=delta_name(90, 100), start=100, end=100, commit=12)),
    ],
)
def test_valid_manifest_encodes_and_decodes_to_the_same_value(manifest: StateManifest) -> None:
    data = encode_manifest(manifest)
    assert decode_manifest(data, state_directory(manifest.topic), JOURNAL_ID) == manifest
    assert mended_manifest(data) == data


def raw_manifest(manifest: StateManifest) -> bytes:
    """Encode a manifest without checks."""
    fields = msgspec.structs.asdict(manifest)
    point = [fields.pop(name) for name in ("end", "start", "commit", "epoch", "chain")]
    head = struct.pack("<8sII16sQQQQII", b"TKTSOW\0\0", 0, 0, fields.pop("journal_id"), *point, 0)
    return mended_manifest(head + msgspec.msgpack.encode(fields))


def test_manifest_encoded_without_checks_has_the_same_bytes() -> None:
    assert raw_manifest(SMALL.manifest) == MANIFEST


@pytest.mark.parametrize(
    ("manifest", "cause"),
    [
        (replace(SMALL.manifest, start=131), "its positions 131 and 130 are out of order"),
        (replace(SMALL.manifest, end=2**63), "a number of its head has more than 63 bits"),
        (replace(SMALL.manifest, commit=2**63), "a number of its head has more than 63 bits"),
        (replace(SMALL.manifest, epoch=2**63), "a number of its head has more than 63 bits"),
        (replace(SMALL.manifest, records=-1), "its map is invalid"),
        (replace(SMALL.manifest, order_stamp=2**63), "its map is invalid"),
        (replace(SMALL.manifest, topic=""), "a topic name has 0 bytes"),
        (replace(SMALL.manifest, topic="Ü" * 513), "a topic name has 1026 bytes"),
        (replace(SMALL.manifest, fingerprint=b""), "its map is invalid"),
        (replace(SMALL.manifest, fingerprint=bytes(sow_fingerprint_bytes_max + 1)), "its map is invalid"),
        (replace(SMALL.manifest, complete=True), "it needs a reason exactly if the state is not complete"),
        (replace(SMALL.manifest, incomplete_because=""), "it needs a reason exactly if"),
        (replace(SMALL.manifest, incomplete_because="x" * 1025), "its reason is too long"),
        (replace(SMALL.manifest, files=()), "its map is invalid"),
        (replace(SMALL.manifest, files=(BASE,) * (sow_files_max + 1)), "its map is invalid"),
        (with_files(DELTA), "file 0 is not in the order base, deltas"),
        (with_files(BASE, BASE), "file 1 is not in the order base, deltas"),
        (with_files(BASE, third()), "file 1 does not follow the file before"),
        (with_files(BASE, DELTA, DELTA), "file 2 does not follow the file before"),
        (with_file(0, name="../base"), "the name of file 0 is invalid"),
        (with_file(1, name="a/" + DELTA.name), "the name of file 1 is invalid"),
        (with_file(0, end=101), "the positions of file 0 do not match"),
        (with_file(0, start=101), "the positions of file 0 do not match"),
        (replace(SMALL.manifest, files=(BASE, replace(DELTA, start=131))), "the positions of file 1 do not"),
        (with_file(1, start=99), "file 1 does not follow the file before"),
        (with_file(1, commit=11), "file 1 does not follow the file before"),
        (with_file(1, epoch=1), "file 1 does not follow the file before"),
        (with_file(0, size=BASE.size + 4), "the size of file 0 is invalid"),
        (with_file(0, size=88), "the size of file 0 is invalid"),
        (with_file(1, size=-8), "its map is invalid"),
        (replace(SMALL.manifest, files=(BASE, replace(DELTA, chain=2**32))), "its map is invalid"),
        (with_files(replace(BASE, start=100), QUIET, QUIET), "two of its files have the same name"),
        (replace(SMALL.manifest, start=119), "its position does not follow its last file"),
        (replace(SMALL.manifest, chain=1), "its position does not follow its last file"),
        (replace(SMALL.manifest, start=129, end=129), "its position does not follow its last file"),
        (replace(SMALL.manifest, start=140, end=140, commit=14), "its position does not follow"),
        (replace(SMALL.manifest, start=140, end=140, epoch=1), "its position does not follow"),
    ],
)
def test_invalid_manifest_is_neither_written_nor_read(manifest: StateManifest, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        encode_manifest(manifest)
    with pytest.raises(JournalCorrupt, match=cause):
        decode_manifest(raw_manifest(manifest), state_directory(manifest.topic), JOURNAL_ID)


@pytest.mark.parametrize("changes", [{"chain": 2**32}, {"commit": -1}, {"end": 2**64}, {"records": 2**64}])
def test_manifest_with_a_number_out_of_range_is_not_written(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="a number of the manifest is out of range"):
        encode_manifest(replace(SMALL.manifest, **changes))


@pytest.mark.parametrize("size", [0, 15, 17])
def test_manifest_with_a_journal_id_of_another_length_is_not_written(size: int) -> None:
    with pytest.raises(ValueError, match="the journal id does not have 16 bytes"):
        encode_manifest(replace(SMALL.manifest, journal_id=bytes(size)))
    with pytest.raises(ValueError, match="the journal id does not have 16 bytes"):
        StateFileWriter(replace(state_file(), journal_id=bytes(size))).begin()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x80",
        b"\xc0",
        b"\x90",
        MANIFEST[72:] + b"\xc0",
        msgspec.msgpack.encode({**msgspec.msgpack.decode(MANIFEST[72:]), "\n" * 900: 1}),
        msgspec.msgpack.encode({**msgspec.msgpack.decode(MANIFEST[72:]), "topic": b"orders"}),
        msgspec.msgpack.encode({**msgspec.msgpack.decode(MANIFEST[72:]), "files": [[1]]}),
        MANIFEST[72:].replace(b"orders", b"\xff\xfe\xfd\xfc\xfb\xfa"),
        b"\x81\xa5topic" + b"\x91" * 2000 + b"\xc0",
    ],
)
def test_manifest_with_an_invalid_map_is_refused_in_a_printable_line(body: bytes) -> None:
    with pytest.raises(JournalCorrupt) as caught:
        decode_manifest(mended_manifest(MANIFEST[:72] + body), DIRECTORY, JOURNAL_ID)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


def test_manifest_entry_with_more_fields_is_refused() -> None:
    fields = msgspec.msgpack.decode(MANIFEST[72:])
    fields["files"][0].append(1)
    data = mended_manifest(MANIFEST[:72] + msgspec.msgpack.encode(fields))
    with pytest.raises(JournalCorrupt, match="its map is invalid"):
        decode_manifest(data, DIRECTORY, JOURNAL_ID)


def test_manifest_above_the_size_limit_is_refused() -> None:
    data = mended_manifest(MANIFEST + bytes(sow_manifest_bytes_max))
    with pytest.raises(JournalCorrupt, match=f"it has {len(data)} bytes"):
        decode_manifest(data, DIRECTORY, JOURNAL_ID)


def test_manifest_with_the_most_files_is_below_the_size_limit() -> None:
    entries = [BASE]
    while len(entries) < sow_files_max:
        last = entries[-1]
        name = delta_name(last.start, last.end + 20)
        entries.append(replace(last, name=name, start=last.end + 10, end=last.end + 20))
    manifest = replace(manifest_of(*entries), topic="t" * 1024, fingerprint=bytes(sow_fingerprint_bytes_max))
    data = encode_manifest(manifest)
    assert len(data) < sow_manifest_bytes_max // 4
    assert decode_manifest(data, state_directory(manifest.topic), JOURNAL_ID) == manifest


# -- blocks -------------------------------------------------------------------------------------------


def round_trip(block: Block) -> Block:
    delta = isinstance(block, DeadKeys)
    data, checksum = written(state_file(delta=delta), [block])
    entry = (delta_entry if delta else base_entry)(data, checksum, end=1 << 40, start=100)
    (found,) = read(data, entry)
    return found


def test_empty_state_file_has_no_blocks() -> None:
    data, checksum = written(state_file(), [])
    assert len(data) == 64 + TRAILER
    assert read(data, base_entry(data, checksum)) == []


def test_columns_of_a_read_block_are_aligned_views_of_the_file() -> None:
    data = np.frombuffer(SMALL.base, np.uint8)
    for block in read(SMALL.base, BASE):
        assert isinstance(block, RecordBlock)
        for column in (
            *(block.positions, block.sequences, block.timestamps, block.order_stamps, block.publishers),
            *(block.publisher_numbers, block.origins, block.topic_numbers, block.expirations),
            *(block.keys.offsets, block.body_offsets),
        ):
            if column is not None:
                assert column.flags.aligned
                assert np.shares_memory(column, data)
                assert not column.flags.writeable
        assert np.shares_memory(np.frombuffer(block.bodies[0], np.uint8), data)


def test_written_bodies_are_neither_joined_nor_copied() -> None:
    bodies = (bytes(3000), bytearray(5000), memoryview(bytes(1000)))
    block = replace(
        block_of([Row(b"k", b""), Row(b"l", b"")]),
        body_offsets=np.array([0, 4500, 9000], np.int32),
        bodies=bodies,
    )
    writer = StateFileWriter(state_file())
    writer.begin()
    buffers = writer.records(block)
    for body in bodies:
        source = np.frombuffer(body, np.uint8)
        assert [one for one in buffers if np.shares_memory(np.frombuffer(one, np.uint8), source)]


def test_body_above_the_block_limit_is_written_in_a_separate_block() -> None:
    largest = bytes(message_bytes_max)
    (row,) = rows_of(as_records(round_trip(block_of([Row(b"k", largest)]))))
    assert row.body == largest
    with pytest.raises(ValueError, match=f"a body has {message_bytes_max + 1} bytes"):
        round_trip(block_of([Row(b"k", largest + b"x")]))


def as_records(block: Block) -> RecordBlock:
    assert isinstance(block, RecordBlock)
    return block


def test_block_has_at_most_four_mebibytes_beside_the_last_body() -> None:
    size = len(
        b"".join(StateFileWriter(state_file()).records(block_of([Row(b"1", b"x" * 8), Row(b"2", b"")])))
    )
    room = sow_file_block_bytes_max - (size - BLOCK_HEAD) + 8
    block = block_of([Row(b"1", bytes(room)), Row(b"2", bytes(5 << 20))])
    assert as_records(round_trip(block)).body_offsets.tolist() == [0, room, room + (5 << 20)]
    with pytest.raises(
        ValueError, match=f"a block has {sow_file_block_bytes_max + 8} bytes beside its last body"
    ):
        round_trip(block_of([Row(b"1", bytes(room + 8)), Row(b"2", bytes(5 << 20))]))


def test_read_block_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(b"1", bytes(5000)), Row(b"2", b"")]
    data, checksum = written(state_file(), [block_of(rows)])
    monkeypatch.setattr(sow_blocks, "sow_file_block_bytes_max", 4000)
    refused(data, base_entry(data, checksum), "a block has 5120 bytes beside its last body")
    monkeypatch.setattr(sow_checkpoint, "BLOCK_PAYLOAD_BYTES_MAX", 4000)
    refused(data, base_entry(data, checksum), "a block has 5120 bytes")


def test_keys_of_the_largest_size_are_read_back() -> None:
    keys = [b"a" * sow_file_key_bytes_max, b"b", b"", b"c" * sow_file_key_bytes_max]
    found = as_records(round_trip(block_of([Row(key, b"") for key in keys])))
    assert key_list(found.keys) == keys
    with pytest.raises(ValueError, match=f"a key has {sow_file_key_bytes_max + 1} bytes"):
        round_trip(block_of([Row(b"a" * (sow_file_key_bytes_max + 1), b"")]))
    with pytest.raises(ValueError, match=f"a key has {sow_file_key_bytes_max + 1} bytes"):
        round_trip(dead_keys_of([("", b"a" * (sow_file_key_bytes_max + 1))]))


def test_publishers_are_written_as_the_smaller_form() -> None:
    many = [Row(b"%d" % n, b"", publisher=n + 1) for n in range(10)]
    few = [Row(b"%d" % n, b"", publisher=n % 4 + 1) for n in range(10)]
    for rows, table in ((many, False), (few, True)):
        for given in (False, True):
            block = block_of(rows, table=given)
            found = as_records(round_trip(block))
            assert (found.publisher_numbers is not None) == table
            assert rows_of(found) == rows


def test_written_table_of_publishers_has_only_used_ids() -> None:
    rows = [Row(b"%d" % n, b"", publisher=ids) for n, ids in enumerate([30, 90, 30, 30, 90, 30])]
    block = replace(
        block_of(rows),
        publishers=np.arange(0, 100_000, 10, dtype=np.uint64),
        publisher_numbers=np.array([3, 9, 3, 3, 9, 3], np.uint32),
    )
    found = as_records(round_trip(block))
    assert found.publishers.tolist() == [30, 90]
    assert rows_of(found) == rows


def test_dead_keys_precede_the_records_of_a_delta() -> None:
    keys, records = DELTA_BLOCKS
    for file, blocks in (
        (state_file(delta=True), (records, keys)),
        (state_file(delta=True), (keys, records, keys)),
        (state_file(), (keys,)),
    ):
        with pytest.raises(ValueError, match="dead keys belong to the start of a delta"):
            written(file, blocks)
    assert written(state_file(delta=True), (keys, keys, records, records))


def test_read_dead_keys_behind_records_or_in_a_base_are_refused() -> None:
    (first, _), (second, other) = block_places(SMALL.delta)
    end = second + BLOCK_HEAD + other
    data = SMALL.delta[:first] + SMALL.delta[second:end] + SMALL.delta[first:second] + SMALL.delta[end:]
    with pytest.raises(JournalCorrupt, match="dead keys belong to the start of a delta"):
        read_mended(data, DELTA)
    base = SMALL.delta[:20] + b"\x01" + SMALL.delta[21:]
    with pytest.raises(JournalCorrupt, match="dead keys belong to the start of a delta"):
        read_mended(base, replace(BASE, end=130, name=base_name(130)))


ALL = replace(
    as_records(BASE_BLOCKS[0]),
    publishers=np.array([7, 8], np.uint64),
    publisher_numbers=np.array([0, 1], np.uint32),
)
SHORT = key_column([b"x"])
FALLING = Labels(np.array([0, 3, 2], np.int32), b"ab")


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"positions": np.empty(0, np.int64)}, "a block has no rows"),
        ({"positions": np.array([1, -1], np.int64)}, "a position is below 0"),
        ({"sequences": np.array([1], np.uint64)}, "a column has 1 of 2 rows"),
        ({"timestamps": np.array([1], np.int64)}, "a column has 1 of 2 rows"),
        ({"order_stamps": np.array([1, 2, 3], np.int64)}, "a column has 3 of 2 rows"),
        ({"publisher_numbers": np.array([1], np.uint32)}, "a column has 1 of 2 rows"),
        ({"publisher_numbers": None, "publishers": np.array([1], np.uint64)}, "a column has 1 of 2 rows"),
        ({"publisher_numbers": np.array([0, 2], np.uint32)}, "a publisher number exceeds its table"),
        ({"origins": np.array([1], np.uint32)}, "a column has 1 of 2 rows"),
        ({"topics": ()}, "topics need a table and numbers"),
        ({"topic_numbers": None}, "topics need a table and numbers"),
        ({"topic_numbers": np.array([0, 2], np.uint32)}, "topic numbers do not fit their table"),
        ({"topic_numbers": np.array([0], np.uint32)}, "topic numbers do not fit their table"),
        ({"topics": ("a", "a")}, "two topics of a block have the same name"),
        ({"topics": ("a", "")}, "a topic name has 0 bytes"),
        ({"topics": ("a", "b" * 1025)}, "a topic name has 1025 bytes"),
        ({"expirations": np.array([0, -1], np.int64)}, "an expiration is below 0"),
        ({"expirations": np.array([0], np.int64)}, "a column has 1 of 2 rows"),
        ({"keys": SHORT}, "key offsets do not fit 2 rows of 1 bytes"),
        ({"keys": FALLING}, "key offsets are out of order"),
        ({"keys": Labels(np.array([1, 1, 2], np.int32), b"ab")}, "key offsets do not fit 2 rows"),
        ({"correlation_ids": Labels(np.array([0, 1, 3], np.int32), b"ab")}, "id offsets do not fit"),
        ({"correlation_ids": key_column([b"", b"x" * 4097])}, "a correlation id has 4097 bytes, more"),
        ({"message_keys": SHORT}, "message key offsets do not fit"),
        ({"message_keys": key_column([b"", b"x" * 4097])}, "a message key has 4097 bytes, more than 4096"),
        ({"headers": FALLING}, "header offsets are out of order"),
        ({"headers": key_column([b"", b"x" * 8193])}, "a header has 8193 bytes, more than 8192"),
        ({"body_offsets": np.array([0, 9, 8], np.int32)}, "body offsets are out of order"),
        ({"bodies": (b"1234567",)}, "body offsets do not fit 2 rows of 7 bytes"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_each_other_are_not_written(changes: dict[str, Any], cause: str) -> None:
    assert rows_of(as_records(round_trip(ALL)))
    writer = StateFileWriter(state_file())
    with pytest.raises(ValueError, match=cause):
        writer.records(replace(ALL, **changes))


def test_dead_keys_that_do_not_fit_each_other_are_not_written() -> None:
    writer = StateFileWriter(state_file(delta=True))
    good = dead_keys_of([("a", b"1"), ("b", b"2")])
    for changes, cause in (
        ({"keys": Labels(np.zeros(1, np.int32), b"")}, "a block has no rows"),
        ({"keys": FALLING}, "key offsets are out of order"),
        ({"topics": ()}, "topics need a table and numbers"),
        ({"topic_numbers": np.array([0, 2], np.uint32)}, "topic numbers do not fit their table"),
    ):
        with pytest.raises(ValueError, match=cause):
            writer.dead_keys(replace(good, **changes))


@pytest.mark.parametrize("topic", ["", "t" * 1025])
def test_file_of_an_invalid_topic_is_not_written(topic: str) -> None:
    with pytest.raises(ValueError, match=f"a topic name has {len(topic)} bytes"):
        StateFileWriter(replace(state_file(), topic=topic)).begin()
    for size in (0, sow_fingerprint_bytes_max + 1):
        with pytest.raises(ValueError, match=f"its fingerprint has {size} bytes"):
            StateFileWriter(replace(state_file(), fingerprint=bytes(size))).begin()


def test_file_of_the_longest_topic_and_fingerprint_is_read_back() -> None:
    file = StateFile(
        journal_id=JOURNAL_ID, topic="t" * 1024, fingerprint=bytes(sow_fingerprint_bytes_max), delta=False
    )
    data, checksum = written(file, BASE_BLOCKS)
    manifest = replace(SMALL.manifest, topic=file.topic, fingerprint=file.fingerprint)
    assert len(read(data, base_entry(data, checksum), manifest)) == 2


# -- changed files with correct checksums -------------------------------------------------------------


def changed(data: bytes, at: int, number: int, size: int = 4) -> bytes:
    return data[:at] + number.to_bytes(size, "little") + data[at + size :]


@pytest.mark.parametrize(
    ("at", "number", "cause"),
    [
        (64, 1, "it has a block of the unknown kind 1"),  # magic
        (68, 3, "it has a block of the unknown kind 3"),  # candidates
        (68, 2, "dead keys has the unknown columns 0x3f"),
        (88, 0, "a block has no rows"),
        (88, 2**32 - 1, "a column exceeds its block"),
        (92, 64, "a block has the unknown columns 0x40"),
        (96, 2**32 - 1, "a column exceeds its block"),
        (100, 2**32 - 1, "a column exceeds its block"),
        (100, 0, "Cannot read"),
    ],
)
def test_changed_head_of_a_block_with_correct_checksums_is_refused(at: int, number: int, cause: str) -> None:
    with pytest.raises(JournalCorrupt, match=cause):
        read_mended(changed(SMALL.base, at, number), BASE)


def test_lengths_beyond_the_file_are_refused_before_use() -> None:
    place = block_places(SMALL.base)[0][0]
    for size in (2**63, 2**40, len(SMALL.base), 8 * 3, 12):
        data = bytearray(changed(SMALL.base, place + 8, size, 8))
        data[place + 20 : place + 24] = crc32c(bytes(data[place : place + 20])).to_bytes(4, "little")
        refused(bytes(data), BASE)
    for at, number in ((16, 2**31), (16, 40), (16, 72), (40, 7), (40, 2**31), (44, 2**32 - 1), (20, 3)):
        data = bytearray(changed(SMALL.base, at, number))
        size = number if at == 16 and number < 100 else 64
        data[12:16] = crc32c(bytes(data[16:size]), crc32c(bytes(data[:12]))).to_bytes(4, "little")
        refused(bytes(data), BASE)


def test_each_changed_word_with_correct_checksums_is_refused_or_read() -> None:
    """Lengths, counts and offsets cannot lead outside of a file."""
    outcomes = {"refused": 0, "read": 0}
    for good, entry in ((SMALL.base, BASE), (SMALL.delta, DELTA)):
        for at in range(0, len(good) - TRAILER, 4):
            for number in (0, 1, 255, 2**31 - 1, 2**31, 2**32 - 1):
                try:
                    for block in read_mended(changed(good, at, number), entry):
                        assert plain(block)
                    outcomes["read"] += 1
                except (JournalCorrupt, JournalVersion):
                    outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


def test_descending_offsets_with_correct_checksums_are_refused() -> None:
    place = block_places(SMALL.base)[1][0] + BLOCK_HEAD + 16 + 3 * 40 + 8 + 24
    assert struct.unpack_from("<6i", SMALL.base, place) == (0, 1, 2, 3, 4, 5)
    with pytest.raises(JournalCorrupt, match="key offsets are out of order"):
        read_mended(changed(SMALL.base, place + 8, 0), BASE)


def test_invalid_topic_names_with_correct_checksums_are_refused() -> None:
    data = SMALL.base.replace(b"orders/a", b"orders/\xff")
    with pytest.raises(JournalCorrupt, match="a topic name is not UTF-8"):
        read_mended(data, BASE)
    header = SMALL.base[:48] + b"\xff" + SMALL.base[49:]
    with pytest.raises(JournalCorrupt, match="a topic name is not UTF-8"):
        read_mended(header, BASE)
