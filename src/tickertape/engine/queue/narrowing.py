"""Owns which messages of a queue pass the filter of some of its consumers.

Found by reading the queue's part of the log once, and what enters after it. Must never look at more than a
bounded piece in one step, or forget a message that is still in the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyroaring import BitMap64

from tickertape.base.errors import TickertapeError
from tickertape.base.ports import Buffer
from tickertape.batch.format import I8
from tickertape.engine.content import Content
from tickertape.engine.queue.forward import Forward
from tickertape.engine.queue.one_read import LogAccess
from tickertape.engine.queue.queue import Queue
from tickertape.engine.queue.records import array_of, bitmap_of
from tickertape.journal.reading import Part

_SWEEP_MIN: Final = 65_536


class Narrowing:
    """Those that pass `content`, for `users` consumers."""

    def __init__(
        self, queue: Queue, content: Content, access: LogAccess, topic: str | None, came: Callable[[], None]
    ) -> None:
        self._queue = queue
        self._content = content
        oldest = queue.state.oldest()
        self.reached = queue.considered if oldest is None else oldest
        """Everything in the queue below this position was looked at."""
        self._log = Forward(access, self.reached, topic, came)
        self._part: Part | None = None
        self._parts: list[Part] = []
        self._low = 0
        self.matching = BitMap64()
        """Messages that pass; those that have left the queue may still be among them."""
        self._sweep_at = _SWEEP_MIN
        self.users = 0

    @property
    def failure(self) -> TickertapeError | None:
        """The log cannot be read."""
        return self._log.failure

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        if self._part is not None or self._parts:
            part = self._part or self._parts[0]
            return part.end_position <= self._queue.considered
        return self.reached < self._queue.considered and not self._log.waiting and self.failure is None

    def step(self) -> None:
        """Look at one more piece."""
        if self._part is None:
            if not self._parts:
                self._parts = self._log.parts()
            if not self._parts:
                if not self._log.waiting:
                    self.reached = max(self.reached, min(self._log.position, self._queue.considered))
                return
            self._part, self._low = self._parts.pop(0), 0
        self._look(self._part)

    def read_done(self, token: int, data: Buffer | TickertapeError) -> bool:
        """The answer to a read; False when it is none of ours."""
        return self._log.read_done(token, data)

    def stop(self) -> None:
        """Nobody has this filter any more."""
        self._log.stop()

    def _look(self, part: Part) -> None:
        if part.end_position > self._queue.considered:
            return  # it did not enter the queue yet
        batch = part.batch
        high = self._content.reach(batch, self._low)
        first = part.first_position + self._low if part.positions is None else int(part.positions[self._low])
        end = part.end_position if high == batch.count else _position(part, high)
        span = BitMap64()
        span.add_range(first, end)
        inside = self._queue.state.has(span)
        if inside:
            positions = array_of(inside)
            at = positions - part.first_position
            indices = at if part.positions is None else part.positions.searchsorted(positions).astype(I8)
            passed = self._content.passing(batch, indices)
            if len(passed):
                self.matching |= bitmap_of(part.positions_of(passed))
        self._low = high
        self.reached = end
        if high == batch.count:
            self._part = None
        if len(self.matching) > self._sweep_at:
            self.matching = self._queue.state.has(self.matching)
            self._sweep_at = _SWEEP_MIN + 2 * len(self.matching)


def _position(part: Part, index: int) -> int:
    return part.first_position + index if part.positions is None else int(part.positions[index])
