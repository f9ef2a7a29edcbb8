"""Owns the state of one queue: which messages are ready, leased, waiting to become active, or to be buried,
and how often those that came back were tried.

A fold of the log but for the leases: `enter` and `apply` are all that a recovery needs. Must never know a
consumer, a clock or a body. Always `ready + inactive + leased + doomed + left = entered`.
"""

from __future__ import annotations

from typing import NamedTuple

from pyroaring import BitMap64

from tickertape.engine.queue.records import Outcome, Reason, What


class Tries(NamedTuple):
    """How a message fared so far."""

    deliveries: int = 0
    """Deliveries that ended without success."""
    cancels: int = 0


class Doom(NamedTuple):
    """Why a message waits for its dead letter."""

    reason: Reason
    tries: Tries


class QueueState:
    """`target_depth`: how many messages are ready or leased at most; None: all are."""

    def __init__(self, target_depth: int | None = None) -> None:
        self.ready = BitMap64()
        self.inactive = BitMap64()
        """In the queue and not considered yet, because enough others are."""
        self.leased = BitMap64()
        self.owed = BitMap64()
        """Delivered at most once and not acknowledged: they have left the queue already."""
        self.doomed: dict[int, Doom] = {}
        self.tries: dict[int, Tries] = {}
        self.entered = 0
        self.acknowledged = 0
        self.taken = 0
        self.buried = 0
        self.returned: dict[Reason, int] = {}
        self.expired: dict[Reason, int] = {}
        self._target = target_depth

    # -- what the log says ------------------------------------------------------------------------------

    def enter(self, positions: BitMap64) -> None:
        """Messages came, above all that came before."""
        self.entered += len(positions)
        if self._target is None:
            self.ready |= positions
        else:
            self.inactive |= positions
            self.activate()

    def apply(self, outcome: Outcome) -> BitMap64:
        """Something became of messages; returns those of them for which it did: the others are not in the
        queue (any more)."""
        named = outcome.positions
        if outcome.what is What.BURIED:
            return self._bury(named)
        present = named & self.ready
        if len(present) < len(named):
            present |= named & self.leased
            if self.inactive:
                present |= named & self.inactive
        if outcome.what is What.RETURNED:
            self._return(present, outcome.reason)
            return present
        self._remove(present)
        count = len(present)
        if outcome.what is What.DONE:
            self.acknowledged += count
        elif outcome.what is What.TAKEN:
            self.taken += count
        else:
            self.expired[outcome.reason] = self.expired.get(outcome.reason, 0) + count
            if outcome.doomed:
                self._doom(present, outcome)
        if self.tries:
            self._forget_tries(present)
        self.activate()
        return present

    # -- leases -----------------------------------------------------------------------------------------

    def lease(self, positions: BitMap64) -> None:
        """Ready messages were delivered."""
        self.ready -= positions
        self.leased |= positions

    def give_back(self, positions: BitMap64) -> None:
        """They were not delivered after all: that counts nowhere."""
        self.leased -= positions
        self.ready |= positions

    # -- reading ----------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Messages in the queue."""
        return len(self.ready) + len(self.inactive) + len(self.leased)

    @property
    def left(self) -> int:
        """Messages that have left it, buried ones among them, but for those that wait to be."""
        return self.acknowledged + self.taken + sum(self.expired.values()) - len(self.doomed)

    def oldest(self) -> int | None:
        """The lowest position in the queue that still needs its place in the log; None: there is none."""
        lowest = [held.min() for held in (self.ready, self.inactive, self.leased, self.owed) if held]
        if self.doomed:
            lowest.append(min(self.doomed))
        return min(lowest, default=None)

    def oldest_inside(self) -> int | None:
        """The lowest position in the queue; None: it is empty."""
        inside = [held.min() for held in (self.ready, self.inactive, self.leased) if held]
        return min(inside, default=None)

    def oldest_unsettled(self) -> int | None:
        """The lowest position for which a barrier waits."""
        return min(
            [held.min() for held in (self.ready, self.inactive, self.leased, self.owed) if held], default=None
        )

    def has(self, positions: BitMap64) -> BitMap64:
        """Which of them are in the queue."""
        return (positions & self.ready) | (positions & self.inactive) | (positions & self.leased)

    def tries_of(self, position: int) -> Tries:
        """How a message fared so far."""
        return self.tries.get(position, Tries())

    # -- inside -----------------------------------------------------------------------------------------

    def activate(self) -> None:
        """Let messages become active, oldest first, as far as the target allows."""
        if self._target is None or not self.inactive:
            return
        room = self._target - len(self.ready) - len(self.leased)
        if room > 0:
            moved = self.inactive[:room]
            self.inactive -= moved
            self.ready |= moved

    def _remove(self, positions: BitMap64) -> None:
        self.ready -= positions
        if self.leased:
            self.leased -= positions
        if self.inactive:
            self.inactive -= positions

    def _return(self, positions: BitMap64, reason: Reason) -> None:
        self.returned[reason] = self.returned.get(reason, 0) + len(positions)
        cancelled = reason is Reason.CANCELLED
        for position in positions:
            deliveries, cancels = self.tries_of(position)
            self.tries[position] = Tries(deliveries + 1, cancels + cancelled)
        self.leased -= positions
        self.ready |= positions - self.inactive

    def _doom(self, positions: BitMap64, outcome: Outcome) -> None:
        cancelled = outcome.reason is Reason.MAX_CANCELS
        for position in positions:
            deliveries, cancels = self.tries_of(position)
            tries = Tries(deliveries + outcome.delivered, cancels + cancelled)
            self.doomed[position] = Doom(outcome.reason, tries)

    def _bury(self, positions: BitMap64) -> BitMap64:
        found = BitMap64([at for at in positions if at in self.doomed])
        for position in found:
            del self.doomed[position]
        self.buried += len(found)
        return found

    def _forget_tries(self, positions: BitMap64) -> None:
        if len(positions) > len(self.tries):
            for position in [at for at in self.tries if at in positions]:
                del self.tries[position]
        else:
            for position in positions:
                self.tries.pop(position, None)
