"""Queue feed: one subscription to queues, its credit, and its limit of unacknowledged messages.

The lease tables of its queues contain the unacknowledged messages.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.queues.state.queue import Queue
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


FeedQueue: TypeAlias = Queue[QueueFeed]
"""A queue whose messages are leased to feeds."""


class QueueWaiter(Protocol):
    """A query that waits until queues have considered the log up to `needed`."""

    needed: int

    def considered(self, queue: FeedQueue) -> None:
        """Continue without this queue: it has considered the log up to there, or has stopped."""

    def __hash__(self) -> int:
        """Waiters are compared by identity."""
