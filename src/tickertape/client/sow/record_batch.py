"""Record batch: records of a query result, with publisher, sequence and timestamp of each record.

The server sends records as one run, because a run for each record would cost more than the record. Their
publishers, sequences and timestamps are marks beside the batch. Many readers use only bodies, so the marks
are decoded at their first use. Slices, selections and pickles need runs, so the first of them builds a run
for each record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.batch.encode import assemble, batch_from_bodies
from tickertape.batch.format import (
    I8,
    RUN_BY_SERVER,
    RUN_DTYPE,
    AnyArray,
    Columns,
    Int64s,
    UInt64s,
    read_only,
    run_crcs,
)
from tickertape.batch.lazy_attribute import Lazy
from tickertape.batch.message_batch import MessageBatch
from tickertape.wire.sow_command import RecordMarks, check_marks, decode_marks

_MADE: Final = frozenset(
    {"_places", "_table", "columns", "has_sequences", "head_bytes", "nbytes", "run_count"}
)
"""Attributes of the batch with a run for each record."""


def _of_records(name: str) -> Lazy[Any]:
    """Return an attribute that is the one of the received batch."""

    def read(batch: RecordBatch) -> Any:
        return getattr(batch._records, name)

    read.__name__ = name
    return Lazy(read)


class RecordBatch(MessageBatch):
    """Records of a query result. It has the values of the marks, not those of the run of the server."""

    def __init__(self, records: MessageBatch, marks: bytes) -> None:
        """`marks`: encoded marks of the records. Raises `BadCommand` for another number of marks."""
        check_marks(marks, records.count)
        self._records = records
        self._marks = marks
        self.count = records.count
        self.topics = records.topics
        self.bodies = records.bodies
        self.body_bytes = records.body_bytes
        self.cost = records.cost
        self.context = None

    # Columns that do not depend on runs.
    offsets = _of_records("offsets")
    topic_index = _of_records("topic_index")
    keys = _of_records("keys")
    correlation_ids = _of_records("correlation_ids")
    expirations = _of_records("expirations")
    headers = _of_records("headers")
    kinds = _of_records("kinds")
    message_flags = _of_records("message_flags")

    # -- marks ------------------------------------------------------------------------------------------

    @Lazy
    def _columns(self) -> RecordMarks:
        return decode_marks(self._marks, self.count)

    @Lazy
    def publishers(self) -> UInt64s:
        return read_only(np.ascontiguousarray(self._columns.publishers))

    @Lazy
    def sequences(self) -> UInt64s:
        return read_only(np.ascontiguousarray(self._columns.sequences))

    @Lazy
    def timestamps(self) -> Int64s:
        return read_only(np.ascontiguousarray(self._columns.timestamps))

    @Lazy
    def _publisher_numbers(self) -> Sequence[int]:
        return _numbers(self.publishers)

    @Lazy
    def _sequence_numbers(self) -> Sequence[int]:
        return _numbers(self.sequences)

    @Lazy
    def _timestamp_numbers(self) -> Sequence[int]:
        return _numbers(self.timestamps)

    @Lazy
    def _topic_numbers(self) -> Sequence[int]:
        index = self.topic_index
        return [0] * self.count if index is None else _numbers(index)

    def __getattr__(self, name: str) -> Any:
        if name not in _MADE:
            raise AttributeError(f"MessageBatch has no attribute {name!r}")
        self._make_runs()
        return self.__dict__[name]

    def _make_runs(self) -> None:
        """Build a run for each record. Threads may do this concurrently."""
        count = self.count
        runs = np.zeros(count, RUN_DTYPE)
        runs["publisher"], runs["first_sequence"] = self.publishers, self.sequences
        runs["timestamp"], runs["count"], runs["flags"] = self.timestamps, 1, RUN_BY_SERVER
        rows = np.arange(count, dtype=I8)
        runs["crc"] = run_crcs(self.offsets, self.bodies, rows, np.ones(count, I8))
        optional = Columns(
            topic_index=self.topic_index,
            expirations=self.expirations,
            correlation_ids=self.correlation_ids,
            keys=self.keys,
            headers=self.headers,
        )
        made = assemble(
            runs=runs.tobytes(),
            offsets=self.offsets.tobytes(),
            bodies=self.bodies,
            topics=self.topics,
            optional=optional,
        )
        self.__dict__.update({name: made.__dict__[name] for name in _MADE})


def _numbers(column: AnyArray) -> Sequence[int]:
    numbers: list[int] = column.tolist()
    return numbers


def marker(topic: str, as_of: Bookmark | None) -> MessageBatch:
    """Return a batch with one empty message that marks the start or end of a result. It costs no credit."""
    publisher, sequence = (0, 0) if as_of is None else as_of
    batch = batch_from_bodies(topic, [b""], publisher=publisher, first_sequence=sequence)
    batch.cost = 0
    return batch
