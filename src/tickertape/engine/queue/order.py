"""Owns in which order the ready messages of one queue are delivered: oldest first, or by priority and then
oldest first, and not past a barrier.

Must never decide who gets them, or look at a body: what a message is worth was found when it entered.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from pyroaring import BitMap64

from tickertape.base.queue_limits import priorities_max
from tickertape.batch.format import Int64s
from tickertape.engine.queue.records import array_of
from tickertape.engine.queue.state import QueueState

_SWEEP_MIN = 65_536


class Order:
    """Over the messages of `state`. `prioritised`: they have priorities."""

    def __init__(self, state: QueueState, *, prioritised: bool) -> None:
        self._state = state
        self._prioritised = prioritised
        self._levels: dict[int, BitMap64] = {}
        """Messages by priority; those that have left the queue may still be among them."""
        self._rising: list[int] = []
        self._held = 0
        self._unswept = 0
        """Messages put since it was swept."""
        self.barriers = BitMap64()
        """Barriers that were not delivered yet."""

    # -- inputs -----------------------------------------------------------------------------------------

    def enter(self, positions: Int64s, priorities: Iterable[int] | None, barriers: BitMap64 | None) -> None:
        """Messages came: a priority for each, and those which are barriers."""
        if barriers:
            self.barriers |= barriers
        if priorities is None:
            return
        grouped: dict[int, list[int]] = {}
        for position, priority in zip(positions.tolist(), priorities, strict=True):
            grouped.setdefault(priority, []).append(position)
        for priority, chosen in grouped.items():
            self.put(priority, BitMap64(chosen))

    def put(self, priority: int, positions: BitMap64) -> None:
        """Messages of one priority came."""
        level = self._levels.get(priority)
        if level is None:
            # Each look at all of them is paid for by as many messages: all of them may still be in the queue.
            if len(self._levels) >= priorities_max and self._unswept >= priorities_max:
                self._sweep()
            if len(self._levels) >= priorities_max:
                priority = self._rising[max(bisect_right(self._rising, priority) - 1, 0)]
                level = self._levels[priority]
            else:
                level = self._levels[priority] = BitMap64()
                insort(self._rising, priority)
        level |= positions
        self._levels[priority] = level
        self._held += len(positions)
        self._unswept += len(positions)
        if self._held > 2 * (self._state.depth + _SWEEP_MIN):
            self._sweep()

    def delivered(self, positions: BitMap64) -> None:
        """They were delivered: nothing waits behind a barrier among them any more."""
        if self.barriers:
            self.barriers -= positions

    def left(self, positions: BitMap64) -> None:
        """They have left the queue."""
        self.delivered(positions)

    # -- outputs ----------------------------------------------------------------------------------------

    def next(self, count: int, among: BitMap64 | None = None, below: int | None = None) -> Int64s:
        """The positions of at most `count` messages that are next, of one priority, rising; `among` says
        which of the ready ones come into question, and `below` that nothing from there on does."""
        return array_of(self._foremost(among, below)[:count])

    def limit(self) -> int | None:
        """Nothing at or above this position is delivered now; None: everything is."""
        if not self.barriers:
            return None
        barrier = int(self.barriers.min())
        oldest = self._state.oldest_unsettled()
        # Its turn has come when nothing older is in the queue; what is behind it waits until it is delivered.
        return barrier + 1 if oldest == barrier else barrier

    def stored(self) -> tuple[bytes, list[tuple[int, bytes]]]:
        """What a snapshot keeps: barriers, and the messages of each priority."""
        self._sweep()
        return self.barriers.serialize(), [(at, self._levels[at].serialize()) for at in self._rising]

    def restore(self, stored: tuple[bytes, list[tuple[int, bytes]]]) -> None:
        """Take over what was stored. Raises `ValueError` for what is none."""
        barriers, levels = stored
        self.barriers = BitMap64.deserialize(barriers)
        for priority, data in levels:
            self.put(priority, BitMap64.deserialize(data))

    # -- inside -----------------------------------------------------------------------------------------

    def _foremost(self, among: BitMap64 | None, below: int | None) -> BitMap64:
        """What may be delivered of the highest priority of which there is something."""
        ready = self._state.ready
        limit = self.limit()
        if below is not None:
            limit = below if limit is None else min(limit, below)
        if limit is not None:
            ready = ready[: ready.rank(limit - 1)] if limit > 0 else BitMap64()
        if not self._prioritised:
            return ready if among is None else ready & among
        for priority in reversed(self._rising):
            level = self._levels[priority]
            found = level & ready
            if not found and not self._state.has(level):
                self._forget(priority)  # or each delivery would look at it again
                continue
            if among is not None:
                found &= among
            if found:
                return found
        return BitMap64()

    def _forget(self, priority: int) -> None:
        """All messages of a priority have left the queue."""
        self._held -= len(self._levels.pop(priority))
        del self._rising[bisect_left(self._rising, priority)]

    def _sweep(self) -> None:
        """Forget what has left the queue."""
        self._held = self._unswept = 0
        for priority in list(self._rising):
            level = self._state.has(self._levels[priority])
            if level:
                self._levels[priority] = level
                self._held += len(level)
            else:
                del self._levels[priority]
        self._rising = sorted(self._levels)
