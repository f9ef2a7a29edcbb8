"""Queue messages: ready, leased, inactive and dead-lettered messages of a queue, as bitmaps.

Except for leases, this state is derived from the log: recovery only calls `enter` and `apply`.

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
    """Attempts to deliver a message."""

    deliveries: int = 0
    """Deliveries that ended without success."""
    cancels: int = 0


class PendingDeadLetter(NamedTuple):
    """Why a message waits for its dead letter."""

    reason: Reason
    tries: Attempts


class QueueMessages:
    """Messages of a queue. `target_depth` limits the number of ready and leased messages. None: no limit."""

    def __init__(self, target_depth: int | None = None) -> None:
        self.ready = BitMap64()
        self.inactive = BitMap64()
        """Messages in the queue that are not active yet, because enough others are."""
        self.leased = BitMap64()
        self.owed = BitMap64()
        """At-most-once messages that are delivered but not acknowledged. They have already left the queue."""
        self.doomed = BitMap64()
        """Expired messages whose dead letters are not in the log yet."""
        self.deliveries = BitSlices()
        """Failed deliveries of queued messages and pending dead letters."""
        self.cancels = BitSlices()
        self.reasons = BitSlices()
        """Reasons of pending dead letters."""
        self.woken: BitMap64 | None = None
        """Messages that became ready again or active since the last `take_woken`. None if not watched."""
        self.entered = 0
        self.acknowledged = 0
        self.taken = 0
        self.buried = 0
        self.returned: dict[Reason, int] = {}
        self.expired: dict[Reason, int] = {}
        self._target = target_depth

    # -- state from the log -----------------------------------------------------------------------------

    def enter(self, positions: BitMap64) -> None:
        """Admit messages. Their positions are above all earlier ones."""
        self.entered += len(positions)
        if self._target is None:
            self.ready |= positions
        else:
            self.inactive |= positions
            self.activate()

    def apply(self, outcome: Outcome) -> BitMap64:
        """Apply an outcome. Return the affected messages: the others are not in the queue (any more)."""
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
        """Mark ready messages as leased."""
        self.ready -= positions
        self.leased |= positions

    def give_back(self, positions: BitMap64) -> None:
        """Make leased messages ready again without counting a delivery."""
        self.leased -= positions
        self._wake(positions)

    # -- reading ----------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Number of messages in the queue."""
        return len(self.ready) + len(self.inactive) + len(self.leased)

    @property
    def left(self) -> int:
        """Number of messages that have left, without pending dead letters."""
        return self.acknowledged + self.taken + sum(self.expired.values()) - len(self.doomed)

    def oldest(self) -> int | None:
        """Return the lowest position that the queue needs in the log, or None."""
        held = (self.ready, self.inactive, self.leased, self.owed, self.doomed)
        return min([positions.min() for positions in held if positions], default=None)

    def oldest_inside(self) -> int | None:
        """Return the lowest position in the queue, or None."""
        inside = [held.min() for held in (self.ready, self.inactive, self.leased) if held]
        return min(inside, default=None)

    def oldest_unsettled(self) -> int | None:
        """Return the lowest position that a barrier waits for, or None."""
        return min(
            [held.min() for held in (self.ready, self.inactive, self.leased, self.owed) if held], default=None
        )

    def has(self, positions: BitMap64) -> BitMap64:
        """Return the members of `positions` that are in the queue."""
        return (positions & self.ready) | (positions & self.inactive) | (positions & self.leased)

    def tries_of(self, position: int) -> Attempts:
        """Return the attempts to deliver a message."""
        return Attempts(self.deliveries.of(position), self.cancels.of(position))

    def restore_tries(self, position: int, tries: Attempts) -> None:
        """Restore the stored attempts of a message."""
        if min(tries) < 0:
            raise ValueError("stored attempts are negative")
        one = BitMap64([position])
        self.deliveries.put(one, tries.deliveries)
        self.cancels.put(one, tries.cancels)

    def restore_doomed(self, position: int, doom: PendingDeadLetter) -> None:
        """Restore a stored pending dead letter."""
        one = BitMap64([position])
        self.doomed |= one
        self.reasons.put(one, doom.reason)
        self.restore_tries(position, doom.tries)

    def check(self) -> None:
        """Raise `ValueError` for an inconsistent stored state."""
        inside = self.ready | self.inactive
        if self.ready & self.inactive or inside & self.doomed:
            raise ValueError("a stored message is in two states")
        if (self.deliveries.positions() | self.cancels.positions()) - inside - self.doomed:
            raise ValueError("stored attempts belong to missing messages")
        reasons = np.unique(self.reasons.numbers(self.doomed)).tolist()
        if self.reasons.positions() - self.doomed or not {*reasons} <= {*Reason} - {Reason.NONE}:
            raise ValueError("stored reasons are invalid")
        if min(self.entered, self.acknowledged, self.taken, self.buried) < 0:
            raise ValueError("stored counts are negative")

    def doom_of(self, position: int) -> PendingDeadLetter:
        """Return the reason and the attempts of a pending dead letter."""
        return PendingDeadLetter(Reason(self.reasons.of(position)), self.tries_of(position))

    # -- internals --------------------------------------------------------------------------------------

    def activate(self) -> None:
        """Activate messages up to the target depth, oldest first."""
        if self._target is None or not self.inactive:
            return
        room = self._target - len(self.ready) - len(self.leased)
        if room > 0:
            moved = first_of(self.inactive, room)
            self.inactive -= moved
            self._wake(moved)

    def watch_woken(self) -> None:
        """Start to collect messages that become ready again or active."""
        self.woken = BitMap64()

    def take_woken(self) -> BitMap64 | None:
        """Return the messages that became ready again or active since the last call."""
        woken = self.woken
        if woken:
            self.woken = BitMap64()
        return woken

    def owe(self, positions: BitMap64) -> None:
        """Record delivered at-most-once messages. They have left the queue but are not acknowledged."""
        self.owed |= positions

    def acknowledge_owed(self, positions: BitMap64) -> None:
        """Remove acknowledged at-most-once messages."""
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
