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
import pytest
from crc32c import crc32c

from tests.helpers.state_files import (
    BASE,
    BASE_BLOCKS,
    BLOCK_HEAD,
    DELTA,
    DELTA_BLOCKS,
    DIRECTORY,
    FINGERPRINT,
    GOLDEN,
    JOURNAL_ID,
    MANIFEST,
    SMALL,
    STAMP,
    TOPIC,
    TRAILER,
    base_entry,
    block_places,
    matching,
    mended_manifest,
    mended_state_file,
    plain,
    read,
    read_mended,
    refused,
    state_file,
    written,
)
from tickertape.base.errors import JournalCorrupt, JournalVersion
from tickertape.journal.format.sow_checkpoint import (
    StateFileEntry,
    StateFileName,
    base_name,
    decode_manifest,
    delta_name,
    manifest_checksum,
    parse_file_name,
    state_directory,
    state_path,
)

replace = msgspec.structs.replace


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
