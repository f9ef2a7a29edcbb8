"""Micro-batches of a queue: acknowledged after the commit, and the same in each attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.unit.spark.common.test_schema import struct
from tickertape.base.errors import UsageError
from tickertape.batch import MessageBatch, batch_from_bodies
from tickertape.spark.common.schema import columns_of
from tickertape.spark.limits import source_part_bytes_max
from tickertape.spark.queues.options import queue_options
from tickertape.spark.queues.stream_reader import QueuePartition, QueueStreamReader, parts_of

LIMIT = ReadMaxRows(100)


def batch_of(first: int, count: int, size: int = 10) -> MessageBatch:
    bodies = [b"%0*d" % (size, n) for n in range(first, first + count)]
    return batch_from_bodies("jobs", bodies, publisher=7, first_sequence=first, timestamp=1_000 * first)


class Consumer:
    """A queue whose batches become available one by one. Sequences equal positions."""

    def __init__(self, *batches: MessageBatch) -> None:
        self.waiting = list(batches)
        self.acknowledged: list[int] = []
        self.closed = False
        self.end = 10**6

    def take(self, wait_seconds: float = 0.0) -> list[MessageBatch]:
        return [self.waiting.pop(0)] if self.waiting else []

    def acknowledge(self, batches: Sequence[MessageBatch]) -> None:
        self.acknowledged += [int(n) for batch in batches for n in batch.sequences]

    def has_more(self) -> bool:
        return bool(self.waiting)

    def end_of_log(self) -> int:
        return self.end

    def position_of_oldest(self, batches: Sequence[MessageBatch]) -> int:
        return min(int(batch.sequences.min()) for batch in batches)

    def close(self) -> None:
        self.closed = True


def reader_of(consumer: Consumer, schema: str = "data binary, sequence long") -> Any:
    wanted = queue_options({"servers": "tcp://127.0.0.1:9007", "queue": "work", "maxRowsPerTrigger": "100"})
    reader = QueueStreamReader(wanted, columns_of(struct(schema)))
    reader._consumer = consumer  # type: ignore[assignment]
    return reader


def rows(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    found = []
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            found += batch.column("sequence").to_pylist()
    return found


def test_batch_is_acknowledged_when_the_next_batch_is_planned() -> None:
    consumer = Consumer(batch_of(1, 5), batch_of(6, 3))
    reader = reader_of(consumer)
    begin = reader.initialOffset()
    first = reader.latestOffset(begin, LIMIT)
    assert first == {"queue": "work", "taken": 5}
    assert rows(reader, begin, first) == [1, 2, 3, 4, 5]
    assert reader.latestOffset(begin, LIMIT) == first, "the batch is not committed yet"
    assert consumer.acknowledged == []
    second = reader.latestOffset(first, LIMIT)
    assert (second["taken"], consumer.acknowledged) == (8, [1, 2, 3, 4, 5])
    assert rows(reader, first, second) == rows(reader, first, second) == [6, 7, 8]
    assert reader.latestOffset(second, LIMIT) == second
    assert consumer.acknowledged == [*range(1, 9)]


def test_commit_acknowledges_the_batch_once() -> None:
    consumer = Consumer(batch_of(1, 5))
    reader = reader_of(consumer)
    end = reader.latestOffset(reader.initialOffset(), LIMIT)
    reader.commit(reader.initialOffset())
    assert consumer.acknowledged == []
    reader.commit(end)
    reader.commit(end)
    assert reader.latestOffset(end, LIMIT) == end
    assert consumer.acknowledged == [1, 2, 3, 4, 5]


def test_batch_of_an_earlier_driver_is_empty_and_not_acknowledged() -> None:
    """A sink drops a batch with a known number even if the messages differ."""
    consumer = Consumer(batch_of(1, 5))
    reader = reader_of(consumer)
    start, end = {"queue": "work", "taken": 40}, {"queue": "work", "taken": 45}
    assert reader.partitions(start, end) == []
    reader.commit(end)
    assert consumer.acknowledged == []
    following = reader.latestOffset(end, LIMIT)
    assert rows(reader, end, following) == [1, 2, 3, 4, 5]
    assert reader.partitions(start, following) == [], "a batch of two drivers is empty"


def test_stop_acknowledges_nothing() -> None:
    consumer = Consumer(batch_of(1, 5))
    reader = reader_of(consumer)
    reader.latestOffset(reader.initialOffset(), LIMIT)
    reader.stop()
    assert (consumer.acknowledged, consumer.closed) == ([], True)


def test_available_now_ends_when_the_queue_is_empty() -> None:
    consumer = Consumer(batch_of(1, 5), batch_of(6, 3))
    reader = reader_of(consumer)
    reader.prepareForTriggerAvailableNow()
    offset = reader.initialOffset()
    offsets = []
    while (following := reader.latestOffset(offset, LIMIT)) != offset:
        offsets.append(following["taken"])
        offset = following
    assert offsets == [5, 8]
    assert consumer.acknowledged == [*range(1, 9)]
    consumer.waiting.append(batch_of(20, 1))
    assert reader.latestOffset(offset, LIMIT) == offset, "the run has ended"


def test_available_now_ends_at_messages_newer_than_the_start() -> None:
    consumer = Consumer(*(batch_of(n, 1) for n in range(1, 100)))
    consumer.end = 6
    reader = reader_of(consumer)
    reader.prepareForTriggerAvailableNow()
    offset = reader.initialOffset()
    while (following := reader.latestOffset(offset, LIMIT)) != offset:
        offset = following
    assert consumer.acknowledged == [1, 2, 3, 4, 5, 6]


def test_once_trigger_is_refused() -> None:
    consumer = Consumer(batch_of(1, 5))
    reader = reader_of(consumer)
    assert reader.getDefaultReadLimit() == LIMIT
    with pytest.raises(UsageError, match="availableNow=True"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert len(consumer.waiting) == 1


@pytest.mark.parametrize("written", [{"journal": "a", "position": 3}, {"queue": "other", "taken": 3}, {}])
def test_checkpoint_of_another_source_is_refused(written: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="another checkpointLocation"):
        reader_of(Consumer()).latestOffset(written, LIMIT)


def test_position_column_is_refused() -> None:
    with pytest.raises(UsageError, match="Cannot read column position"):
        reader_of(Consumer(), "position long")


@pytest.mark.parametrize(
    ("sizes", "parts_min", "expected"),
    [
        ([10] * 7, 1, [7]),
        ([10] * 7, 3, [3, 3, 1]),
        ([10] * 2, 5, [1, 1]),
        ([source_part_bytes_max // 2] * 5, 1, [2, 2, 1]),
        ([10, source_part_bytes_max, 10], 1, [1, 1, 1]),
    ],
)
def test_partitions_are_bounded_and_ordered(sizes: list[int], parts_min: int, expected: list[int]) -> None:
    bodies = [b"x" * size for size in sizes]
    whole = batch_from_bodies("jobs", bodies, publisher=7, first_sequence=1, timestamp=1)
    for batches in (
        [whole],
        [
            batch_from_bodies("jobs", [body], publisher=7, first_sequence=n + 1, timestamp=1)
            for n, body in enumerate(bodies)
        ],
    ):
        parts = parts_of(batches, parts_min)
        found = [[MessageBatch.parse(one) for one in part.batches] for part in parts]
        assert [sum(one.count for one in part) for part in found] == expected
        sequences = np.concatenate([one.sequences for part in found for one in part])
        assert sequences.tolist() == [*range(1, len(sizes) + 1)]
        assert all(isinstance(part, QueuePartition) for part in parts)
