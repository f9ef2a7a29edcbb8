"""Conflation buffer: messages held for one subscription, under one memory bound for all.

Invariants:
- No position counts as sent while an earlier message is held.
- Above `conflation_all_bytes_max` in all, messages are sent early.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from tickertape.batch import MessageBatch
from tickertape.engine.conflation.conflater import ConflatedMessage, Conflater
from tickertape.engine.conflation.keys import ConflationKeys
from tickertape.engine.limits import conflation_all_bytes_max, conflation_piece_messages_max
from tickertape.engine.log_reads.selection import Selection
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.interest import Interest
from tickertape.engine.matching.interest_compiler import InterestCompiler

_PATIENCE: Final = 2
"""Intervals after which a message is released at the latest, whatever the wall clock does."""


@dataclass(frozen=True, slots=True)
class ConflationOptions:
    """Messages of one key within an interval of the recorded timeline are delivered as one."""

    interval_micros: int
    fields: tuple[str, ...] = ()
    """Fields of the key, as they were written; none: the topic is the key."""


class ConflationBudget:
    """Bytes that all conflation holds."""

    def __init__(self) -> None:
        self.bytes = 0
        self.bytes_max = conflation_all_bytes_max
        self.stopping = False
        """Whether the server stops: nothing considered is held back then."""

    def count(self, nbytes: int) -> None:
        """Count bytes that a buffer holds more, or fewer."""
        self.bytes += nbytes

    def stop(self) -> None:
        """Hold nothing back any more once everything was considered."""
        self.stopping = True


class ConflationBuffer:
    """Held and released messages. Log times are microseconds since 1970 UTC."""

    def __init__(
        self,
        conflation: ConflationOptions,
        keys: ConflationKeys | None,
        content: ContentFilter | None,
        memory: ConflationBudget,
    ) -> None:
        self._conflater = Conflater(conflation.interval_micros)
        self._keys = keys
        self._content = content
        self._memory = memory
        self._counted = 0
        """Bytes counted in the budget."""
        self._over: deque[ConflatedMessage] = deque()
        self.sent = 0
        """Messages of the first batch that are sent."""
        self._patience: tuple[int, float] | None = None
        """The log time at which an interval ends, and the monotonic second at which it ends at the latest."""

    def consider(self, selection: Selection, low: int, high: int, time: int | None) -> None:
        """Consider the messages `[low, high)`, and end intervals up to the log time `time`."""
        if selection.batch is not None and low < high:
            keys = None
            if self._keys is not None:
                keys = [None] * low + self._keys.of(selection.batch, low, high)
            self._take(self._conflater.add(selection, keys, low, high))
        if time is not None:
            self._take(self._conflater.advance(time))

    def consider_live(self, batch: MessageBatch, low: int, high: int, time: int) -> None:
        """Consider the messages `[low, high)` of a topic that is not recorded, published at `time`."""
        keys = None
        if self._keys is not None:
            keys = [None] * low + self._keys.of(batch, low, high)
        unplaced = Selection(batch, None, batch.count, time)
        self._take(self._conflater.add(unplaced, keys, low, high, time))

    def settle(self, time: int) -> None:
        """End intervals up to `time`: all messages are considered. Release all when the server stops."""
        if self._memory.stopping:
            self.flush()
        else:
            self._take(self._conflater.advance(time))

    def settle_live(self, time: int) -> bool:
        """End intervals up to `time`; return False when more is left than is released at a time."""
        self._take(self._conflater.advance(time, conflation_piece_messages_max))
        at = self._conflater.next_time()
        return at is None or at > time

    def patience(self, mono: float) -> float:
        """Return until when to wait for the clock of the log, monotonic seconds. That clock stops while the
        wall clock is set back: intervals end by this one then."""
        at = self._conflater.next_time()
        assert at is not None, "nothing is held"
        if self._patience is None or self._patience[0] != at:
            self._patience = at, mono + _PATIENCE * self.interval_seconds
        return self._patience[1]

    def lose_patience(self, mono: float, time: int) -> None:
        """Release everything if the maximum delay is over and the clock of the log, at `time`, has not
        reached the end of the interval. Where it has, the result is that of a replay."""
        at = self.next_time()
        if self._patience is not None and self._patience[0] == at and self._patience[1] <= mono and time < at:
            self.flush()

    def flush(self, messages_max: int | None = None) -> None:
        """Release everything, or the oldest `messages_max`."""
        self._patience = None
        self._take(self._conflater.flush(messages_max))

    def forget(self) -> None:
        """Drop everything."""
        self._memory.count(-self._counted)
        self._counted = 0

    def _take(self, over: list[ConflatedMessage]) -> None:
        held, memory = self._conflater.held_bytes, self._memory
        beyond = memory.bytes - self._counted + held - memory.bytes_max
        if beyond > 0 and held:
            over = over + self._conflater.shrink(max(held - beyond, 0))
            held = self._conflater.held_bytes
        memory.count(held - self._counted)
        self._counted = held
        content = self._content
        if content is not None:
            over = [one._replace(batch=content.project(one.batch)) for one in over]
        self._over.extend(over)

    @property
    def waits(self) -> bool:
        """Whether messages wait to be sent."""
        return bool(self._over)

    @property
    def first(self) -> ConflatedMessage:
        """The messages to send next, from message `sent` on."""
        return self._over[0]

    def take(self) -> list[MessageBatch]:
        """Remove and return all messages to send."""
        batches = [one.batch for one in self._over]
        self._over.clear()
        return batches

    def advance(self, batch: MessageBatch, count: int) -> None:
        """Count sent messages of the first batch."""
        self.sent += count
        if self.sent == batch.count:
            self._over.popleft()
            self.sent = 0

    def next_time(self) -> int | None:
        """Return the log time at which the next interval ends, or None."""
        return self._conflater.next_time()

    @property
    def unsent_position(self) -> int | None:
        """Position of the oldest message that is not sent; None: all are."""
        if self._over:
            return int(self._over[0].positions[self.sent])
        return self._conflater.held_position

    @property
    def interval_seconds(self) -> float:
        """Length of the interval."""
        return self._conflater.interval_micros / 1e6


class ConflationBuffers:
    """Creates buffers, all under one budget."""

    def __init__(self, compiler: InterestCompiler) -> None:
        self._compiler = compiler
        self.budget = ConflationBudget()

    def make(self, interest: Interest, options: ConflationOptions) -> ConflationBuffer:
        """Return a new buffer. Raises `BadOption` for a key that messages of `interest` cannot have."""
        keys, fields, context = None, options.fields, self._compiler.filter_context
        if fields:
            keys = self._compiler.for_types(interest, lambda types: ConflationKeys(fields, context, types))
        return ConflationBuffer(options, keys, interest.content, self.budget)
