"""Link connections: the connections of all links, their ends, and the turns of ends with work.

Invariant: each outgoing connection ends with one `LinkEnded`.
"""

from __future__ import annotations

from typing import Final

from tickertape.base.errors import (
    AuthenticationFailed,
    BadVersion,
    FrameTooLarge,
    LimitReached,
    LinkRefused,
    PublisherCollision,
    TickertapeError,
)
from tickertape.engine.replication.links.destination_end import DestinationEnd
from tickertape.engine.replication.links.parts import LinkParts
from tickertape.engine.replication.links.source_end import SourceEnd
from tickertape.engine.runtime.effects import CloseConnection, LinkEnded, SendLink
from tickertape.wire.commands import LinkMismatch

_OPERATOR_ERRORS: Final = (
    AuthenticationFailed,
    BadVersion,
    FrameTooLarge,
    LimitReached,
    LinkRefused,
    PublisherCollision,
)
"""Errors with causes that only an operator can change."""


class LinkConnections:
    """The connections of all links."""

    def __init__(self, parts: LinkParts) -> None:
        self._parts = parts
        self._outbox = parts.outbox
        self.ends: dict[int, SourceEnd | DestinationEnd | None] = {}
        """Ends by connection. None before the handshake of an incoming one. Callers must not change it."""
        self.ready: dict[SourceEnd | DestinationEnd, None] = {}
        """Ends with work, in the order of their turns. Callers must not change it."""

    def add(self, conn: int, end: SourceEnd | DestinationEnd | None) -> None:
        """Add a connection, or the end of one after its handshake."""
        self.ends[conn] = end

    def take_ready(self) -> SourceEnd | DestinationEnd | None:
        """Remove and return the end whose turn it is, or None."""
        if not self.ready:
            return None
        end = next(iter(self.ready))
        del self.ready[end]
        return end

    def take_ready_sync(self) -> list[SourceEnd]:
        """Remove and return the ends of synchronous links with work."""
        found = [end for end in self.ready if isinstance(end, SourceEnd) and end.state.number is not None]
        for end in found:
            del self.ready[end]
        return found

    # -- ends -----------------------------------------------------------------------------------------

    def end(self, conn: int, error: TickertapeError, mismatches: tuple[LinkMismatch, ...] = ()) -> None:
        """Send a goodbye with an error, and close the connection."""
        self._outbox.close(conn, error, mismatches)
        self.remove(conn, error)

    def left(self, conn: int, error: TickertapeError) -> None:
        """Close a connection after the goodbye of the other end."""
        self._outbox.put(CloseConnection(conn, error.code, str(error)))
        self.remove(conn, error)

    def remove(self, conn: int, error: TickertapeError | None) -> None:
        """Remove a connection, with the error that ended it."""
        end = self.ends.pop(conn, None)
        for part in (self._parts.throttle, self._outbox):
            part.forget(conn)
        self._parts.heartbeats.drop(conn)
        if end is None:
            return
        self.ready.pop(end, None)
        state = end.state
        state.refused = isinstance(error, _OPERATOR_ERRORS)
        state.error = state.error if error is None else str(error)
        opened = isinstance(end, DestinationEnd) or end.source is not None
        state.counters.disconnects += opened
        if isinstance(end, SourceEnd):
            end.state.ended(end)
            self._outbox.put(LinkEnded(conn, end.name, error, state.refused))
        else:
            end.state.end = None
        if opened or error is not None:
            name = "link_refused" if state.refused else "link_disconnected"
            self.event(name, end, warning=True, error=error)

    def event(
        self,
        name: str,
        end: SourceEnd | DestinationEnd,
        *,
        warning: bool = False,
        error: TickertapeError | None = None,
        **fields: str | int,
    ) -> None:
        """Log an event of a link."""
        other = {"destination": end.name} if isinstance(end, SourceEnd) else {"source": end.name}
        cause = {} if error is None else {"code": error.code, "text": str(error)}
        self._outbox.log_event(name, warning, {**other, **fields, **cause})

    # -- work -----------------------------------------------------------------------------------------

    def refresh(self, end: SourceEnd | DestinationEnd) -> None:
        """Send the commands that need no step, and note whether an end has work."""
        if self.ends.get(end.conn) is not end:
            return
        if isinstance(end, DestinationEnd):
            for command in end.take_commands():
                self._outbox.put(SendLink(end.conn, command))
            if end.overfull:
                self._parts.throttle.pause(end.conn, "replication")
            else:
                self._parts.throttle.resume(end.conn, "replication")
        if end.has_work:
            self.ready[end] = None
        else:
            self.ready.pop(end, None)
