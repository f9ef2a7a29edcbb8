"""Conflation buffer: messages held for one subscription, within one memory limit for all buffers.

Invariants:
- A position counts as sent only if no earlier message is held.
- Above a total of `conflation_all_bytes_max`, messages are sent early.
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
"""Maximum delay of a message in intervals, independent of the wall clock."""


@dataclass(frozen=True, slots=True)
class ConflationOptions:
    """Within an interval of the recorded timeline, messages with the same key are delivered as one."""

    interval_micros: int
    fields: tuple[str, ...] = ()
    """Fields of the key, as written by the client. Empty: the topic is the key."""


class ConflationBudget:
    """Memory of all conflation buffers, in bytes."""

    def __init__(self) -> None:
        self.bytes = 0
        self.bytes_max = conflation_all_bytes_max
        self.stopping = False
        """Whether the server is stopping. Considered messages are then no longer held."""

    def count(self, nbytes: int) -> None:
        """Add a change of the memory of a buffer."""
        self.bytes += nbytes

    def stop(self) -> None:
        """Stop holding messages that are already considered."""
        self.stopping = True


class ConflationBuffer:
    """Held and released messages of one subscription. Log times are microseconds since 1970 UTC."""

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
        """Bytes that this buffer has counted in the budget."""
        self._over: deque[ConflatedMessage] = deque()
        self.sent = 0
        """Number of messages of the first batch that are already sent."""
        self._patience: tuple[int, float] | None = None
        """End of an interval as log time, and the monotonic time (seconds) at which it ends at the latest."""

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
        """Consider the messages `[low, high)` of a non-persistent topic, published at `time`."""
        keys = None
        if self._keys is not None:
            keys = [None] * low + self._keys.of(batch, low, high)
        unplaced = Selection(batch, None, batch.count, time)
        self._take(self._conflater.add(unplaced, keys, low, high, time))

    def settle(self, time: int) -> None:
        """End intervals up to `time`, after all messages are considered. Release everything during
        shutdown."""
        if self._memory.stopping:
            self.flush()
        else:
            self._take(self._conflater.advance(time))

    def settle_live(self, time: int) -> bool:
        """End intervals up to `time`. Return False if more messages remain than are released at a time."""
        self._take(self._conflater.advance(time, conflation_piece_messages_max))
        at = self._conflater.next_time()
        return at is None or at > time

    def patience(self, mono: float) -> float:
        """Return the monotonic time (seconds) at which to stop waiting for the log time.

        The log time stops while the wall clock is set back. Intervals then end by the monotonic clock."""
        at = self._conflater.next_time()
        assert at is not None, "nothing is held"
        if self._patience is None or self._patience[0] != at:
            self._patience = at, mono + _PATIENCE * self.interval_seconds
        return self._patience[1]

    def lose_patience(self, mono: float, time: int) -> None:
        """Release everything if the maximum delay is over but the log time `time` has not reached the
        interval end.

        If it has, intervals end by log time as in a replay."""
        at = self.next_time()
        if self._patience is not None and self._patience[0] == at and self._patience[1] <= mono and time < at:
            self.flush()

    def flush(self, messages_max: int | None = None) -> None:
        """Release everything, or the oldest `messages_max` messages."""
        self._patience = None
        self._take(self._conflater.flush(messages_max))

    def forget(self) -> None:
        """Discard everything."""
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
        """Whether released messages wait to be sent."""
        return bool(self._over)

    @property
    def first(self) -> ConflatedMessage:
        """The messages to send next, starting at message `sent`."""
        return self._over[0]

    def take(self) -> list[MessageBatch]:
        """Remove and return all released messages."""
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
        """Position of the oldest unsent message. None if all are sent."""
        if self._over:
            return int(self._over[0].positions[self.sent])
        return self._conflater.held_position

    @property
    def interval_seconds(self) -> float:
        """Length of the interval."""
        return self._conflater.interval_micros / 1e6


class ConflationBuffers:
    """Creates buffers that share one budget."""

    def __init__(self, compiler: InterestCompiler) -> None:
        self._compiler = compiler
        self.budget = ConflationBudget()

    def make(self, interest: Interest, options: ConflationOptions) -> ConflationBuffer:
        """Return a new buffer. Raises `BadOption` if messages of `interest` cannot have the key."""
        keys, fields, context = None, options.fields, self._compiler.filter_context
        if fields:
            keys = self._compiler.for_types(interest, lambda types: ConflationKeys(fields, context, types))
        return ConflationBuffer(options, keys, interest.content, self.budget)
