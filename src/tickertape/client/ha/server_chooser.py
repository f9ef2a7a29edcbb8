"""Server chooser protocol: where to connect next, and as whom; and the default one.

A chooser never connects or waits: it is asked, and gets reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from tickertape.base.errors import BadOption, TickertapeError
from tickertape.client.common.address import parse_uri, shown_uri
from tickertape.client.ha.authenticator import Authenticator


class ConnectionInfo(msgspec.Struct, frozen=True):
    """An attempt, as reported to a chooser."""

    client_name: str
    uri: str
    """As the chooser gave it, with the password if there is one in it."""

    def __repr__(self) -> str:
        return f"ConnectionInfo(client_name={self.client_name!r}, uri={shown_uri(self.uri)!r})"


@runtime_checkable
class ServerChooser(Protocol):
    """Says which server an HA client connects to. A chooser serves one client at a time.

    The first two are asked before each attempt, and one of the reports comes after it. The calls come one at
    a time, never under a lock of the client, on the thread (or loop) that connects. A chooser must not call
    the client. What it raises ends the connecting as if there were no server; what a report raises goes to
    the exception listener and changes nothing.
    """

    def current_uri(self) -> str | None:
        """Where to connect next, `tcp://host:port` or `unix:///path`; None or empty when there is nowhere to
        connect: the client gives up then, with the text of `error`."""

    def current_authenticator(self) -> Authenticator | None:
        """Who gives the password there; None = the password of the client or of the URI."""

    def report_success(self, info: ConnectionInfo) -> None:
        """The client is logged on there."""

    def report_failure(self, error: TickertapeError, info: ConnectionInfo) -> None:
        """Connecting or logging on failed there. A connection that is lost later is no failure, unless the
        server does not record a topic for which the publish store holds messages (`TopicNotRecorded`)."""

    def error(self) -> str:
        """Why `current_uri` gave none: a text for people."""


class DefaultServerChooser:
    """Goes through a list of servers: stays on one that works, moves on when one fails, and wraps round.

    `uris`: one or several, in the order of preference; more come with `add`. `authenticator`: for all of
    them. Raises `BadOption` for what is no server address.
    """

    def __init__(self, uris: str | Sequence[str] = (), *, authenticator: Authenticator | None = None) -> None:
        if authenticator is not None and not isinstance(authenticator, Authenticator):
            raise BadOption(f"a {type(authenticator).__name__} is no Authenticator: it lacks methods of it")
        self._uris: list[str] = []
        self._current = 0
        self._authenticator = authenticator
        self._last_error: TickertapeError | None = None
        for uri in (uris,) if isinstance(uris, str) else uris:
            self.add(uri)

    def add(self, uri: str) -> None:
        """Put another server behind the others. Raises `BadOption`."""
        parse_uri(uri)
        self._uris.append(uri)

    def current_uri(self) -> str | None:
        """The server that worked last, or the one behind the last that failed; None without servers."""
        return self._uris[self._current] if self._uris else None

    def current_authenticator(self) -> Authenticator | None:
        """The one that was given."""
        return self._authenticator

    def report_success(self, info: ConnectionInfo) -> None:  # noqa: ARG002
        """Stay where it is."""
        self._last_error = None

    def report_failure(self, error: TickertapeError, info: ConnectionInfo) -> None:
        """Move on, unless it did already."""
        self._last_error = error
        if self._uris and info.uri == self._uris[self._current]:
            self._current = (self._current + 1) % len(self._uris)

    def error(self) -> str:
        """That there are no servers, or what failed last."""
        if not self._uris:
            return "the list of servers is empty"
        return "" if self._last_error is None else str(self._last_error)
