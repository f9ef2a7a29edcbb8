"""Decoding refuses a batch that breaks a single rule of docs/formats/batch.md."""

from __future__ import annotations

import struct
import tracemalloc
from array import array

import pytest

from tests.helpers.reserved_batches import with_reserved
from tickertape.base.errors import BadBatch
from tickertape.base.limits import headers_bytes_max, label_bytes_max, message_bytes_max, topic_bytes_max
from tickertape.batch import BatchBuilder, MessageBatch, batch_from_bodies, merge
from tickertape.batch.format import Places


def rich() -> bytearray:
    """Two runs, two topics, every column. The constants below are its offsets."""
    one, two = BatchBuilder(), BatchBuilder()
    one.add("ab", b"12345", sequence=3, correlation_id="é", key="kk", expiration_ms=9)
    one.add("cd", b"", sequence=6, kind=1)
    two.add("ab", b"678", sequence=1)
    return bytearray(merge([one.build(7, 0, 11), two.build(8, 0, 12)]).encode())


RUN_0, RUN_1, OFFSETS, TOPICS = 32, 72, 112, 128
INDEX, SEQUENCES, EXPIRATIONS, CORRELATION_IDS, KEYS, KINDS = 144, 160, 184, 208, 232, 256


def test_example_batch_has_the_expected_section_offsets() -> None:
    batch = MessageBatch.parse(rich())
    assert batch._places == Places(
        topic_index=INDEX,
        sequences=SEQUENCES,
        expirations=EXPIRATIONS,
        correlation_ids=CORRELATION_IDS,
        keys=KEYS,
        kinds=KINDS,
    )


@pytest.mark.parametrize(
    ("at", "form", "value", "text"),
    [
        (0, "I", 8, "claims 8 bytes"),
        (4, "B", 1, "version 1"),
        (5, "B", 1, "codec 1"),
        (6, "H", 0x20 | 0x1F, "columns end at"),
        (6, "H", 0x40 | 0x1F, "columns 0x5f"),
        (6, "H", 0x200, "columns 0x200"),
        (6, "H", 0x8000, "columns 0x8000"),
        (28, "I", 1, "reserved 1"),
        (8, "I", 0, "0 messages"),
        (8, "I", 2**32 - 1, "too short"),
        (12, "I", 0, "in 0 runs"),
        (12, "I", 4, "in 4 runs"),
        (16, "I", 0, "0 topics"),
        (16, "I", 2**32 - 1, "too short"),
        (20, "I", 2**32 - 8, "do not fill"),
        (20, "I", 268, "do not fill"),
        (20, "I", 256, "do not fill"),
        (24, "I", 2**32 - 1, "do not fill"),
        (24, "I", 7, "body offsets go from 0 to 8"),
        (RUN_0 + 24, "I", 3, "runs have 4 of 3"),
        (RUN_0 + 24, "I", 1, "runs have 2 of 3"),
        (RUN_0 + 32, "I", 8, "flags 0x8"),
        (RUN_1 + 32, "I", 2**31, "flags 0x80000000"),
        (RUN_1 + 32, "I", 4, "merged bodies, but"),
        (RUN_1 + 32, "I", 6, "merged bodies, but"),
        (RUN_1 + 8, "Q", 2, "does not start with the first sequence"),
        (OFFSETS, "i", 1, "body offsets go from 1"),
        (OFFSETS + 4, "i", 9, "body offset 2 is below"),
        (OFFSETS + 4, "i", -1, "body offset 1 is below"),
        (OFFSETS + 8, "i", -(2**31), "body offset 2 is below"),
        (TOPICS, "i", 1, "topic name offsets go from 1"),
        (TOPICS + 4, "i", -1, "topic name offset 1 is below"),
        (TOPICS + 8, "i", 2**31 - 1, "topic names have"),
        (TOPICS + 8, "i", -1, "topic names have"),
        (TOPICS + 12, "B", 0xFF, "topic name is not UTF-8"),
        (TOPICS + 12, "4s", b"abab", "are equal"),
        (INDEX, "i", 2, "topic index"),
        (INDEX, "i", -1, "topic index"),
        (SEQUENCES + 8, "Q", 3, "sequence 3 is not above the previous one"),
        (SEQUENCES + 16, "Q", 7, "does not start with the first sequence"),
        (EXPIRATIONS, "q", -1, "expiration is below 0"),
        (CORRELATION_IDS + 4, "i", 1, "correlation id is not UTF-8: it starts inside"),
        (CORRELATION_IDS + 12, "i", 2**30, "correlation ids have"),
        (CORRELATION_IDS + 16, "B", 0xFF, "correlation id is not UTF-8"),
        (KEYS + 4, "i", 3, "key offset 2 is below"),
        (KINDS, "B", 3, "kind is above"),
    ],
)
def test_batch_with_one_wrong_field_is_refused(at: int, form: str, value: int | bytes, text: str) -> None:
    encoded = rich()
    struct.pack_into("<" + form, encoded, at, value)
    with pytest.raises(BadBatch, match=text):
        MessageBatch.parse(encoded)


