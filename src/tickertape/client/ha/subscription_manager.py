"""Subscription manager protocol (remembers subscriptions of handlers), and the default manager.

It holds no messages and sends no commands. The client subscribes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from tickertape.client.common.handlers import Handler


class StoredSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a subscription with a handler, as plain data that can be stored."""

    command: str
    """The command: `subscribe` or `sow_and_subscribe`."""
    topic: str
    """Name or pattern of the topics."""
    filter: str | None
    """Filter, or None."""
    options: str
    """Option string on the wire."""
    sub_id: str
    """Id of the subscription."""
    bookmark: str | None
    """Requested start, or None without a replay."""
    depth_bytes: int
    """Flow-control credit of its stream in bytes."""
    order_by: str = ""
    """Order of the records of a query."""
    top_n: int | None = None
    """Largest number of records of a query, or None."""
    skip_n: int = 0
    """Number of records to skip."""
    batch_size: int = 0
    """Records per frame, 0 for the choice of the server."""


@runtime_checkable
class SubscriptionManager(Protocol):
    """Remembers those subscriptions of an HA client that have a handler.

    The client itself resubscribes when it reconnects. A custom manager may store subscriptions on disk, so
    that they outlive the process. The client does not call the manager for subscriptions with
    `until_caught_up=True`.

    At the first logon the client calls `stored`, then `bind` for each stored subscription, and restores them
    before it makes any other subscription. The calls are sequential, and the client holds no lock during
    them. A manager must not wait for the client.
    """

    def subscribed(self, subscription: StoredSubscription) -> None:
        """Record a subscription, and drop an earlier one with the same id. The client also calls
        `subscribed` for each subscription that it restores from `stored`."""

    def unsubscribed(self, sub_id: str) -> None:
        """Record the final end of a subscription: unsubscribed, complete or refused.

        It is not called when the client closes, or when a new subscription with a handler replaces this one
        under its id.
        """

    def stored(self) -> Sequence[StoredSubscription]:
        """Return the subscriptions to restore, in subscribe order."""

    def bind(self, subscription: StoredSubscription) -> Handler | None:
        """Return the handler of a restored subscription, or None to skip it this time."""


class MemorySubscriptionManager:
    """Manager that keeps subscriptions in memory. It restores none after a restart of the process."""

    def __init__(self) -> None:
        self._by_id: dict[str, StoredSubscription] = {}

    def subscribed(self, subscription: StoredSubscription) -> None:
        """Append a subscription to the list. Remove an earlier one with the same id."""
        self._by_id.pop(subscription.sub_id, None)
        self._by_id[subscription.sub_id] = subscription

    def unsubscribed(self, sub_id: str) -> None:
        """Forget a subscription."""
        self._by_id.pop(sub_id, None)

    def stored(self) -> Sequence[StoredSubscription]:
        """Return the remembered subscriptions, in subscribe order."""
        return tuple(self._by_id.values())

    def bind(self, subscription: StoredSubscription) -> Handler | None:  # noqa: ARG002
        """Return None: this manager has no subscriptions of an earlier process."""
        return None
