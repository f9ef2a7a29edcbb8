"""Connection states of a client, and the listeners for them."""

from __future__ import annotations

import enum
from collections.abc import Callable

from tickertape.base.errors import UsageError


class ConnectionState(enum.StrEnum):
    """States of a connection, in the order in which listeners get them."""

    CONNECTED = "connected"
    """The connection stands; the logon is under way."""
    LOGGED_ON = "logged_on"
    """The server has accepted the logon."""
    PUBLISH_REPLAYED = "publish_replayed"
    """Messages of the publish store that the server lacked were sent again."""
    RESUBSCRIBED = "resubscribed"
    """Subscriptions stand again: everything may be called. Only of HA clients."""
    DISCONNECTED = "disconnected"
    """The connection is gone, or an HA client has given up."""
    SHUTDOWN = "shutdown"
    """The client was closed; nothing follows."""


StateListener = Callable[[ConnectionState], object]


class StateListeners:
    """Listeners in the order in which they were added; each once."""

    def __init__(self) -> None:
        self.listeners: tuple[StateListener, ...] = ()

    def add(self, listener: StateListener) -> None:
        """Add `listener`, once. Raises `UsageError`."""
        if not callable(listener):
            raise UsageError(f"a connection-state listener is called with a state, not {listener!r}")
        if listener not in self.listeners:
            self.listeners = (*self.listeners, listener)

    def remove(self, listener: StateListener) -> None:
        """Remove it, if it was added."""
        self.listeners = tuple(one for one in self.listeners if one != listener)
