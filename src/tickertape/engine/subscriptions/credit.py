"""Credit window: number of bytes that a subscription may still receive."""

from __future__ import annotations

from bisect import bisect_right

from tickertape.batch import MessageBatch, cost_between
from tickertape.engine.limits import outbox_bytes_max


class CreditWindow:
    """The credit of one subscription, shared by all its feeds, in bytes of cost."""

    __slots__ = ("credit", "deferred", "window")

    def __init__(self, credit: int) -> None:
        self.credit = credit
        self.window = credit
        """Credit when no sent message is outstanding."""
        self.deferred = 0
        """Cost of deliveries that wait for the disk. It is spent already."""

    @property
    def unspent(self) -> bool:
        """Whether no sent message is outstanding. Then one message may exceed the credit.

        Otherwise a message that costs more than the whole window would never be sent."""
        return self.credit >= self.window

    def grant(self, credit: int) -> None:
        """Add bytes that the client has consumed."""
        self.credit += credit

    def spend(self, cost: int) -> None:
        """Subtract the cost of sent messages."""
        self.credit -= cost

    def fitting(self, batch: MessageBatch, low: int, high: int) -> int:
        """Return how many messages of `batch[low:high]`, from the front, may be sent together."""
        count = affordable_rows(batch, low, high, min(self.credit, outbox_bytes_max))
        if not count and (self.unspent or cost_between(batch, low, low + 1) <= self.credit):
            return 1  # the single message is larger than a connection holds, or than the credit
        return count

    def renew(self, credit: int) -> None:
        """Restart with a new credit. Outstanding bytes will not be granted again."""
        self.window, self.credit = credit, credit - self.deferred


def affordable_rows(batch: MessageBatch, low: int, high: int, allowed: int) -> int:
    """Return how many of the first messages of `batch[low:high]` cost at most `allowed` in total."""
    if cost_between(batch, low, high) <= allowed:
        return high - low
    # A binary search, because a large commit is split many times.
    return bisect_right(range(low + 1, high + 1), allowed, key=lambda stop: cost_between(batch, low, stop))
