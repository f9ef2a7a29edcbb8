"""Queue feed: one subscription to queues, its credit, and its limit of unacknowledged messages.

The lease tables of its queues contain the unacknowledged messages.
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
    """The queue part of one subscription, for one or several queues."""

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
        """Queues that deliver to this feed."""
        self.previous_queues: list[FeedQueue] = []
        """Earlier queues, from which it may hold messages since before it was replaced."""
        self.limit = limit
        """Maximum number of unacknowledged messages."""
        self.unacked = 0
        """Number of unacknowledged messages from all its queues."""

    @property
    def room(self) -> int:
        """Number of additional messages that it may receive. 0 while its connection is not writable."""
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
