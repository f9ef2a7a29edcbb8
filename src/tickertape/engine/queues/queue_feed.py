"""Queue feed: one subscription to queues, its credit, and how many messages it may hold.

The messages that it holds are in the lease tables of its queues.
"""

from __future__ import annotations

from typing import TypeAlias

from tickertape.batch import MessageBatch
from tickertape.engine.limits import outbox_bytes_max
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.queues.state.queue import Queue
from tickertape.engine.subscriptions.credit import affordable_rows
from tickertape.engine.subscriptions.subscription import Feed, FeedService, Subscription


class QueueFeed(Feed):
    """One subscription to one or several queues, as far as they are concerned."""

    def __init__(
        self,
        subscription: Subscription,
        topic: str,
        content: ContentFilter | None,
        limit: int,
        service: FeedService,
    ) -> None:
        super().__init__(subscription, topic, service)
        self.content = content
        self.queues: list[FeedQueue] = []
        """The queues that it is served by."""
        self.previous_queues: list[FeedQueue] = []
        """Those of which it may hold messages from before it was replaced."""
        self.limit = limit
        """Messages that it may hold unacknowledged."""
        self.unacked = 0
        """Messages that it holds, out of all its queues."""

    @property
    def room(self) -> int:
        """How many more messages it may be given; none while its connection takes nothing."""
        if not self.session.writable or self.allowance.credit <= 0:
            return 0
        return max(self.limit - self.unacked, 0)

    def fitting(self, batch: MessageBatch, low: int, high: int) -> int:
        """How many of `batch[low:high]`, from the front, its credit allows."""
        allowance = self.allowance
        count = affordable_rows(batch, low, high, min(allowance.credit, outbox_bytes_max))
        if not count and min(batch.cost_between(low, low + 1), allowance.window) <= allowance.credit:
            return 1  # larger than a connection holds, or, when nothing is outstanding, than the credit
        return count

    def spend(self, batch: MessageBatch) -> None:
        """`batch` was sent."""
        self.allowance.spend(batch.cost)
        self.session.sent(batch.count, batch.body_bytes)


FeedQueue: TypeAlias = Queue[QueueFeed]
"""A queue whose messages are leased to feeds."""
