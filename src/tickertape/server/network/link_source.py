"""Outgoing connections of replication links: the end that connects, with and without TLS.

Invariant: the handler gets no event before the connection is established, TLS included.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, NamedTuple, Protocol

from tickertape.base.errors import Disconnected, TickertapeError
from tickertape.security.tls_channel import TlsChannel
from tickertape.server.network.connection import ConnectionHandler, PeerConnection
from tickertape.server.network.tls_connection import TlsPeerConnection
from tickertape.wire.link_connection import LinkConnection

_LOST: Final = "Cannot open a link: the destination closed the connection before it was established."


class LinkTarget(NamedTuple):
    """A destination of a link."""

    name: str
    """Instance name of the destination."""
    token: str | None
    """Token for the destination. None: it needs none."""

    def __repr__(self) -> str:
        return f"LinkTarget({self.name!r})"  # never show a token


class LinkHandler(ConnectionHandler, Protocol):
    """Receiver of the events of the connections of outgoing links."""

    def link_connected(self, connection: LinkSourceConnection) -> int:
        """Register an established connection. Return its number."""


class LinkSourceConnection(PeerConnection):
    """The connection of an outgoing link."""

    def __init__(
        self, handler: LinkHandler, target: LinkTarget, established: asyncio.Future[TickertapeError | None]
    ) -> None:
        """`established`: completed when the connection is established, or with the error of the attempt."""
        self._link = LinkConnection("source", scratch=handler.scratch)
        super().__init__(handler, self._link)
        self._links = handler
        self.destination = target.name
        self.target = target
        self._established = established

    @property
    def link(self) -> LinkConnection:
        return self._link

    @property
    def registered(self) -> bool:
        """Whether the handler has the connection."""
        return self._conn != 0

    def give_up(self) -> None:
        """Close the connection, if it exists."""
        if self._transport is not None:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._conn:
            super().connection_lost(exc)
        else:
            self._fail(Disconnected(_LOST))

    def _begin(self) -> None:
        self._write([self._link.preface()])
        self._conn = self._links.link_connected(self)
        if not self._established.done():  # the attempt may be over
            self._established.set_result(None)

    def _fail(self, error: TickertapeError) -> None:
        """End an attempt to connect."""
        if not self._established.done():
            self._established.set_result(error)


class TlsLinkSourceConnection(TlsPeerConnection, LinkSourceConnection):
    """The connection of an outgoing link over TLS. `server_name`: name that the certificate must contain."""

    def __init__(
        self,
        handler: LinkHandler,
        target: LinkTarget,
        established: asyncio.Future[TickertapeError | None],
        context: ssl.SSLContext,
        server_name: str,
    ) -> None:
        LinkSourceConnection.__init__(self, handler, target, established)
        self._use(TlsChannel(context, server_name=server_name))

    def _begin(self) -> None:
        self._channel.shake()
        self._write_out(self._channel.take())

    def _shake(self, data: memoryview) -> bool:
        done = super()._shake(data)
        if done:
            LinkSourceConnection._begin(self)
        return done

    def _refused(self, error: TickertapeError) -> None:
        if self._conn:
            super()._refused(error)
        else:
            self._fail(error)
            self.give_up()
