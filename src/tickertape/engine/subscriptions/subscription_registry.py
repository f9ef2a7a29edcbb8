"""Subscription registry: subscriptions by connection and id."""

from __future__ import annotations

from collections.abc import Collection

from tickertape.engine.sessions.session import Session
from tickertape.engine.subscriptions.subscription import Subscription


class ConnectionSubscriptions(dict[str, Subscription]):
    """The subscriptions of one connection by id."""

    def __init__(self) -> None:
        super().__init__()
        self.coming: dict[str, Subscription] = {}
        """Subscriptions that replace another one after their start is found."""

    def cancel(self, sub_id: str) -> None:
        """End a subscription that would replace another one."""
        coming = self.coming.pop(sub_id, None)
        if coming is not None:
            coming.close()

    @property
    def owed(self) -> bool:
        """Whether messages remain to be sent."""
        return any(feed.owed for sub in self.values() for feed in sub.feeds)


_NONE = ConnectionSubscriptions()


class SubscriptionRegistry:
    """The subscriptions of all connections."""

    def __init__(self) -> None:
        self._by_conn: dict[int, ConnectionSubscriptions] = {}
        self.held: Collection[ConnectionSubscriptions] = self._by_conn.values()
        """The subscriptions of each connection that has any."""

    def of(self, conn: int) -> ConnectionSubscriptions:
        """Return the subscriptions of a connection. Without any, it is a shared empty mapping: do not change
        it."""
        return self._by_conn.get(conn, _NONE)

    def hold(self, session: Session) -> ConnectionSubscriptions:
        """Return the subscriptions of a connection, to add one."""
        return self._by_conn.setdefault(session.conn, ConnectionSubscriptions())

    def take(self, conn: int) -> ConnectionSubscriptions:
        """Remove and return the subscriptions of a closed connection."""
        return self._by_conn.pop(conn, ConnectionSubscriptions())

    def end(self, held: ConnectionSubscriptions, sub_id: str) -> None:
        """End a subscription of a connection, and one that would replace it."""
        held.cancel(sub_id)
        sub = held.pop(sub_id, None)
        if sub is not None:
            sub.close()
            self.forget_if_empty(sub.session.conn)

    def forget_if_empty(self, conn: int) -> None:
        """Remove a connection without subscriptions."""
        held = self.of(conn)
        if not held and not held.coming:
            self._by_conn.pop(conn, None)