def test_run_flags_of_all_runs_are_validated() -> None:
    """Not only the highest ones: the second run has more flags than the first one."""
    encoded = rich()
    struct.pack_into("<I", encoded, RUN_0 + 32, 4)
    struct.pack_into("<I", encoded, RUN_1 + 32, 7)
    with pytest.raises(BadBatch, match="merged bodies, but"):
        MessageBatch.parse(encoded)


def with_all_reserved() -> bytearray:
    """One run of two messages with each reserved section. The constants below are its offsets."""
    batch = with_reserved(
        batch_from_bodies("t", [b"1", b"2"]),
        kinds=[0, 2],
        message_flags=[1, 2],
        order_stamps=[-5],
        headers=[b"\xff\xfe", b"\x80"],
    )
    return bytearray(batch.encode())


R_KINDS, R_FLAGS, R_STAMPS, R_HEADERS, R_HEAD_BYTES = 104, 112, 120, 128, 144


def test_example_batch_with_reserved_sections_has_the_expected_offsets() -> None:
    batch = MessageBatch.parse(with_all_reserved())
    assert batch._places == Places(
        kinds=R_KINDS, message_flags=R_FLAGS, order_stamps=R_STAMPS, headers=R_HEADERS
    )
    assert batch.head_bytes == R_HEAD_BYTES
    assert batch.order_stamps is not None
    assert batch.order_stamps.tolist() == [-5]


@pytest.mark.parametrize(
    ("at", "form", "value", "text"),
    [
        (6, "H", 0x1B0 | 0x40, "columns 0x1f0"),
        (6, "H", 0x0B0, "sections end at 128"),
        (6, "H", 0x130, "header"),
        (R_FLAGS, "B", 4, "message flags are above 3"),
        (R_FLAGS + 1, "B", 0x80, "message flags are above 3"),
        (R_HEADERS, "i", 1, "header offsets go from 1"),
        (R_HEADERS + 4, "i", 4, "header offset 2 is below"),
        (R_HEADERS + 8, "i", 2**30, "headers have"),
        (R_HEADERS + 8, "i", -1, "headers have"),
    ],
)
def test_batch_with_one_wrong_reserved_field_is_refused(at: int, form: str, value: int, text: str) -> None:
    encoded = with_all_reserved()
    struct.pack_into("<" + form, encoded, at, value)
    with pytest.raises(BadBatch, match=text):
        MessageBatch.parse(encoded)


def test_order_stamps_have_one_entry_per_run() -> None:
    runs = merge([batch_from_bodies("t", [b"1", b"2", b"3"]) for _ in range(2)])
    batch = MessageBatch.parse(with_reserved(runs, order_stamps=[7, 8]).encode())
    assert batch.head_bytes == runs.head_bytes + 16
    with pytest.raises(BadBatch, match="sections end at"):
        MessageBatch.parse(with_reserved(runs, order_stamps=[7, 8, 9]).encode())


def test_headers_above_the_limit_are_refused_before_an_allocation() -> None:
    batch = batch_from_bodies("t", [b"1", b"2"])
    fits = with_reserved(batch, headers=[bytes(headers_bytes_max), b""]).encode()
    assert MessageBatch.parse(fits).headers is not None
    encoded = with_reserved(batch, headers=[bytes(headers_bytes_max + 1), b""]).encode()
    tracemalloc.start()
    try:
        with pytest.raises(BadBatch, match=f"a header has {headers_bytes_max + 1} bytes. Use at most 8192"):
            MessageBatch.parse(encoded)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < headers_bytes_max


def test_empty_run_is_refused() -> None:
    encoded = rich()
    struct.pack_into("<I", encoded, RUN_0 + 24, 3)
    struct.pack_into("<I", encoded, RUN_1 + 24, 0)
    with pytest.raises(BadBatch, match="or a run is empty"):
        MessageBatch.parse(encoded)


@pytest.mark.parametrize("runs", [1, 2])
def test_sequences_that_pass_64_bits_are_refused(runs: int) -> None:
    batch = merge([batch_from_bodies("t", [b"1", b"2"], first_sequence=2**64 - 2) for _ in range(runs)])
    encoded = bytearray(batch.encode())
    assert int(MessageBatch.parse(encoded).sequences[1]) == 2**64 - 1
    struct.pack_into("<Q", encoded, RUN_0 + 8, 2**64 - 1)
    with pytest.raises(BadBatch, match="64 bits"):
        MessageBatch.parse(encoded)


