"""Owns one subscription: what it covers, where it stands, what it may still be sent, and what it owes.

Must never be sent beyond its credit, or pass over a message that it covers. It decides what of a part is its
own (`share`); when that is sent is the business of delivery.py.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from typing import NamedTuple

from tickertape.base.limits import batch_bytes_max, outbox_bytes_max
from tickertape.batch import MessageBatch, slice_batch
from tickertape.engine.points import Extent
from tickertape.engine.selection import Selection
from tickertape.engine.session import Session
from tickertape.journal.reader import LogReader


class Phase(Enum):
    """Where a subscription is in its life."""

    SEARCHING = "its start is being looked up"
    BEHIND = "reads the log by itself"
    AT_END = "is served by the shared dispatcher"
    OVER = "has ended"


class Share(NamedTuple):
    """What a subscription takes of a part: a batch to send (or None), and the position after it."""

    batch: MessageBatch | None
    next: int
    blocked: bool
    """There is more for it in the part, but no credit."""


class Subscription:
    """State of one subscription to a recorded topic."""

    def __init__(self, session: Session, sub_id: str, topic: str, credit: int) -> None:
        self.session = session
        self.sub_id = sub_id
        self.topic = topic
        self.credit = credit
        self.window = credit
        """Credit when nothing is outstanding."""
        self.phase = Phase.SEARCHING
        self.position = 0
        """The next message to consider. At the end of the log it is behind the truth unless it is above it.
        """
        self.stop: int | None = None
        self.stop_time: int | None = None
        self.not_before: int | None = None
        self.target: int | None = None
        """Position at which `completed` is due; None once it was sent."""
        self.reader: LogReader | None = None
        self.reading = False
        self.queued = False
        """It stands in the delivery's run queue."""
        self.starved = False
        """Its credit does not reach for the next message: nothing is read for it until more is granted."""
        self.parts: list[Selection] = []
        """What was read and is not yet taken, bounded by one read."""
        self.wants_notices = False
        """It is told where it may resume though nothing came."""
        self.told = 0
        """Position up to which its client knows that everything has come."""

    def let_go(self) -> None:
        """Forget what was read and is not taken: it is read again."""
        self.parts, self.reader = [], None

    def begin(self, extent: Extent, target: int) -> None:
        """Its extent is known. `target` is where the log ended when it was asked for."""
        self.position = extent.start
        self.not_before = extent.not_before
        self.stop = extent.stop
        self.stop_time = extent.stop_time
        self.target = None if self.has_stop else target
        self.phase = Phase.BEHIND

    @property
    def owed(self) -> bool:
        """Whether something persisted is still to be sent to it."""
        return self.phase is Phase.SEARCHING or self.phase is Phase.BEHIND

    @property
    def has_stop(self) -> bool:
        """Whether it ends by itself."""
        return self.stop is not None or self.stop_time is not None

    @property
    def simple(self) -> bool:
        """Nothing but the topic decides what it is sent."""
        return (
            self.target is None and self.stop is None and self.stop_time is None and self.not_before is None
        )

    def boundary(self) -> int | None:
        """The next position at which something is due: `completed`, or the end."""
        return self.stop if self.stop is not None else self.target

    def share(self, selection: Selection) -> Share:
        """Its messages of `selection` from `position` on, as far as credit and the next boundary reach."""
        low, high, end = self._bounds(selection)
        batch = selection.batch
        if batch is None or low >= high:
            return Share(None, end, False)
        fitting = affordable(batch, low, high, min(self.credit, outbox_bytes_max))
        if fitting == 0:
            if self.credit < self.window and batch.cost_between(low, low + 1) > self.credit:
                return Share(None, selection.position(low), True)
            fitting = 1  # nothing is outstanding: then one message may exceed the credit
        chosen = slice_batch(batch, low, low + fitting)
        while chosen.nbytes > batch_bytes_max and fitting > 1:
            # A selection with gaps has a column more than what it was selected from. One message always fits.
            fitting //= 2
            chosen = slice_batch(batch, low, low + fitting)
        reached = low + fitting
        return Share(chosen, end if reached == high else selection.position(reached), False)

    def _bounds(self, selection: Selection) -> tuple[int, int, int]:
        """Indexes from which and before which messages are to be sent, and the position considered then;
        notes a stop by time.
        """
        low = selection.index_at(self.position)
        if self.not_before is not None and selection.last_timestamp >= self.not_before:
            low = max(low, selection.index_stamped(self.not_before))
            if low < selection.count:
                self.not_before = None
        elif self.not_before is not None:
            low = selection.count
        if self.stop_time is not None and selection.last_timestamp >= self.stop_time:
            stop = selection.position(selection.index_stamped(self.stop_time))
            self.stop = stop if self.stop is None else min(self.stop, stop)
            self.stop_time = None
        boundary = self.boundary()
        if boundary is None or boundary >= selection.end:
            return low, selection.count, selection.end
        return low, selection.index_at(boundary), max(boundary, self.position)

    def spend(self, batch: MessageBatch) -> None:
        """`batch` was sent: it counts against the credit."""
        self.credit -= batch.cost
        self.session.sent(batch)


def affordable(batch: MessageBatch, low: int, high: int, allowed: int) -> int:
    """How many messages of `batch[low:high]`, from the front, cost at most `allowed` together."""
    if batch.cost_between(low, high) <= allowed:
        return high - low
    # A commit is cut many times: what is left of it is searched, not gone through.
    return bisect_right(range(low + 1, high + 1), allowed, key=lambda stop: batch.cost_between(low, stop))
