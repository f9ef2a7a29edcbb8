"""Message batch: views, checksums, single messages."""

from __future__ import annotations

import struct

import pytest

from tickertape.base.errors import CorruptBatch, MessageTooLarge
from tickertape.batch import RUN_DTYPE, MessageBatch, batch_from_bodies, merge
from tickertape.batch.encode import check_body_bytes


def two_runs() -> MessageBatch:
    return merge(
        [
            batch_from_bodies("t", [b"aa", b"b"], publisher=1, first_sequence=10, timestamp=5),
            batch_from_bodies("t", [b"ccc"], publisher=2, first_sequence=3, timestamp=6),
        ]
    )


def test_corrupt_run_is_reported_with_publisher_and_sequence() -> None:
    encoded = bytearray(two_runs().encode())
    encoded[encoded.index(b"ccc")] ^= 1
    batch = MessageBatch.parse(encoded)
    with pytest.raises(CorruptBatch, match=r"run 1 of 2 \(publisher 2, first sequence 3, 1 messages\)"):
        batch.verify()


def test_moved_body_boundary_is_corrupt_despite_equal_bytes() -> None:
    encoded = bytearray(batch_from_bodies("t", [b"aa", b"b"]).encode())
    struct.pack_into("<i", encoded, 76, 1)
    batch = MessageBatch.parse(encoded)
    assert batch.bodies_list() == [b"a", b"ab"]
    with pytest.raises(CorruptBatch, match="run 0 of 1"):
        batch.verify()


def test_stamps_are_not_part_of_the_checksum() -> None:
    encoded = bytearray(batch_from_bodies("t", [b"aa", b"b"], publisher=1).encode())
    struct.pack_into("<QQq", encoded, 32, 9, 9, 9)
    MessageBatch.parse(encoded).verify()


def test_run_table_rows_match_the_documented_layout() -> None:
    assert RUN_DTYPE.itemsize == 40
    batch = MessageBatch.parse(two_runs().encode())
    assert [batch.run(i) for i in range(2)] == [tuple(row) for row in batch.runs.tolist()]
    assert batch.run_starts.tolist() == [0, 2, 3]


def test_parsed_batch_views_do_not_copy() -> None:
    encoded = two_runs().encode()
    batch = MessageBatch.parse(encoded)
    assert batch.bodies.obj is encoded
    assert [memoryview(buffer).obj for buffer in batch.buffers()] == [encoded]


@pytest.mark.parametrize("bodies", [[b"", b"", b""], [b"a"], [b""], [b"ab", b"cd"], [b"abc", b"", b"a\0\0"]])
def test_bodies_of_equal_and_mixed_lengths_read_back(bodies: list[bytes]) -> None:
    batch = MessageBatch.parse(batch_from_bodies("t", bodies).encode())
    assert batch.bodies_list() == bodies
    assert all(type(body) is bytes for body in batch.bodies_list())
    assert [batch.body(i) for i in range(len(bodies))] == bodies


@pytest.mark.parametrize("index", [-1, 3])
def test_body_index_outside_the_batch_raises_index_error(index: int) -> None:
    with pytest.raises(IndexError, match=f"Invalid message index {index}"):
        two_runs().body(index)


def test_missing_optional_columns_are_none() -> None:
    batch = two_runs()
    assert (batch.topic_index, batch.expirations, batch.kinds, batch.keys) == (None, None, None, None)
    assert (batch.correlation_id(0), batch.key(0), batch.expiration(0)) == (None, None, None)
    assert "3 messages, 2 runs, 6 B, t" in repr(batch)


def test_body_bytes_above_31_bits_are_refused() -> None:
    check_body_bytes(2**31 - 1)
    with pytest.raises(MessageTooLarge, match="Use smaller batches"):
        check_body_bytes(2**31)
