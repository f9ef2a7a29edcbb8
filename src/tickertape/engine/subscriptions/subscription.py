"""Subscription: one subscription of a client, and the feeds that send it messages.

A subscription to a pattern may have several feeds: of recorded topics, of others, and of queues. They share
its credit.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.credit import CreditWindow


class Feed(Protocol):
    """Messages of one kind for one subscription, sent by the service that made the feed."""

    @property
    def topic(self) -> str:
        """The topic or pattern that it was asked for."""

    @property
    def owed(self) -> bool:
        """Whether messages are still to be sent to it as fast as it takes them."""

    def credit_granted(self) -> None:
        """Go on: the subscription was granted more credit."""

    def close(self) -> None:
        """End it."""


FeedT = TypeVar("FeedT", bound=Feed)
ServedT_contra = TypeVar("ServedT_contra", contravariant=True)


class FeedService(Protocol[ServedT_contra]):
    """Serves feeds of one kind."""

    def credit(self, feed: ServedT_contra) -> None:
        """Go on with a feed that was granted more credit."""

    def remove(self, feed: ServedT_contra) -> None:
        """End a feed."""


class Subscription:
    """One subscription of a connection."""

    __slots__ = ("allowance", "feeds", "session", "sub_id")

    def __init__(self, session: Session, sub_id: str, credit: int) -> None:
        self.session = session
        self.sub_id = sub_id
        self.allowance = CreditWindow(credit)
        self.feeds: list[Feed] = []

    def feed(self, kind: type[FeedT]) -> FeedT | None:
        """Return its feed of a class, if it has one."""
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
        """End its feeds."""
        for feed in self.feeds:
            feed.close()
        self.feeds.clear()
