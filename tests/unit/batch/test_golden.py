"""Small batches, byte by byte as docs/formats/batch.md documents them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.helpers.reserved_batches import with_reserved
from tickertape.batch import BatchBuilder, MessageBatch, Stamp, batch_from_bodies, merge

GOLDEN = Path(__file__).parents[2] / "golden"


def plain() -> MessageBatch:
    """One run, one topic, no optional column."""
    return batch_from_bodies(
        "orders",
        [b'{"id": 1}', b"", b'{"id": 3}'],
        publisher=0x1122334455667788,
        first_sequence=41,
        timestamp=7,
    )


def full() -> MessageBatch:
    """Two runs, two topics, every column that is written."""
    first, second = BatchBuilder(), BatchBuilder()
    first.add("orders", b"one", sequence=10, correlation_id="c-1", expiration_ms=1500)
    first.add("größe", b"two", sequence=12, key="k\N{EURO SIGN}")
    first.add("orders", b"control", sequence=20, kind=1)
    second.add("orders", b"four", sequence=5)
    stamps = [Stamp(3, 10, 1_790_000_000_000_000), Stamp(2**64 - 1, 5, 1_790_000_000_000_001)]
    return merge([first.build(publisher=3), second.build(publisher=4)], stamps)


def reserved() -> MessageBatch:
    """Three runs with every part of the format that is checked and kept, but not written yet."""
    runs = [
        batch_from_bodies("orders", bodies, publisher=3, first_sequence=first, timestamp=stamp)
        for first, stamp, bodies in (
            (10, 1_790_000_000_000_000, [b"one"]),
            (5, 1_790_000_000_000_001, [b"two", b"three"]),
            (12, 1_790_000_000_000_002, [b"four"]),
        )
    ]
    return with_reserved(
        merge(runs),
        run_flags=[1, 3, 5],
        origins=[0, 7, 0],
        kinds=[0, 1, 2, 0],
        message_flags=[0, 1, 0, 1],
        order_stamps=[1_790_000_000_000_000, 1_789_999_999_000_000, 1_790_000_000_000_002],
        headers=[b"\x81\xa6region\xa2eu", b"", b"\x81\xa1n\xc4\x02\xff\x00", b""],
    )


@pytest.mark.parametrize(("name", "batch"), [("plain", plain()), ("full", full()), ("reserved", reserved())])
def test_golden_batch_file_equals_the_built_batch(name: str, batch: MessageBatch) -> None:
    golden = (GOLDEN / f"batch-{name}.bin").read_bytes()
    assert batch.encode() == golden
    parsed = MessageBatch.parse(golden)
    parsed.verify()
    assert parsed.encode() == golden
    assert b"".join(bytes(buffer) for buffer in batch.buffers()) == golden


def test_golden_plain_batch_matches_the_format_document() -> None:
    golden = (GOLDEN / "batch-plain.bin").read_bytes()
    assert golden[:32].hex(" ", 4) == (
        "80000000 00000000 03000000 01000000 01000000 68000000 12000000 00000000"  # header
    )
    assert golden[32:72].hex(" ", 8) == (
        "8877665544332211 2900000000000000 0700000000000000 03000000b2893928 0000000000000000"  # run
    )
    assert crc32c(struct.pack("<iii", 9, 0, 9) + b'{"id": 1}{"id": 3}') == 0x283989B2
    assert golden[72:88].hex(" ", 4) == "00000000 09000000 09000000 12000000"  # offsets
    assert golden[88:104].hex(" ", 4) == "00000000 06000000 6f726465 72730000"  # topics
    assert golden[104:] == b'{"id": 1}{"id": 3}' + bytes(6)


def test_golden_full_batch_decodes_to_the_written_values() -> None:
    batch = MessageBatch.parse((GOLDEN / "batch-full.bin").read_bytes())
    assert batch.topics == ("orders", "größe")
    assert batch.runs["count"].tolist() == [3, 1]
    assert batch.sequences.tolist() == [10, 12, 20, 5]
    assert batch.publishers.tolist() == [3, 3, 3, 2**64 - 1]
    assert [batch.topic(i) for i in range(4)] == ["orders", "größe", "orders", "orders"]
    assert [batch.key(i) for i in range(4)] == [None, "k\N{EURO SIGN}", None, None]
    assert [batch.correlation_id(i) for i in range(4)] == ["c-1", None, None, None]
    assert batch.expirations is not None
    assert batch.expirations.tolist() == [1500, 0, 0, 0]
    assert batch.kinds is not None
    assert batch.kinds.tolist() == [0, 0, 1, 0]
    assert batch.bodies_list() == [b"one", b"two", b"control", b"four"]


def test_golden_reserved_batch_decodes_to_the_written_values() -> None:
    golden = (GOLDEN / "batch-reserved.bin").read_bytes()
    assert golden[6:8] == b"\xb0\x01"  # columns 4, 5, 7 and 8
    assert golden[104:112].hex(" ", 4) == "03000000 07000000"  # flags and origin of the second run
    batch = MessageBatch.parse(golden)
    assert batch.runs["flags"].tolist() == [1, 3, 5]
    assert batch.runs["origin"].tolist() == [0, 7, 0]
    assert batch.run(1).origin == 7
    assert batch.kinds is not None
    assert batch.kinds.tolist() == [0, 1, 2, 0]
    assert batch.message_flags is not None
    assert batch.message_flags.tolist() == [0, 1, 0, 1]
    assert batch.order_stamps is not None
    assert (batch.order_stamps - batch.runs["timestamp"]).tolist() == [0, -1_000_001, 0]
    assert batch.headers is not None
    assert batch.headers.offsets.tolist() == [0, 11, 11, 18, 18]
    assert bytes(batch.headers.text) == b"\x81\xa6region\xa2eu\x81\xa1n\xc4\x02\xff\x00"
