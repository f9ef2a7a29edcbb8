"""Protocol state of a connection at an address that accepts replication links.

The first command of the peer decides whether the peer is a client or the source of a link. It is sans-I/O,
like `Connection`, which it uses.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tickertape.base.limits import frame_bytes_before_link_max
from tickertape.wire.commands import ClientCommand
from tickertape.wire.connection import CLIENT_ROLES, Connection, Event, Received
from tickertape.wire.link import LinkOpen
from tickertape.wire.link_connection import LINK_ROLES, LinkConnection

NO_CLIENTS_TEXT: Final = (
    "Cannot log on: this address accepts replication links only. Use another address of the server."
)
"""Error text for a client."""

_CLIENT, _SOURCE = CLIENT_ROLES["server"]._replace(refusals={}), LINK_ROLES["destination"]
_OPENS: Final = msgspec.msgpack.Decoder[ClientCommand | LinkOpen](ClientCommand | LinkOpen)
_EITHER: Final = _CLIENT._replace(
    receives=_OPENS,
    tags=(*_CLIENT.tags, str(LinkOpen.__struct_config__.tag)),
    first_bytes_max=frame_bytes_before_link_max,
    alternatives=(_CLIENT, _SOURCE),
)
_SOURCE_ONLY: Final = _SOURCE._replace(refusals={"logon": NO_CLIENTS_TEXT}, alternatives=(_SOURCE,))


class AcceptedConnection:
    """Protocol state of an accepted connection. Use it as a `Connection` in the role "server"."""

    __slots__ = ("_connection", "link")

    def __init__(self, *, clients: bool = True, scratch: memoryview | None = None) -> None:
        """`clients`: whether the address accepts clients, too."""
        self._connection = Connection(_EITHER if clients else _SOURCE_ONLY, scratch=scratch)
        self.link: LinkConnection | None = None
        """Protocol state of the link. None: the peer is a client, or has sent no command."""

    def buffer(self) -> memoryview:
        """Return the buffer for the next read, never empty. It is valid until `received`."""
        return self._connection.buffer()

    def received(self, size: int) -> list[Event]:
        """Return the events of the `size` bytes that were read into `buffer()`."""
        events = self._connection.received(size)
        if self.link is None:
            first = events[0] if events else None
            if not isinstance(first, Received) or not isinstance(first.command, LinkOpen):
                return events
            self.link = LinkConnection("destination", self._connection)
        return self.link.judged(events)

    def logged_on(self) -> None:
        """Accept the frames of a client that is logged on."""
        self._connection.logged_on()

    @property
    def large_frame(self) -> tuple[int, int] | None:
        """Size of the incomplete large frame and its received bytes, or None."""
        return self._connection.large_frame

    @property
    def speaks_http(self) -> bool:
        """Whether the peer is an HTTP client, which cannot read frames."""
        return self._connection.speaks_http

    def abandon(self) -> None:
        """Stop reading and free all read memory."""
        self._connection.abandon()
