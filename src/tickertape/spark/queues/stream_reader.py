"""Streaming source over a message queue, with at-least-once processing.

The driver consumes the queue and passes the messages of a micro-batch to the tasks. It acknowledges them when
Spark requests the next micro-batch, because the batch is then in the commit log.

Invariants:
* Messages of a micro-batch that Spark has not committed are not acknowledged. * A repeated micro-batch never
has other messages, because a sink that knows its number would drop them. Each task attempt gets the same
rows. After a restart the batch is empty, and its messages are in later batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tickertape.base.errors import UsageError
from tickertape.batch import MessageBatch, slice_batch
from tickertape.spark.common.column_block import block_of_batch
from tickertape.spark.common.schema import POSITION, ColumnSelection, record_batches
from tickertape.spark.limits import source_part_bytes_max
from tickertape.spark.queues.consumer import QueueConsumer
from tickertape.spark.queues.options import QueueSourceOptions
from tickertape.spark.source.offsets import Written
from tickertape.spark.source.task_reader import log

_LOOK_SECONDS: Final = 0.2
"""Time to wait for messages in the queue before checking the queue again."""

_LAST_SECONDS: Final = 0.5
"""Time to wait for messages that were delivered just before the queue was found empty."""


@dataclass(frozen=True)
class QueuePartition(InputPartition):
    """The messages of one task, as encoded batches."""

    batches: tuple[bytes, ...]


class _Batch(NamedTuple):
    """The current micro-batch."""

    start: int
    end: int
    messages: list[MessageBatch]


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query over a queue. Only the driver has a connection.

    An offset counts the messages that the query received since its first start."""

    def __init__(self, wanted: QueueSourceOptions, columns: ColumnSelection) -> None:
        if columns.numbered:
            raise UsageError(
                f"Cannot read column {POSITION} from a queue. Leave it out of the schema. Or read a topic "
                "instead: option 'topic' in place of 'queue'."
            )
        self._wanted = wanted
        self._columns = columns
        self._consumer: QueueConsumer | None = None
        self._batch: _Batch | None = None
        self._target: int | None = None
        """End of the log at the start of a query that reads the existing messages and stops."""
        self._finished = False

    # -- driver calls by Spark ----------------------------------------------------------------------------

    def initialOffset(self) -> Written:
        """Return the offset of a new query."""
        return self._written(0)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the size of a micro-batch."""
        return ReadMaxRows(self._wanted.rows_max)

    def latestOffset(self, start: Written, limit: ReadLimit) -> Written:
        """Acknowledge the micro-batch that ends at `start`, and take the messages of the next one.

        Raises `Disconnected`, and the error with which the server ends the subscription."""
        if isinstance(limit, ReadAllAvailable):
            raise UsageError(
                "Cannot read a queue with trigger(once=True): Spark does not report the commit of the only "
                "batch. Use trigger(availableNow=True)."
            )
        begin = self._read(start)
        batch = self._batch
        if batch is not None and batch.start == begin:
            return self._written(batch.end)
        self._acknowledge(begin)
        messages = [] if self._finished else self._take()
        if not messages:
            return start
        end = begin + sum(one.count for one in messages)
        self._batch = _Batch(begin, end, messages)
        return self._written(end)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the run end when the queue is empty, or a micro-batch has only messages accepted from now
        on."""
        self._target = self._connected().end_of_log()

    def partitions(self, start: Written, end: Written) -> list[InputPartition]:
        """Return the tasks of a micro-batch. Empty if another driver planned it."""
        begin, after = self._read(start), self._read(end)
        if begin == after:
            return []
        batch = self._batch
        if batch is None or (batch.start, batch.end) != (begin, after):
            log.warning(
                "queue %r: the batch of messages %d to %d was planned before a restart and is now empty. Its "
                "messages are redelivered in later batches unless they were acknowledged.",
                self._wanted.queue,
                begin,
                after,
            )
            return []
        return [*parts_of(batch.messages, self._wanted.partitions_min)]

    def commit(self, end: Written) -> None:
        """Acknowledge the micro-batch that ends at `end`, unless it is acknowledged. Raises as
        `latestOffset`."""
        self._acknowledge(self._read(end))

    def stop(self) -> None:
        """Close the connection. A micro-batch that may have failed is not acknowledged."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._batch = None

    # -- tasks --------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a task."""
        assert isinstance(partition, QueuePartition)
        pieces = (block_of_batch(MessageBatch.parse(batch)) for batch in partition.batches)
        yield from record_batches(pieces, self._columns)

    # -- internals ----------------------------------------------------------------------------------------

    def _connected(self) -> QueueConsumer:
        if self._consumer is None:
            self._consumer = QueueConsumer(self._wanted)
        return self._consumer

    def _acknowledge(self, end: int) -> None:
        batch = self._batch
        if batch is not None and batch.end == end:
            self._connected().acknowledge(batch.messages)
            self._batch = None

    def _take(self) -> list[MessageBatch]:
        consumer, target = self._connected(), self._target
        messages = consumer.take()
        if target is None:
            return messages
        looks = max(1, int(self._wanted.timeout_seconds / _LOOK_SECONDS))
        while not messages and looks and consumer.has_more():
            messages = consumer.take(_LOOK_SECONDS)
            looks -= 1
        messages = messages or consumer.take(_LAST_SECONDS)
        self._finished = not messages or consumer.position_of_oldest(messages) >= target
        return messages

    def _written(self, taken: int) -> Written:
        return {"queue": self._wanted.queue, "taken": taken}

    def _read(self, written: Mapping[str, Any]) -> int:
        queue, taken = written.get("queue"), written.get("taken")
        if queue != self._wanted.queue or type(taken) is not int or taken < 0:
            raise UsageError(
                f"Cannot continue the query: its checkpoint has the offset {dict(written)}, which is not "
                f"an offset of the queue {self._wanted.queue!r}. Give the query another checkpointLocation."
            )
        return taken


def parts_of(messages: Sequence[MessageBatch], parts_min: int) -> list[QueuePartition]:
    """Return the messages of a micro-batch, in order, in at least `parts_min` parts if possible.

    No part exceeds the byte limit of a task."""
    total = sum(batch.count for batch in messages)
    rows_max = -(-total // max(1, min(parts_min, total)))
    parts: list[QueuePartition] = []
    some: list[bytes] = []
    rows = size = 0
    for batch in messages:
        at = 0
        while at < batch.count:
            room = int(batch.offsets[at]) + source_part_bytes_max - size
            fits = int(batch.offsets[1:].searchsorted(room, "right")) - at
            count = min(batch.count - at, rows_max - rows, fits if rows else max(fits, 1))
            if count > 0:
                part = slice_batch(batch, at, at + count)
                some.append(part.encode())
                at, rows, size = at + count, rows + count, size + part.body_bytes
            if count <= 0 or rows == rows_max:
                parts.append(QueuePartition(tuple(some)))
                some, rows, size = [], 0, 0
    if some:
        parts.append(QueuePartition(tuple(some)))
    return parts
