"""Record batch: records of a query result, with publisher, sequence and timestamp of each record.

The server sends records as one run, because a run for each record would cost more than the record. Their
publishers, sequences and timestamps are marks beside the batch. Slices, selections and pickles need runs, so
the first of them builds a run for each record.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.batch.encode import assemble, batch_from_bodies
from tickertape.batch.format import I8, RUN_BY_SERVER, RUN_DTYPE, AnyArray, Columns, run_crcs
from tickertape.batch.message_batch import MessageBatch
from tickertape.wire.sow_command import RecordMarks

_COPIED: Final = (
    "count",
    "topics",
    "bodies",
    "body_bytes",
    "cost",
    "offsets",
    "topic_index",
    "keys",
    "correlation_ids",
    "expirations",
    "headers",
    "kinds",
    "message_flags",
)
"""Attributes that do not depend on runs."""
_MADE: Final = frozenset(
    {"_places", "_table", "columns", "has_sequences", "head_bytes", "nbytes", "run_count"}
)
"""Attributes of the batch with a run for each record."""


class RecordBatch(MessageBatch):
    """Records of a query result. It has the values of the marks, not those of the run of the server."""

    def __init__(self, records: MessageBatch, marks: RecordMarks) -> None:
        self.__dict__.update({name: getattr(records, name) for name in _COPIED})
        self.context = None
        self.publishers = np.ascontiguousarray(marks.publishers)
        self.sequences = np.ascontiguousarray(marks.sequences)
        self.timestamps = np.ascontiguousarray(marks.timestamps)
        for column in (self.publishers, self.sequences, self.timestamps):
            column.flags.writeable = False

    @cached_property
    def _publisher_numbers(self) -> Sequence[int]:
        return _numbers(self.publishers)

    @cached_property
    def _sequence_numbers(self) -> Sequence[int]:
        return _numbers(self.sequences)

    @cached_property
    def _timestamp_numbers(self) -> Sequence[int]:
        return _numbers(self.timestamps)

    @cached_property
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
        optional = None
        if self.topic_index is not None or self.keys is not None:
            optional = Columns(topic_index=self.topic_index, keys=self.keys)
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
