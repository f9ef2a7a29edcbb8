"""Segment bytes as docs/formats/journal.md documents them, and the golden segment."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import msgspec
import pytest
from crc32c import crc32c

from tickertape.base.interfaces import Now
from tickertape.batch import MessageBatch, Stamp, batch_from_bodies
from tickertape.journal.commit.group_commit import SyncPolicy
from tickertape.journal.commit.jobs import DiskJobExecutor
from tickertape.journal.format.segment import (
    CommitHeader,
    CommitKind,
    Footer,
    FormatError,
    NewerFormat,
    SegmentHeader,
    decode_commit,
    decode_footer,
    decode_segment_header,
    encode_commit,
    encode_footer,
    encode_segment_header,
    segment_name,
    segment_number,
    segment_path,
)
from tickertape.journal.index.segment_index import SegmentIndex
from tickertape.journal.journal import Journal
from tickertape.journal.limits import commit_header_bytes, segment_header_bytes
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.testing.disk import StrictDisk

GOLDEN = Path(__file__).parents[3] / "golden" / "journal-segment.bin"
GOLDEN_BEFORE = GOLDEN.with_name("journal-segment-before.bin")
SALT = 0x1122334455667788

HEADER = SegmentHeader(
    journal_id=bytes(range(16)),
    number=2,
    epoch=3,
    first_position=4,
    first_commit=5,
    salt=SALT,
    previous_chain=7,
    previous_end=8,
    created=-9,
)
COMMIT = CommitHeader(
    kind=CommitKind.DATA,
    flags=0,
    codec=0,
    salt=SALT,
    offset=512,
    number=2,
    first_position=3,
    messages=4,
    body_bytes=8,
    synced_through=1,
    timestamp=-5,
    body_crc=6,
    chain=7,
    epoch=9,
    ahead=2**32 - 1,
)


def sealed_segment() -> bytes:
    """A segment with a commit, a mark, a commit of two runs and topics, and its seal."""
    disk = StrictDisk(Random(1))
    disk.make_directory("journal")
    executor = DiskJobExecutor(disk, lambda: SALT)
    moment = Now(1.0, 1_790_000_000_000_000)
    journal = Journal(
        recover_journal(disk, bytes(range(16))), moment, policy=SyncPolicy.ALWAYS, segment_bytes=8192
    )

    def run() -> None:
        while jobs := journal.commits.jobs():
            for job in jobs:
                journal.commits.done(job, None, executor.run(job), moment)

    run()
    journal.append(batch_from_bodies("orders", [b"one", b""], first_sequence=1), Stamp(7, 1, 10), 2, moment)
    run()
    moment = Now(2.0, 1_790_000_000_000_000)
    journal.commits.wake(moment)
    run()
    journal.append(batch_from_bodies("orders", [b"two"], first_sequence=3), Stamp(7, 3, 20), 3, moment)
    journal.append(batch_from_bodies("fills", [b"three"], first_sequence=5), Stamp(8, 5, 20), 5, moment)
    journal.append(batch_from_bodies("fills", [b"four"], first_sequence=6), Stamp(8, 6, 21), 6, moment)
    run()
    journal.commits.close(moment)
    run()
    return disk.contents()[segment_path(1)]


def test_written_segment_equals_the_golden_file() -> None:
    assert sealed_segment() == GOLDEN.read_bytes(), (
        "the format changed: describe the change in an ADR, then regenerate the file"
    )


def test_golden_segment_of_an_earlier_version_is_read() -> None:
    """The index has five elements: late runs are missing."""
    data = GOLDEN_BEFORE.read_bytes()
    disk = StrictDisk(Random(1))
    disk.make_directory("journal")
    handle = disk.open(segment_path(1), create=True)
    disk.write(handle, 0, [data])
    disk.close(handle)
    recovered = recover_journal(disk, bytes(range(16)))
    assert recovered.publishers == {7: 3, 8: 6}
    assert recovered.report == []
    assert Journal(recovered, Now(1.0, 1)).view.segments[0].index.publisher_bounds(8) == (5, 6)
    assert len(msgspec.msgpack.decode(_index_of(data))) == 5
    assert len(msgspec.msgpack.decode(_index_of(GOLDEN.read_bytes()))) == 6


def _index_of(data: bytes) -> bytes:
    """Return the stored index of a sealed segment."""
    _, seal, _, _, index_bytes, _ = struct.unpack("<8sQQQII", data[-40:])
    return data[seal + 96 : seal + 96 + index_bytes]


def test_golden_segment_matches_the_documented_layout() -> None:
    data = GOLDEN.read_bytes()
    assert data[:8] == b"TKTSEG\0\0"
    assert struct.unpack_from("<HHI16sQQQQQIIQq", data, 8) == (
        *(0, 1, 0, bytes(range(16)), 1, 1, 0, 1, SALT, 0, 0, 0),
        1_790_000_000_000_000,
    )
    assert not any(data[96:508])
    (chain,) = struct.unpack_from("<I", data, 508)
    assert crc32c(data[:508]) == chain
    at, number, position, kinds = 512, 1, 0, []
    while at < len(data):
        magic, kind, flags, codec, reserved = struct.unpack_from("<IBBBB", data, at)
        assert (magic, flags, codec, reserved) == (0x544D4354, 0, 0, 0)
        fields = struct.unpack_from("<QQQQIIQqIIQIIII", data, at + 8)
        assert fields[:4] == (SALT, at, number, position)
        assert fields[6] == number - 1, "synced through"
        assert (*fields[9:11], fields[13]) == (chain, 1, 0), "chain, epoch, ahead"
        chain = fields[14]
        assert crc32c(data[at : at + 92]) == chain
        body = data[at + 96 : at + 96 + fields[5]]
        assert crc32c(body) == fields[8] or (not body and fields[8] == 0)
        head = body[: fields[11]]
        assert crc32c(head) == fields[12]
        assert bool(head) == (kind == 1)
        if kind == 1:
            batch = MessageBatch.parse(body)
            assert (batch.count, batch.head) == (fields[4], head)
        kinds.append((kind, fields[4], fields[7]))
        at, number, position = at + 96 + len(body), number + 1, position + fields[4]
    assert kinds == [(1, 2, 10), (2, 0, 10), (1, 1, 20), (1, 2, 21), (3, 0, 21)]
    magic, seal, end, salt, index_bytes, crc = struct.unpack("<8sQQQII", data[-40:])
    assert (magic, end, salt, crc) == (b"TKTSEAL\0", len(data), SALT, crc32c(data[-40:-4]))
    index = SegmentIndex.decode(data[seal + 96 : seal + 96 + index_bytes], seal)
    assert index.highest_sequences() == {7: 3, 8: 6}
    assert not any(data[seal + 96 + index_bytes : -40]), "zero padding"


def test_headers_encode_and_decode_to_the_same_values() -> None:
    data, crc = encode_segment_header(HEADER)
    assert len(data) == segment_header_bytes
    assert decode_segment_header(data) == (HEADER, crc)
    encoded, crc = encode_commit(COMMIT)
    assert len(encoded) == commit_header_bytes
    assert decode_commit(b"xyz" + encoded, 3) == COMMIT._replace(crc=crc)
    assert struct.unpack_from("<I", encoded, 88) == (COMMIT.ahead,)
    footer = Footer(600, 700, SALT, 50)
    assert decode_footer(encode_footer(footer)) == footer


def test_header_with_a_flipped_bit_is_rejected() -> None:
    for encoded, decode in (
        (encode_commit(COMMIT)[0], decode_commit),
        (encode_footer(Footer(600, 700, SALT, 50)), decode_footer),
    ):
        for bit in range(8 * len(encoded)):
            flipped = bytearray(encoded)
            flipped[bit // 8] ^= 1 << bit % 8
            assert decode(bytes(flipped)) is None
    header = encode_segment_header(HEADER)[0]
    for offset in range(segment_header_bytes):
        flipped = bytearray(header)
        flipped[offset] ^= 0x10
        with pytest.raises(FormatError):
            decode_segment_header(bytes(flipped))


def test_short_or_foreign_bytes_are_rejected_as_headers() -> None:
    assert decode_commit(encode_commit(COMMIT)[0][:-1]) is None
    assert decode_footer(b"") is None
    with pytest.raises(FormatError, match="511 of 512"):
        decode_segment_header(encode_segment_header(HEADER)[0][:-1])
    with pytest.raises(FormatError, match="not a segment header"):
        decode_segment_header(bytes(512))


def test_commit_header_of_unknown_kind_is_rejected() -> None:
    encoded = bytearray(encode_commit(COMMIT)[0])
    encoded[4] = 4
    encoded[92:] = struct.pack("<I", crc32c(bytes(encoded[:92])))
    assert decode_commit(bytes(encoded)) is None


@pytest.mark.parametrize(("at", "value"), [(8, 1), (10, 2)])
def test_newer_segment_format_is_distinguished_from_damage(at: int, value: int) -> None:
    data = bytearray(encode_segment_header(HEADER)[0])
    data[at] = value
    data[508:] = struct.pack("<I", crc32c(bytes(data[:508])))
    with pytest.raises(NewerFormat):
        decode_segment_header(bytes(data))


def test_segment_number_accepts_only_exact_names() -> None:
    assert segment_number(segment_name(12)) == 12
    assert segment_path(1) == "journal/0000000001.segment"
    for name in (  # the last one starts with a digit that is not ASCII
        "1.segment",
        "0000000001.segment.new",
        "0000000001.SEGMENT",
        "x0000000001.segment",
        "\N{ARABIC-INDIC DIGIT ZERO}000000001.segment",
    ):
        assert segment_number(name) is None