def _with_topic(size: int) -> bytes:
    table = struct.pack("<ii", 0, size) + b"t" * size
    table += bytes(-len(table) & 7)
    head = 32 + 40 + 8 + len(table)
    header = struct.pack("<IBBHIIIIII", head, 0, 0, 0, 1, 1, 1, head, 0, 0)
    return header + struct.pack("<QQqIIII", 1, 1, 1, 1, 0, 0, 0) + bytes(8) + table


def test_topic_name_above_the_limit_is_refused() -> None:
    assert MessageBatch.parse(_with_topic(topic_bytes_max)).topics == ("t" * topic_bytes_max,)
    with pytest.raises(BadBatch, match="topic name has offsets 0 to 1025"):
        MessageBatch.parse(_with_topic(topic_bytes_max + 1))


def test_label_above_the_limit_is_refused() -> None:
    builder = BatchBuilder()
    builder.add("t", b"", key="k" * label_bytes_max)
    builder.add("t", b"", key="l")
    encoded = bytearray(builder.build().encode())
    at = MessageBatch.parse(encoded)._places.keys
    struct.pack_into("<i", encoded, at + 4, label_bytes_max + 1)  # the first key takes the second one's byte
    with pytest.raises(BadBatch, match=f"a key has {label_bytes_max + 1} bytes"):
        MessageBatch.parse(encoded)


@pytest.mark.parametrize(
    ("first", "end", "text"),
    [
        (1, 8, "key offsets go from 1 to 8"),
        (-1, 8, "key offsets go from -1 to 8"),
        (0, -1, "keys have -1 bytes"),
        (0, 9, "keys have 9 bytes"),
        (0, 2**31 - 1, "keys have 2147483647 bytes"),
    ],
)
def test_label_of_a_single_message_with_wrong_offsets_is_refused(first: int, end: int, text: str) -> None:
    builder = BatchBuilder()
    builder.add("t", b"", key="k" * 8)
    encoded = bytearray(builder.build().encode())
    at = MessageBatch.parse(encoded)._places.keys
    struct.pack_into("<ii", encoded, at, first, end)
    with pytest.raises(BadBatch, match=text):
        MessageBatch.parse(encoded)


def test_header_of_a_single_message_above_the_limit_is_refused() -> None:
    batch = batch_from_bodies("t", [b"1"])
    fits = with_reserved(batch, headers=[bytes(headers_bytes_max)]).encode()
    assert MessageBatch.parse(fits).cost == batch.cost + headers_bytes_max
    encoded = with_reserved(batch, headers=[bytes(headers_bytes_max + 1)]).encode()
    with pytest.raises(BadBatch, match=f"a header has {headers_bytes_max + 1} bytes"):
        MessageBatch.parse(encoded)


@pytest.mark.parametrize("others", [[], [b""]])
def test_body_above_the_limit_is_refused(others: list[bytes]) -> None:
    fits = batch_from_bodies("t", [bytes(message_bytes_max), *others])
    assert MessageBatch.parse(fits.encode()).body_bytes == message_bytes_max
    encoded = bytearray(fits.encode())
    encoded += bytes(8)
    struct.pack_into("<I", encoded, 0, len(encoded))
    struct.pack_into("<I", encoded, 24, message_bytes_max + 8)
    for i in range(len(others) + 1):
        struct.pack_into("<i", encoded, 72 + 4 * (i + 1), message_bytes_max + 8)
    with pytest.raises(BadBatch, match=r"too large|has 16777224 bytes"):
        MessageBatch.parse(encoded)


@pytest.mark.parametrize("size", [0, 8, 31, 33])
def test_batch_of_too_short_or_odd_size_is_refused(size: int) -> None:
    with pytest.raises(BadBatch, match=f"but has {size}|batch of {size} bytes"):
        MessageBatch.parse(bytes(size))


@pytest.mark.parametrize("shift", range(9))
@pytest.mark.parametrize("writable", [False, True])
def test_batch_at_any_buffer_offset_is_read(shift: int, writable: bool) -> None:
    encoded = bytes(rich())
    raw = bytes(8 + shift) + encoded
    view = memoryview(bytearray(raw) if writable else raw)[8 + shift :]
    batch = MessageBatch.parse(view)
    assert batch.encode() == encoded
    assert batch.offsets.flags.aligned
    assert batch.runs.flags.aligned
    assert not batch.offsets.flags.writeable
    assert batch.bodies.readonly
    copied = batch.bodies.obj is not view.obj
    assert copied == (shift % 8 != 0), "copied only when the address is not a multiple of 8"


def test_batch_in_buffers_of_other_shapes_is_read() -> None:
    encoded = bytes(rich())
    words = memoryview(array("Q", encoded))
    assert MessageBatch.parse(words).encode() == encoded
    every_second = memoryview(bytes(b for byte in encoded for b in (byte, 0)))[::2]
    assert MessageBatch.parse(every_second).encode() == encoded
