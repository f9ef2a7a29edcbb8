"""Subscription manager protocol: remembers the subscriptions of handlers; and the default one.

It holds no messages, and places no subscription itself: the client does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from tickertape.client.common.handlers import Handler


class StoredSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a subscription whose messages go to a handler: plain data that can be written down.

    `command` is `subscribe`; `options` the option string that is sent; `bookmark` the start that was asked
    for, None when it is no bookmark subscription; `depth_bytes` the depth of its stream.
    """

    command: str
    topic: str
    filter: str | None
    options: str
    sub_id: str
    bookmark: str | None
    depth_bytes: int


@runtime_checkable
class SubscriptionManager(Protocol):
    """Remembers the subscriptions of an HA client whose messages go to handlers.

    The client itself places them again when it reconnects. A manager of an application's own may keep them
    through the end of the process: at the first logon the client asks for what is `stored`, has it bound to
    handlers, and places it, before any other subscription. The calls come one at a time and never under a
    lock of the client; they must not wait for the client.
    """

    def subscribed(self, subscription: StoredSubscription) -> None:
        """It was placed; one with the same id was replaced by it, or was itself brought back."""

    def unsubscribed(self, sub_id: str) -> None:
        """It is over for good: unsubscribed, complete, or refused, and nothing with a handler goes on under
        its id. Not told when the client closes."""

    def stored(self) -> Sequence[StoredSubscription]:
        """Return the subscriptions to restore, in the order of their placement."""

    def bind(self, subscription: StoredSubscription) -> Handler | None:
        """Return the handler of a restored subscription; None = leave it out this time."""


class MemorySubscriptionManager:
    """Remembers them as long as the process lasts, so there is nothing to be brought back at its start."""

    def __init__(self) -> None:
        self._by_id: dict[str, StoredSubscription] = {}

    def subscribed(self, subscription: StoredSubscription) -> None:
        """Remember it, behind the others."""
        self._by_id.pop(subscription.sub_id, None)
        self._by_id[subscription.sub_id] = subscription

    def unsubscribed(self, sub_id: str) -> None:
        """Forget it."""
        self._by_id.pop(sub_id, None)

    def stored(self) -> Sequence[StoredSubscription]:
        """Return the remembered subscriptions, in the order of their placement."""
        return tuple(self._by_id.values())

    def bind(self, subscription: StoredSubscription) -> Handler | None:  # noqa: ARG002
        """Return None: handlers do not outlive the client."""
        return None
