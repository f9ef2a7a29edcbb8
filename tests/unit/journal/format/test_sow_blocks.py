"""Blocks of base and delta files of SOW topics: columns, limits, and refused values."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.helpers.state_files import (
    BASE,
    BASE_BLOCKS,
    BLOCK_HEAD,
    DELTA,
    DELTA_BLOCKS,
    JOURNAL_ID,
    SMALL,
    TRAILER,
    Block,
    Row,
    base_entry,
    block_of,
    block_places,
    dead_keys_of,
    delta_entry,
    read,
    read_mended,
    refused,
    rows_of,
    state_file,
    written,
)
from tickertape.base.errors import JournalCorrupt
from tickertape.base.limits import message_bytes_max
from tickertape.batch.format import Labels
from tickertape.journal.format import sow_blocks, sow_checkpoint
from tickertape.journal.format.sow_blocks import DeadKeys, RecordBlock, key_column, key_list
from tickertape.journal.format.sow_checkpoint import (
    StateFile,
    StateFileWriter,
    base_name,
)
from tickertape.journal.limits import (
    sow_file_block_bytes_max,
    sow_file_key_bytes_max,
    sow_fingerprint_bytes_max,
)

replace = msgspec.structs.replace


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
        ({"correlation_ids": key_column([b"a", b"\xff"])}, "a correlation id is not UTF-8: 'utf-8' codec"),
        ({"correlation_ids": key_column([b"\xc3", b"\xa4"])}, "is not UTF-8: it starts inside a character"),
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
