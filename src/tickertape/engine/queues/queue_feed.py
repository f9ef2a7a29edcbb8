"""Queue feed: one subscription to queues, its credit, and how many messages it may hold.

The messages that it holds are in the lease tables of its queues.
"""

from __future__ import annotations

from typing import TypeAlias

from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.queues.state.queue import Queue
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


FeedQueue: TypeAlias = Queue[QueueFeed]
"""A queue whose messages are leased to feeds."""
