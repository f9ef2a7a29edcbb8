"""Connection states of a client."""

from __future__ import annotations

import enum
from collections.abc import Callable


class ConnectionState(enum.StrEnum):
    """Connection states, in the order in which listeners receive them."""

    CONNECTED = "connected"
    """The connection is open, and the logon is in progress."""
    LOGGED_ON = "logged_on"
    """The server has accepted the logon."""
    PUBLISH_REPLAYED = "publish_replayed"
    """The client has resent messages of the publish store that the server did not have."""
    RESUBSCRIBED = "resubscribed"
    """All subscriptions are active again, and every call is possible. HA clients only."""
    DISCONNECTED = "disconnected"
    """The connection is lost, or an HA client has given up."""
    SHUTDOWN = "shutdown"
    """The client was closed. This is the last state."""


StateListener = Callable[[ConnectionState], object]
