"""Protocol state of one end of a replication link: frames, contents and order of commands.

It is sans-I/O, like `Connection`, which it uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, cast

import msgspec

from tickertape.base.errors import BadLink
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import frame_bytes_before_link_max, frame_bytes_max
from tickertape.batch import MessageBatch
from tickertape.wire.commands import Goodbye, Heartbeat
from tickertape.wire.connection import Connection, Event, PeerRole, Violation, tags_of
from tickertape.wire.link import DestinationCommand, LinkOpen, LinkOpened, LinkRuns, SourceCommand
from tickertape.wire.link_order import LinkOrder

LinkRole = Literal["source", "destination"]
"""Role of this end of the link. The source connects."""


def _out_of_order(name: str, again: bool) -> BadLink:
    if again:
        return BadLink(f"Duplicate {name}. Open a link only once per connection.")
    return BadLink(f"Unexpected {name} before the handshake of the link. Report the defect.")


_FROM_SOURCE: Final = msgspec.msgpack.Decoder[SourceCommand](SourceCommand)
_FROM_DESTINATION: Final = msgspec.msgpack.Decoder[DestinationCommand](DestinationCommand)
LINK_ROLES: Final[Mapping[LinkRole, PeerRole]] = {
    "source": PeerRole(
        "source",
        _FROM_DESTINATION,
        _FROM_SOURCE,
        tags_of(DestinationCommand),
        False,
        LinkOpened,
        (Goodbye, Heartbeat),
        (LinkRuns,),
        frame_bytes_max,
        _out_of_order,
    ),
    "destination": PeerRole(
        "destination",
        _FROM_SOURCE,
        _FROM_DESTINATION,
        tags_of(SourceCommand),
        True,
        LinkOpen,
        (),
        (LinkRuns,),
        frame_bytes_before_link_max,
        _out_of_order,
    ),
}


class LinkConnection:
    """Protocol state of one end of a link. The first command is `LinkOpen` of the source.

    Use: as `Connection`. A command of the peer that is out of order is a `Violation`, the last event. `order`
    has the state of both directions, for example the credit of the source.
    """

    __slots__ = ("_connection", "order", "role")

    def __init__(
        self, role: LinkRole, connection: Connection | None = None, *, scratch: memoryview | None = None
    ) -> None:
        """`connection`: state of a connection in this role that was accepted before its first command. Pass
        its events to `judged`."""
        self.role: Final = role
        self.order: Final = LinkOrder()
        self._connection = connection or Connection(LINK_ROLES[role], scratch=scratch)

    # -- sending --------------------------------------------------------------------------------------

    def preface(self) -> bytes:
        """Return the bytes before the first command: eight from a source, none from a destination."""
        return self._connection.preface()

    def send(
        self, command: SourceCommand | DestinationCommand, batch: MessageBatch | None = None
    ) -> list[Buffer]:
        """Return the buffers to write, in order.

        Raises `BadLink` for a command that this end may not send now, `FrameTooLarge` for a frame above the
        receiver's limit, and `BadCommand` for a superfluous or missing batch. Then nothing is sent.
        """
        buffers = self._connection.send(command, batch)
        self._take(self.role, command, batch)
        if isinstance(command, LinkOpened):
            self._connection.logged_on()
        return buffers

    # -- receiving ------------------------------------------------------------------------------------

    def buffer(self) -> memoryview:
        """Return the buffer for the next read, never empty. It is valid until `received`."""
        return self._connection.buffer()

    def received(self, size: int) -> list[Event]:
        """Return the events of the `size` bytes that were read into `buffer()`."""
        return self.judged(self._connection.received(size))

    def feed(self, data: Buffer) -> list[Event]:
        """Copy bytes that were read elsewhere, and return their events."""
        return self.judged(self._connection.feed(data))

    @property
    def held_bytes(self) -> int:
        """Bytes held for an incomplete frame (at most one)."""
        return self._connection.held_bytes

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

    def judged(self, events: list[Event]) -> list[Event]:
        """Return the events up to the first command that is out of order."""
        peer: LinkRole = "destination" if self.role == "source" else "source"
        for number, event in enumerate(events):
            if isinstance(event, Violation):
                break
            try:
                self._take(peer, cast("SourceCommand | DestinationCommand", event.command), event.batch)
            except BadLink as error:
                self._connection.abandon()
                return [*events[:number], Violation(error)]
        return events

    def _take(
        self, sender: LinkRole, command: SourceCommand | DestinationCommand, batch: MessageBatch | None
    ) -> None:
        if sender == "source":
            self.order.from_source(cast("SourceCommand", command), batch)
        else:
            self.order.from_destination(cast("DestinationCommand", command))
