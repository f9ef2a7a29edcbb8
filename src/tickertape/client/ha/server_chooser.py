"""Server chooser protocol (selects the server of each connection attempt), and the default chooser.

A chooser never connects or waits. It answers calls and receives reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from tickertape.base.errors import BadOption, TickertapeError
from tickertape.base.text_format import wrong_type
from tickertape.client.common.address import parse_uri, shown_uri
from tickertape.client.ha.authenticator import Authenticator


class ConnectionInfo(msgspec.Struct, frozen=True):
    """Connection attempt, as reported to a chooser."""

    client_name: str
    """Name of the client."""
    uri: str
    """URI from the chooser, with its password if present."""
    instance: str = ""
    """Name of the server. Empty before its answer to the logon."""
    group: str = ""
    """Replication group of the server. Empty before its answer, and if it does not replicate."""
    behind: bool = False
    """Whether the server lacks messages of the publish store that other servers acknowledged."""

    def __repr__(self) -> str:
        more = "".join(
            [
                f", instance={self.instance!r}" if self.instance else "",
                f", group={self.group!r}" if self.group else "",
                ", behind=True" if self.behind else "",
            ]
        )
        return f"ConnectionInfo(client_name={self.client_name!r}, uri={shown_uri(self.uri)!r}{more})"


@runtime_checkable
class ServerChooser(Protocol):
    """Selects the server for an HA client. A chooser serves one client at a time.

    The client calls `current_uri` and `current_authenticator` before each connection attempt, and
    `report_success` or `report_failure` after it. The calls are sequential, on the thread (or event loop)
    that connects. The client holds no lock during these calls. A chooser must not call the client.

    If `report_success` or `report_failure` raises, the exception goes to the exception listener and changes
    nothing. If another method raises, the client stops connecting, as if no server existed.
    """

    def current_uri(self) -> str | None:
        """Return the address of the next server, in any form that `Client` accepts as `uri`.

        If it returns None or an empty text, the client stops connecting. The `Disconnected` error of the
        client then contains the text that the method `error` returns.
        """

    def current_authenticator(self) -> Authenticator | None:
        """Return the authenticator for the server of `current_uri`.

        None: the client uses its `password`, or else the password in the URI.
        """

    def report_success(self, info: ConnectionInfo) -> None:
        """Record that the client is logged on to the server. `info` describes the server too."""

    def report_failure(self, error: TickertapeError, info: ConnectionInfo) -> None:
        """Record that connecting or logging on failed.

        The client does not report the loss of an established connection, with one exception: the connection
        ended because a topic of the publish store is not persistent on this server (`TopicNotRecorded`).
        """

    def error(self) -> str:
        """Return the reason why `current_uri` returned no server, as a text for people."""


class DefaultServerChooser:
    """Chooser for a list of servers: stays on a working server, and moves to the next after a failure.

    After the last server it starts with the first one again.

    Args:
        uris: One or several servers in order of preference. `add` appends more. Default none.
        authenticator: Authenticator for all servers. Default None (the password of the client or of the URI).

    Raises:
        BadOption: A server address or the authenticator is invalid.

    Example:
        >>> chooser = tt.DefaultServerChooser(["tcp://127.0.0.1:9007", "tcp://127.0.0.1:9017"])
        >>> chooser.current_uri()
        'tcp://127.0.0.1:9007'
        >>> client = tt.HAClient("risk", server_chooser=chooser)
    """

    def __init__(self, uris: str | Sequence[str] = (), *, authenticator: Authenticator | None = None) -> None:
        if authenticator is not None and not isinstance(authenticator, Authenticator):
            raise BadOption(
                wrong_type("authenticator", authenticator, "one with all methods of Authenticator")
            )
        self._uris: list[str] = []
        self._current = 0
        self._authenticator = authenticator
        self._last_error: TickertapeError | None = None
        for uri in (uris,) if isinstance(uris, str) else uris:
            self.add(uri)

    def add(self, uri: str) -> None:
        """Append a server. Raises `BadOption` for an invalid address."""
        parse_uri(uri)
        self._uris.append(uri)

    def current_uri(self) -> str | None:
        """Return the server to connect to: the first one, and after a failure the next one in the list.

        A server that works stays the current one. None if the list is empty."""
        return self._uris[self._current] if self._uris else None

    def current_authenticator(self) -> Authenticator | None:
        """Return the configured authenticator."""
        return self._authenticator

    def report_success(self, info: ConnectionInfo) -> None:  # noqa: ARG002
        """Stay on the server."""
        self._last_error = None

    def report_failure(self, error: TickertapeError, info: ConnectionInfo) -> None:
        """Move to the next server if the failed server is still the current one."""
        self._last_error = error
        if self._uris and info.uri == self._uris[self._current]:
            self._current = (self._current + 1) % len(self._uris)

    def error(self) -> str:
        """Return the text of the last failure, or `""` after a success or before any failure.

        If the chooser has no servers, the text says so.
        """
        if not self._uris:
            return "The list of servers is empty."
        return "" if self._last_error is None else str(self._last_error)
