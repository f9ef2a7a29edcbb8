"""Queue admission: selects messages of the log that enter a queue, with priority, barrier and expiry.

Invariants:
- If bodies are examined, at most one bounded piece is examined at a time.
- Admission has no side effects: it returns the selected messages.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np
from pyroaring import BitMap64

from tickertape.batch import MessageBatch
from tickertape.batch.format import I8, Int64s
from tickertape.engine.limits import queue_step_messages_max
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.filter_context import FilterContext
from tickertape.engine.matching.interest import rows_of_topics
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.queues.state.records import bitmap_of
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.sessions.session import Subscriber
from tickertape.filter.batch_filter import bodies_of, piece_end, rows_by_type
from tickertape.filter.compiler.compile import NumericExpression, compile_value
from tickertape.journal.reading.log_view import LogPart
from tickertape.payload import message_type

QUEUE_ITSELF: Final = Subscriber(None, "", "")
"""The subscriber for expressions of a queue."""


class PriorityValues(Protocol):
    """Priorities of messages, from an expression."""

    def piece_end(self, batch: MessageBatch, low: int, /) -> int:
        """Return the end of the piece that starts at message `low`."""

    def of(self, batch: MessageBatch, indices: Int64s, /) -> list[int]:
        """Return the priority of each of the messages `indices`."""


class Admitted(NamedTuple):
    """Messages of a piece of the log that enter the queue."""

    positions: Int64s
    bitmap: BitMap64
    timestamps: Int64s
    expirations: Int64s | None
    """Lifetime in milliseconds, 0 for none."""
    priorities: list[int] | None
    barriers: BitMap64 | None
    filtered: int
    """Number of messages that the filter rejected."""


class QueueAdmission:
    """Decides which messages enter a queue."""

    def __init__(
        self, definition: QueueDefinition, compiler: InterestCompiler, priority: PriorityValues | None
    ) -> None:
        self.interest = compiler.compile(definition.topic, definition.filter, None, QUEUE_ITSELF)
        self._filter = self.interest.content
        barrier = definition.barrier_expression
        self._barrier = _content(compiler, definition.topic, barrier)
        self._priority = priority
        self.plain = self._filter is None and self._barrier is None and priority is None
        """Whether no body needs to be examined."""

    def wants(self, batch: MessageBatch) -> bool:
        """Return whether a batch has a topic of the queue."""
        return any(map(self.interest.covers, batch.topics))

    def look(self, part: LogPart, low: int) -> tuple[Admitted | None, int]:
        """Return the messages of a part that enter, from `low` to the end of a bounded piece, and the index
        of the next message."""
        batch = part.batch
        high = batch.count if self.plain else self._reach(batch, low)
        indices = self._own(batch, low, high)
        if not len(indices):
            return None, high
        passed = indices if self._filter is None else self._filter.matching_rows(batch, indices)
        filtered = len(indices) - len(passed)
        positions = part.positions_of(passed)
        barriers = None
        if self._barrier is not None and len(passed):
            at = np.searchsorted(passed, self._barrier.matching_rows(batch, passed))
            barriers = bitmap_of(positions[at])
        return Admitted(
            positions,
            bitmap_of(positions),
            batch.timestamps[passed],
            None if batch.expirations is None else batch.expirations[passed],
            None if self._priority is None else self._priority.of(batch, passed),
            barriers,
            filtered,
        ), high

    def _own(self, batch: MessageBatch, low: int, high: int) -> Int64s:
        if len(batch.topics) == 1 and batch.kinds is None:
            if not self.interest.covers(batch.topics[0]):
                high = low
            return np.arange(low, high, dtype=I8)
        own = np.array([self.interest.covers(topic) for topic in batch.topics])
        found: Int64s = rows_of_topics(batch, own)[low:high].nonzero()[0] + low
        return found

    def _reach(self, batch: MessageBatch, low: int) -> int:
        high = batch.count
        for content in (self._filter, self._barrier, self._priority):
            if content is not None:
                high = min(high, content.piece_end(batch, low))
        return high


def _content(compiler: InterestCompiler, topic: str, text: str | None) -> ContentFilter | None:
    return None if text is None else compiler.compile(topic, text, None, QUEUE_ITSELF).content


class Priorities:
    """A priority expression for messages of any type."""

    def __init__(self, text: str, filter_context: FilterContext) -> None:
        """Raises `BadFilter` for an invalid expression."""
        self._text = text
        self._filter_context = filter_context
        self._values: dict[str, NumericExpression] = {}

    def piece_end(self, batch: MessageBatch, low: int) -> int:
        """Return the end of the piece that starts at message `low`."""
        return piece_end(batch, low, queue_step_messages_max)

    def of(self, batch: MessageBatch, indices: Int64s) -> list[int]:
        """Return the priority of each of the messages `indices`."""
        if not len(indices):
            return []
        found = [0] * len(indices)
        for name, rows in rows_by_type(self._filter_context.type_of, batch, indices):
            at = np.searchsorted(indices, rows).tolist()
            for place, value in zip(at, self._of_type(name)(bodies_of(batch, rows)), strict=True):
                found[place] = value or 0
        return found

    def _of_type(self, name: str) -> NumericExpression:
        values = self._values.get(name)
        if values is None:
            values = self._values[name] = compile_value(self._text, message_type(name))
        return values
