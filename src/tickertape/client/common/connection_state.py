"""Connection states of a client."""

from __future__ import annotations

import enum
from collections.abc import Callable


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
