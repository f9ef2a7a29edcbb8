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
"""So many times its interval something is held at the most, whatever the wall clock does."""


@dataclass(frozen=True, slots=True)
class ConflationOptions:
    """Messages of one key within an interval of the recorded timeline are delivered as one."""

    interval_micros: int
    fields: tuple[str, ...] = ()
    """Identifiers that make the key, as they were written; none = the whole topic."""


class ConflationBudget:
    """Bytes that all conflation holds."""

    def __init__(self) -> None:
        self.bytes = 0
        self.bytes_max = conflation_all_bytes_max
        self.stopping = False
        """The server stops: what was considered is not held back any more."""


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
        """What of it is counted in `memory`."""
        self._over: deque[ConflatedMessage] = deque()
        self.sent = 0
        """Messages of the first batch that were sent."""
        self._patience: tuple[int, float] | None = None
        """The log time at which something is over, and the monotonic second after which it is anyway."""

    def consider(self, selection: Selection, low: int, high: int, time: int | None) -> None:
        """The messages `[low, high)` come next; with `time`, everything stamped before it was considered."""
        if selection.batch is not None and low < high:
            keys = None
            if self._keys is not None:
                keys = [None] * low + self._keys.of(selection.batch, low, high)
            self._take(self._conflater.add(selection, keys, low, high))
        if time is not None:
            self._take(self._conflater.advance(time))

    def consider_live(self, batch: MessageBatch, low: int, high: int, time: int) -> None:
        """The messages `[low, high)`, of which the log knows nothing, came next, and at `time`."""
        keys = None
        if self._keys is not None:
            keys = [None] * low + self._keys.of(batch, low, high)
        unplaced = Selection(batch, None, batch.count, time)
        self._take(self._conflater.add(unplaced, keys, low, high, time))

    def settle(self, time: int) -> None:
        """Everything that there is was considered, and what comes is stamped `time` or later. Once the server
        stops nothing is held back then."""
        if self._memory.stopping:
            self.flush()
        else:
            self._take(self._conflater.advance(time))

    def settle_live(self, time: int) -> bool:
        """Everything that came before `time` was considered; False when there is more to release than is
        released at a time."""
        self._take(self._conflater.advance(time, conflation_piece_messages_max))
        at = self._conflater.next_time()
        return at is None or at > time

    def patience(self, mono: float) -> float:
        """Until when it waits for the clock of the log, monotonic seconds; it is `mono`. That clock stands
        still while the wall clock was put back: then intervals, counted by nobody, end by this one."""
        at = self._conflater.next_time()
        assert at is not None, "nothing is held"
        if self._patience is None or self._patience[0] != at:
            self._patience = at, mono + _PATIENCE * self.interval_seconds
        return self._patience[1]

    def lose_patience(self, mono: float, time: int) -> None:
        """Hold nothing back any more, if it has waited long enough and the clock of the log, at `time`, has
        not come so far. Where it has, what is late is something else: the result is that of a replay."""
        at = self.next_time()
        if self._patience is not None and self._patience[0] == at and self._patience[1] <= mono and time < at:
            self.flush()

    def flush(self, messages_max: int | None = None) -> None:
        """Nothing more may be held back, or not the oldest `messages_max`."""
        self._patience = None
        self._take(self._conflater.flush(messages_max))

    def forget(self) -> None:
        """Nobody wants what is held."""
        self._memory.bytes -= self._counted
        self._counted = 0

    def _take(self, over: list[ConflatedMessage]) -> None:
        held, memory = self._conflater.held_bytes, self._memory
        beyond = memory.bytes - self._counted + held - memory.bytes_max
        if beyond > 0 and held:
            over = over + self._conflater.shrink(max(held - beyond, 0))
            held = self._conflater.held_bytes
        memory.bytes += held - self._counted
        self._counted = held
        content = self._content
        if content is not None:
            over = [one._replace(batch=content.project(one.batch)) for one in over]
        self._over.extend(over)

    @property
    def waits(self) -> bool:
        """Something waits to be sent."""
        return bool(self._over)

    @property
    def first(self) -> ConflatedMessage:
        """What is to be sent next, from message `sent` on."""
        return self._over[0]

    def take(self) -> list[MessageBatch]:
        """All that waits to be sent: it is waited for elsewhere from now on."""
        batches = [one.batch for one in self._over]
        self._over.clear()
        return batches

    def advance(self, batch: MessageBatch, count: int) -> None:
        """So many messages more of `batch`, the first, were sent."""
        self.sent += count
        if self.sent == batch.count:
            self._over.popleft()
            self.sent = 0

    def next_time(self) -> int | None:
        """The log time at which something is over, or None."""
        return self._conflater.next_time()

    @property
    def unsent_position(self) -> int | None:
        """Position of the oldest message that was not sent, None when all were."""
        if self._over:
            return int(self._over[0].positions[self.sent])
        return self._conflater.held_position

    @property
    def interval_seconds(self) -> float:
        """How long an interval is."""
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

    def stop(self) -> None:
        """Hold nothing back any more once everything was considered."""
        self.budget.stopping = True
