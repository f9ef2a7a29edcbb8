"""Subscription: one subscription of a client, and the feeds that send its messages.

A subscription to a pattern may have several feeds: for persistent topics, for non-persistent topics, and for
queues. They share its credit.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from tickertape.batch import MessageBatch
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.credit import CreditWindow


class FeedService(Protocol):
    """Serves feeds of one kind."""

    def credit(self, feed: Any) -> None:
        """Resume a feed that received more credit."""

    def remove(self, feed: Any) -> None:
        """End a feed."""


class Feed:
    """Messages of one kind for one subscription, sent by the service that created the feed."""

    def __init__(self, subscription: Subscription, topic: str, service: FeedService) -> None:
        self.subscription = subscription
        self.session = subscription.session
        self.sub_id = subscription.sub_id
        self.allowance = subscription.allowance
        self.topic = topic
        """The requested topic name or pattern."""
        self._service = service

    @property
    def owed(self) -> bool:
        """Whether a clean stop waits until persisted messages are sent to it."""
        return False

    def spend(self, batch: MessageBatch) -> None:
        """Count a batch that was sent against the credit."""
        self.allowance.spend(batch.cost)
        self.session.sent(batch.count, batch.body_bytes)

    def credit_granted(self) -> None:
        """Resume after the subscription received more credit."""
        self._service.credit(self)

    def close(self) -> None:
        """End the feed."""
        self._service.remove(self)


FeedT = TypeVar("FeedT", bound=Feed)


class Subscription:
    """One subscription of a connection."""

    __slots__ = ("allowance", "closed", "feeds", "session", "sub_id")

    def __init__(self, session: Session, sub_id: str, credit: int) -> None:
        self.session = session
        self.sub_id = sub_id
        self.allowance = CreditWindow(credit)
        self.feeds: list[Feed] = []
        self.closed = False

    def feed(self, kind: type[FeedT]) -> FeedT | None:
        """Return the feed of a class, or None."""
        for feed in self.feeds:
            if isinstance(feed, kind):
                return feed
        return None

    def grant(self, credit: int) -> None:
        """Add bytes to its credit."""
        self.allowance.grant(credit)
        for feed in self.feeds:
            feed.credit_granted()

    def close(self) -> None:
        """End it, and its feeds."""
        self.closed = True
        for feed in self.feeds:
            feed.close()
        self.feeds.clear()
