"""Subscription registry: subscriptions by connection and id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tickertape.engine.queues.browser import QueueBrowser
from tickertape.engine.queues.consumer import QueueFeed
from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.engine.transient.backlog import TransientFeed


class ConnectionSubscriptions:
    """The subscriptions of one connection by id."""

    def __init__(self) -> None:
        self.recorded: dict[str, LogFeed] = {}
        self.live: dict[str, TransientFeed] = {}
        """Subscriptions to topics that are not recorded."""
        self.coming: dict[str, LogFeed] = {}
        """Subscriptions that replace another once their start is found."""
        self.of_queues: dict[str, QueueFeed | QueueBrowser] = {}
        """Subscriptions to queues."""

    def __len__(self) -> int:
        """Number of subscriptions: one with a pattern may be in several maps."""
        count = len(self.recorded) + len(self.live)
        if self.of_queues:
            return len(self.recorded.keys() | self.live.keys() | self.of_queues.keys())
        if not self.recorded or not self.live:
            return count
        return count - len(self.recorded.keys() & self.live.keys())

    def __bool__(self) -> bool:
        return bool(self.recorded or self.live or self.of_queues)

    def __contains__(self, sub_id: object) -> bool:
        return sub_id in self.recorded or sub_id in self.live or sub_id in self.of_queues

    def __iter__(self) -> Iterator[str]:
        yield from self.recorded
        for sub_id in self.live:
            if sub_id not in self.recorded:
                yield sub_id
        for sub_id in self.of_queues:
            if sub_id not in self.recorded and sub_id not in self.live:
                yield sub_id

    @property
    def owed(self) -> bool:
        """Whether messages are still to be sent."""
        return any(sub.owed for sub in self.recorded.values()) or any(
            live.waiting for live in self.live.values()
        )


_NONE = ConnectionSubscriptions()


class SubscriptionRegistry:
    """The subscriptions of all connections."""

    def __init__(self) -> None:
        self._by_conn: dict[int, ConnectionSubscriptions] = {}

    def all(self) -> Iterable[ConnectionSubscriptions]:
        """Return those of each connection that has any."""
        return self._by_conn.values()

    def of(self, conn: int) -> ConnectionSubscriptions:
        """Return those of a connection; not to be changed."""
        return self._by_conn.get(conn, _NONE)

    def hold(self, session: Session) -> ConnectionSubscriptions:
        """Return those of a connection, to add one."""
        return self._by_conn.setdefault(session.conn, ConnectionSubscriptions())

    def forget_if_empty(self, conn: int) -> None:
        """Forget a connection without subscriptions."""
        held = self.of(conn)
        if not held and not held.coming:
            self._by_conn.pop(conn, None)
