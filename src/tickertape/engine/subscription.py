"""Owns one subscription: what it covers, where it stands, what it may still be sent, and what it owes.

Must never be sent beyond its credit, or pass over a message that it covers. It decides what of a part is its
own (`share`); when that is sent is the business of delivery.py.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from typing import NamedTuple

import numpy as np

from tickertape.base.limits import batch_bytes_max, outbox_bytes_max
from tickertape.batch import MessageBatch, select_topic, slice_batch
from tickertape.engine.points import Extent
from tickertape.engine.sessions import Session
from tickertape.journal.reading import LogReader, Part


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
        self.parts: list[Part] = []
        """What was read and is not yet taken, bounded by one read."""

    def begin(self, extent: Extent, target: int) -> None:
        """Its extent is known. `target` is where the log ended when it was asked for."""
        self.position = extent.start
        self.not_before = extent.not_before
        self.stop = extent.stop
        self.stop_time = extent.stop_time
        self.target = None if self.has_stop else target
        self.phase = Phase.BEHIND

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

    def share(self, part: Part) -> Share:
        """Its messages of `part` from `position` on, as far as credit and the next boundary reach."""
        batch, first = part.batch, part.first_position
        low, high = self._bounds(part)
        if low >= high:
            return Share(None, first + high, False)
        reach = self._reach(batch, low, high)
        if reach == low:
            if batch.topic(low) == self.topic and self.credit < self.window:
                return Share(None, first + low, True)
            reach = low + 1  # not for it, or nothing is outstanding: then one message may exceed the credit
        chosen = select_topic(slice_batch(batch, low, reach), self.topic)
        while chosen is not None and chosen.nbytes > batch_bytes_max:
            # A selection with gaps has a column more than what it was selected from. One message always fits.
            reach = low + max((reach - low) // 2, 1)
            chosen = select_topic(slice_batch(batch, low, reach), self.topic)
        return Share(chosen, first + reach, False)

    def _bounds(self, part: Part) -> tuple[int, int]:
        """Indexes in `part` from which and before which messages are its own; notes a stop by time."""
        batch, first = part.batch, part.first_position
        low = max(0, self.position - first)
        high = batch.count
        if self.not_before is not None and low < high:
            low = max(low, int(np.searchsorted(batch.timestamps, self.not_before)))
            if low < high:
                self.not_before = None
        if self.stop_time is not None and low < high:
            until = int(np.searchsorted(batch.timestamps, self.stop_time))
            if until < high:
                self.stop = min(first + until, self.stop if self.stop is not None else first + until)
                self.stop_time = None
        boundary = self.boundary()
        if boundary is not None:
            high = min(high, max(boundary - first, 0))
        return low, high

    def _reach(self, batch: MessageBatch, low: int, high: int) -> int:
        """How far from `low` credit and the size of one frame reach if every message were its own."""
        allowed = min(self.credit, outbox_bytes_max)
        if batch.cost <= allowed:
            return high
        fitting = affordable(batch, low, high, allowed)
        if fitting == 0 and affordable(batch, low, low + 1, self.credit):
            fitting = 1
        return low + fitting

    def spend(self, batch: MessageBatch) -> None:
        """`batch` was sent: it counts against the credit."""
        self.credit -= batch.cost


def affordable(batch: MessageBatch, low: int, high: int, allowed: int) -> int:
    """How many messages of `batch[low:high]`, from the front, cost at most `allowed` together."""
    if batch.cost_between(low, high) <= allowed:
        return high - low
    # A commit is cut many times: what is left of it is searched, not gone through.
    return bisect_right(range(low + 1, high + 1), allowed, key=lambda stop: batch.cost_between(low, stop))
