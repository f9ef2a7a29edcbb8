"""Queue messages: ready, leased, inactive and dead-lettered messages of a queue, as bitmaps.

This is a fold of the log but for the leases: `enter` and `apply` are all that a recovery needs.

Invariants:
- `ready + inactive + leased + doomed + left = entered`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pyroaring import BitMap64

from tickertape.engine.queues.state.bit_sliced_index import BitSlices, first_of
from tickertape.engine.queues.state.records import Outcome, OutcomeKind, Reason


class Attempts(NamedTuple):
    """How a message fared so far."""

    deliveries: int = 0
    """Deliveries that ended without success."""
    cancels: int = 0


class PendingDeadLetter(NamedTuple):
    """Why a message waits for its dead letter."""

    reason: Reason
    tries: Attempts


class QueueMessages:
    """`target_depth`: how many messages are ready or leased at most; None: all are."""

    def __init__(self, target_depth: int | None = None) -> None:
        self.ready = BitMap64()
        self.inactive = BitMap64()
        """In the queue and not considered yet, because enough others are."""
        self.leased = BitMap64()
        self.owed = BitMap64()
        """Delivered at most once and not acknowledged: they have left the queue already."""
        self.doomed = BitMap64()
        """Expired, and their dead letters are not in the log yet."""
        self.deliveries = BitSlices()
        """Deliveries that ended without success, for messages in the queue and pending dead letters."""
        self.cancels = BitSlices()
        self.reasons = BitSlices()
        """Reasons of pending dead letters."""
        self.woken: BitMap64 | None = None
        """Messages that became ready again, or active, since they were last taken; None: not wanted."""
        self.entered = 0
        self.acknowledged = 0
        self.taken = 0
        self.buried = 0
        self.returned: dict[Reason, int] = {}
        self.expired: dict[Reason, int] = {}
        self._target = target_depth

    # -- what the log says ------------------------------------------------------------------------------

    def enter(self, positions: BitMap64) -> None:
        """Admit messages, above all earlier ones."""
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
        if outcome.what is OutcomeKind.DEAD_LETTERED:
            return self._bury(named)
        present = named & self.ready
        if len(present) < len(named):
            present |= named & self.leased
            if self.inactive:
                present |= named & self.inactive
        if outcome.what is OutcomeKind.RETURNED:
            self._return(present, outcome.reason)
            return present
        self._remove(present)
        count = len(present)
        if outcome.what is OutcomeKind.DONE:
            self.acknowledged += count
        elif outcome.what is OutcomeKind.TAKEN:
            self.taken += count
        else:
            self.expired[outcome.reason] = self.expired.get(outcome.reason, 0) + count
            if outcome.doomed:
                self._doom(present, outcome)
        if not outcome.doomed:
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
        self._wake(positions)

    # -- reading ----------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Messages in the queue."""
        return len(self.ready) + len(self.inactive) + len(self.leased)

    @property
    def left(self) -> int:
        """Count messages that have left, without pending dead letters."""
        return self.acknowledged + self.taken + sum(self.expired.values()) - len(self.doomed)

    def oldest(self) -> int | None:
        """The lowest position in the queue that still needs its place in the log; None: there is none."""
        held = (self.ready, self.inactive, self.leased, self.owed, self.doomed)
        return min([positions.min() for positions in held if positions], default=None)

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

    def tries_of(self, position: int) -> Attempts:
        """How a message fared so far."""
        return Attempts(self.deliveries.of(position), self.cancels.of(position))

    def restore_tries(self, position: int, tries: Attempts) -> None:
        """A stored state says how a message fared."""
        if min(tries) < 0:
            raise ValueError("stored tries are none")
        one = BitMap64([position])
        self.deliveries.put(one, tries.deliveries)
        self.cancels.put(one, tries.cancels)

    def restore_doomed(self, position: int, doom: PendingDeadLetter) -> None:
        """A stored state says why a message expired."""
        one = BitMap64([position])
        self.doomed |= one
        self.reasons.put(one, doom.reason)
        self.restore_tries(position, doom.tries)

    def check(self) -> None:
        """Raises `ValueError` for a stored state in which something cannot be."""
        inside = self.ready | self.inactive
        if self.ready & self.inactive or inside & self.doomed:
            raise ValueError("a stored message is in two states")
        if (self.deliveries.positions() | self.cancels.positions()) - inside - self.doomed:
            raise ValueError("stored tries of messages that are not there")
        reasons = np.unique(self.reasons.numbers(self.doomed)).tolist()
        if self.reasons.positions() - self.doomed or not {*reasons} <= {*Reason} - {Reason.NONE}:
            raise ValueError("stored reasons are none")
        if min(self.entered, self.acknowledged, self.taken, self.buried) < 0:
            raise ValueError("stored counts are none")

    def doom_of(self, position: int) -> PendingDeadLetter:
        """Return the reason and the attempts of a pending dead letter."""
        return PendingDeadLetter(Reason(self.reasons.of(position)), self.tries_of(position))

    # -- inside -----------------------------------------------------------------------------------------

    def activate(self) -> None:
        """Let messages become active, oldest first, as far as the target allows."""
        if self._target is None or not self.inactive:
            return
        room = self._target - len(self.ready) - len(self.leased)
        if room > 0:
            moved = first_of(self.inactive, room)
            self.inactive -= moved
            self._wake(moved)

    def watch_woken(self) -> None:
        """Keep from now on which messages became ready again, or active."""
        self.woken = BitMap64()

    def take_woken(self) -> BitMap64 | None:
        """Return the messages that became ready again, or active, since the last call."""
        woken = self.woken
        if woken:
            self.woken = BitMap64()
        return woken

    def owe(self, positions: BitMap64) -> None:
        """Messages were delivered at most once: they have left, and are not acknowledged."""
        self.owed |= positions

    def acknowledge_owed(self, positions: BitMap64) -> None:
        """Forget messages that were delivered at most once."""
        self.owed -= positions

    def _wake(self, positions: BitMap64) -> None:
        self.ready |= positions
        if self.woken is not None:
            self.woken |= positions

    def _remove(self, positions: BitMap64) -> None:
        self.ready -= positions
        if self.leased:
            self.leased -= positions
        if self.inactive:
            self.inactive -= positions

    def _return(self, positions: BitMap64, reason: Reason) -> None:
        self.returned[reason] = self.returned.get(reason, 0) + len(positions)
        self.deliveries.add_one(positions)
        if reason is Reason.CANCELLED:
            self.cancels.add_one(positions)
        self.leased -= positions
        self._wake(positions - self.inactive)

    def _doom(self, positions: BitMap64, outcome: Outcome) -> None:
        self.doomed |= positions
        self.reasons.put(positions, outcome.reason)
        if outcome.delivered:
            self.deliveries.add_one(positions)
        if outcome.reason is Reason.MAX_CANCELS:
            self.cancels.add_one(positions)

    def _bury(self, positions: BitMap64) -> BitMap64:
        found = positions & self.doomed
        self.doomed -= found
        self.reasons.forget(found)
        self._forget_tries(found)
        self.buried += len(found)
        return found

    def _forget_tries(self, positions: BitMap64) -> None:
        self.deliveries.forget(positions)
        self.cancels.forget(positions)
