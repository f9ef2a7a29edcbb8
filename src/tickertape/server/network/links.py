"""Outgoing links: connects to the destinations of this server, and connects again after each end.

Invariants:
- A destination has at most one connection, or one attempt to connect.
- Only the latest connection of a destination moves its dialer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from tickertape.base.errors import TickertapeError
from tickertape.server.config.addresses import ListenAddress, parse_server
from tickertape.server.config.replication import DestinationConfig
from tickertape.server.events import event
from tickertape.server.limits import link_connect_seconds_max
from tickertape.server.network.link_dialer import LinkDialer
from tickertape.server.network.link_source import (
    LinkHandler,
    LinkSourceConnection,
    LinkTarget,
    TlsLinkSourceConnection,
)

_TIMED_OUT: Final = f"no connection within {link_connect_seconds_max:g} s"


class LinkCredentials(Protocol):
    """Tokens and certificates of outgoing links."""

    def link_token(self, destination: str) -> str | None:
        """Return the token for a destination. None: it needs none."""

    def link_context(self, destination: str) -> ssl.SSLContext | None:
        """Return the TLS context for a destination. None: none of its addresses uses TLS."""


class DialState(NamedTuple):
    """State of the connection of an outgoing link, for statistics."""

    address: str
    """Address of the connection, or of the next attempt."""
    error: str
    """Text of the failure of the last attempt to connect. Empty after a connection."""
    wait: float
    """Seconds until the next attempt. 0 without one."""


class _OutgoingLink:
    """One destination."""

    def __init__(self, destination: DestinationConfig) -> None:
        self.name = destination.name
        self.dialer = LinkDialer(destination.addresses)
        self.timer: asyncio.TimerHandle | None = None
        self.attempt: asyncio.Task[None] | None = None
        self.connection: LinkSourceConnection | None = None
        """Connection of the last attempt."""
        self.error = ""


class OutgoingLinks:
    """The links from this server to its destinations."""

    def __init__(
        self, instance: str, destinations: Sequence[DestinationConfig], credentials: LinkCredentials
    ) -> None:
        self.instance = instance
        """Name of this server."""
        self._links = {one.name: _OutgoingLink(one) for one in destinations}
        self._credentials = credentials
        self._loop: asyncio.AbstractEventLoop
        self._handler: LinkHandler
        self._stopped = False

    def start(self, loop: asyncio.AbstractEventLoop, handler: LinkHandler) -> None:
        """Connect to all destinations. `handler` gets the connections."""
        self._loop, self._handler = loop, handler
        for link in self._links.values():
            link.dialer.start(time.monotonic())
            self._schedule(link)

    def stop(self) -> None:
        """Make no more connections."""
        self._stopped = True
        for link in self._links.values():
            if link.timer is not None:
                link.timer.cancel()
            if link.attempt is not None:
                link.attempt.cancel()
            if link.connection is not None and not link.connection.registered:
                link.connection.give_up()

    def opened(self, destination: str) -> None:
        """Note that a destination accepted its link."""
        self._links[destination].dialer.opened(time.monotonic())

    def ended(self, destination: str, *, refused: bool) -> None:
        """Connect again after the end of a link. `refused`: after a long wait."""
        link = self._links[destination]
        link.dialer.ended(time.monotonic(), random.random(), refused=refused)
        self._schedule(link)

    def came(self, source: str) -> None:
        """Connect at once to a server that opened a link to this one, if it is a destination that waits."""
        link = self._links.get(source)
        if link is not None and link.timer is not None:
            link.timer.cancel()
            link.dialer.hurry(time.monotonic())
            self._schedule(link)

    def state(self, destination: str) -> DialState:
        """Return the state of the connection to a destination."""
        link = self._links[destination]
        due = link.dialer.due
        wait = 0.0 if due is None else max(due - time.monotonic(), 0.0)
        return DialState(link.dialer.address, link.error, wait)

    # -- attempts -------------------------------------------------------------------------------------

    def _schedule(self, link: _OutgoingLink) -> None:
        due = link.dialer.due
        link.timer = None
        if not self._stopped and due is not None:
            link.timer = self._loop.call_later(max(due - time.monotonic(), 0.0), self._attempt, link)

    def _attempt(self, link: _OutgoingLink) -> None:
        link.timer = None
        link.attempt = self._loop.create_task(self._try(link, link.dialer.attempt()))

    async def _try(self, link: _OutgoingLink, address: str) -> None:
        """Try to connect. `ended` follows, from here or from the handler."""
        try:
            await self._connect(link, parse_server(address))
        except (OSError, ValueError, TickertapeError) as error:
            if link.connection is not None and link.connection.registered:
                return  # at the last moment: the handler has the connection, and reports its end
            text = _text_of(error)
            if text != link.error:
                fields = {"destination": link.name, "address": address, "text": text}
                event("link_connect_failed", logging.WARNING, **fields)
            link.error = text
            if link.connection is not None:
                link.connection.give_up()
            self.ended(link.name, refused=False)
        else:
            link.error = ""

    async def _connect(self, link: _OutgoingLink, address: ListenAddress) -> None:
        """Connect and wait until the connection is established. Raises an error if it fails."""
        link.connection = None
        established: asyncio.Future[TickertapeError | None] = self._loop.create_future()
        make = partial(self._make, link, address, established)
        async with asyncio.timeout(link_connect_seconds_max):
            if address.path:
                await self._loop.create_unix_connection(make, address.path)
            else:
                await self._loop.create_connection(make, address.host, address.port)
            error = await established
        if error is not None:
            raise error

    def _make(
        self, link: _OutgoingLink, address: ListenAddress, established: asyncio.Future[TickertapeError | None]
    ) -> LinkSourceConnection:
        """Return the object for a connection."""
        target = LinkTarget(link.name, self._credentials.link_token(link.name))
        context = self._credentials.link_context(link.name) if address.tls else None
        if context is None:
            link.connection = LinkSourceConnection(self._handler, target, established)
        else:
            link.connection = TlsLinkSourceConnection(
                self._handler, target, established, context, address.host
            )
        return link.connection


def _text_of(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return _TIMED_OUT
    if isinstance(error, OSError) and not isinstance(error, TickertapeError):
        return error.strerror or str(error)
    return str(error)
