"""HTTP connection of the admin address. h11 implements the protocol.

Invariants:
- The head of a request has at most `admin_request_bytes_max`, however its bytes were split. Requests with a
  body are rejected. A connection holds one answer.
- A connection closes when its request or answer makes no progress within `admin_request_seconds_max`.
- Protection against DNS rebinding: the `Host` header must be an IP address, the local host, or a name that
  the configuration lists. An attacker's page can point the attacker's own name at this machine, but not an
  address.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Final, NamedTuple, cast

import h11

from tickertape.base.text_format import listed
from tickertape.security.tls_channel import HANDSHAKE_BYTE
from tickertape.server.config.addresses import is_address, remote_address
from tickertape.server.events import event
from tickertape.server.limits import admin_connections_max, admin_request_bytes_max, admin_request_seconds_max
from tickertape.wire.commands import PREFACE

_METHODS: Final = (b"GET", b"HEAD")
_NATIVE: Final = PREFACE[:-1]
"""First bytes of a Tickertape client."""
_LONG_HEAD: Final = (
    f"Cannot read the request: its head has more than {admin_request_bytes_max} bytes. Send fewer headers.\n"
)


_NO_HOST: Final = b"localhost"
"""Host of a request without the header. Only HTTP/1.0 allows that, and no browser uses HTTP/1.0."""
_MISDIRECTED: Final = (
    b"Cannot answer: unknown host name. Use the IP address of the server, or add the name to hosts in "
    b"[admin] of its configuration.\n"
)


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"  # language: a media type, not prose


Answering = Callable[[str, str], Awaitable[Answer]]
"""Callback that answers a GET. Arguments: target (path and query), and the `Accept` header."""
Changing = Callable[[str, str, str], Awaitable[Answer]]
"""Callback that answers a POST. Arguments: target, and the headers `Content-Type` and `Authorization`."""


class HttpConnection(asyncio.Protocol):
    """One connection of the admin address.

    `connections`: all open connections of the admin server. `hosts`: accepted host names, besides IP
    addresses and the local host. `changing`: answers POST requests. None: they are refused."""

    def __init__(
        self,
        answering: Answering,
        connections: set[HttpConnection],
        *,
        hosts: Collection[str] = (),
        changing: Changing | None = None,
        seconds_max: float = admin_request_seconds_max,
    ) -> None:
        self._changing = changing
        self._allowed = ("GET", "HEAD") if changing is None else ("GET", "HEAD", "POST")
        self._answering = answering
        self._connections = connections
        self._hosts = hosts
        self._seconds_max = seconds_max
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=admin_request_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._request: h11.Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._untaken = False
        """Part of the last answer is not written yet."""
        self._first = b""
        """First bytes of the connection, which show the protocol of the client."""
        self._refused = False
        """The connection was refused, and waits for the client to close."""

    # -- called by the event loop ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        self._connections.add(self)
        self._set_timer()
        if len(self._connections) > admin_connections_max:
            text = f"Too many connections (limit {admin_connections_max}). Try again later.\n"
            self._refuse(503, text, linger=False)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if len(self._first) < len(_NATIVE):
            self._first += data[: len(_NATIVE) - len(self._first)]
            if self._first == _NATIVE:  # h11 would wait for the end of a request line
                self._refuse_protocol("Tickertape clients. Use the listen address of the server.")
                return
            if self._first[0] == HANDSHAKE_BYTE:
                self._refuse_protocol("TLS. Use http://.")
                return
        self._http.receive_data(data)
        self._read_on()

    def eof_received(self) -> bool:
        if self._refused:
            return False
        self._http.receive_data(b"")
        self._read_on()
        return self._task is not None or self._untaken  # keep the connection open until answers are sent

    def pause_writing(self) -> None:
        self._untaken = True

    def resume_writing(self) -> None:
        self._untaken = False
        if self._answered:
            self._next_request()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (an error of the peer)
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    # -- requests -------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        """Read the received bytes up to the end of one request."""
        if self._task is not None or self._untaken or self._closing:
            return
        try:
            while True:
                unread = len(self._http.trailing_data[0])
                event = self._http.next_event()
                if isinstance(event, h11.Request):
                    self._request = event
                    # h11 limits only heads that are incomplete after a read.
                    if unread - len(self._http.trailing_data[0]) > admin_request_bytes_max:
                        self._refuse(431, _LONG_HEAD)
                        return
                    if _has_body(event):
                        self._refuse(413, "Cannot accept a request body. Send the request without one.\n")
                        return
                elif isinstance(event, h11.EndOfMessage):
                    assert self._request is not None
                    assert self._transport is not None
                    self._transport.pause_reading()  # one request at a time
                    self._task = asyncio.get_running_loop().create_task(self._answer(self._request))
                    return
                elif isinstance(event, h11.ConnectionClosed):
                    self._close()
                    return
                else:  # NEED_DATA
                    return
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            self._refuse(status, _LONG_HEAD if status == 431 else f"Invalid HTTP request: {error}\n")

    async def _answer(self, request: h11.Request) -> None:
        changes = request.method == b"POST" and self._changing is not None
        if request.method not in _METHODS and not changes:
            answer = Answer(405, f"Invalid method. Use {listed(self._allowed)}.\n".encode())
        elif not answers_to(_header(request, b"host", _NO_HOST), self._hosts):
            answer = Answer(421, _MISDIRECTED)
        else:
            target = request.target.decode("ascii", "replace")
            if changes and self._changing is not None:
                kind, authorization = _header(request, b"content-type"), _header(request, b"authorization")
                answer = await self._changing(target, kind, authorization)
            else:
                answer = await self._answering(target, _header(request, b"accept"))
        self._task = None
        self._set_timer()
        self._send(answer, head_only=request.method == b"HEAD")
        if not self._answered:
            self._close()
        elif not self._untaken:
            self._next_request()

    @property
    def _answered(self) -> bool:
        """Whether the answer is complete and another request may follow on this connection."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    def _next_request(self) -> None:
        """Start the next request cycle. The last answer is written, so answers do not accumulate."""
        self._set_timer()
        self._http.start_next_cycle()
        self._request = None
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self._read_on()

    def _refuse(self, status: int, text: str, *, linger: bool = True) -> None:
        """Answer with an error and close the connection.

        With `linger`, wait until the client has closed too or the timer fires, and drop the bytes that it
        still sends. Closing a socket with unread bytes resets the connection, which can lose the answer."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head_only = self._request is not None and self._request.method == b"HEAD"
            self._send(Answer(status, text.encode()), head_only=head_only, last=True)
        if not linger:
            self._close()
            return
        assert self._transport is not None
        self._refused = True
        self._set_timer()
        with contextlib.suppress(OSError):  # the connection is closed already
            self._transport.write_eof()

    def _refuse_protocol(self, what: str) -> None:
        """Answer a client of another protocol, and log it."""
        text = f"Cannot serve {what}"
        assert self._transport is not None
        address = remote_address(self._transport.get_extra_info("peername"))
        event("admin_refused", address=address or None, text=text)
        self._refuse(400, f"{text}\n")

    def _send(self, answer: Answer, *, head_only: bool, last: bool = False) -> None:
        headers = [
            ("content-type", answer.content_type),
            ("content-length", str(len(answer.body))),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
        ]
        if answer.status == 405:
            headers.append(("allow", ", ".join(self._allowed)))
        if answer.status == 401:
            headers.append(("www-authenticate", "Bearer"))
        if last:
            headers.append(("connection", "close"))
        data = self._http.send(h11.Response(status_code=answer.status, headers=headers)) or b""
        if not head_only:
            data += self._http.send(h11.Data(data=answer.body)) or b""
        data += self._http.send(h11.EndOfMessage()) or b""
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(data)

    # -- close ----------------------------------------------------------------------------------------

    @property
    def _closing(self) -> bool:
        return self._transport is None or self._transport.is_closing() or self._refused

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()  # buffered data is written first, until the timer fires

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._seconds_max, self._late)

    def _late(self) -> None:
        """Close after the timeout: incomplete request, unread answer, or idle connection."""
        assert self._transport is not None
        unfinished = self._http.trailing_data[0]
        try:
            if unfinished and self._task is None and not self._untaken and not self._closing:
                self._refuse(408, f"Request not complete within {self._seconds_max:g} s.\n")
        finally:
            self.abort()

    def abort(self) -> None:
        """Close now and drop unwritten data."""
        if self._transport is not None:
            self._transport.abort()


def _has_body(request: h11.Request) -> bool:
    """Return whether a request announces a body. The client may wait before it sends the body."""
    return bool(_header(request, b"transfer-encoding")) or int(_header(request, b"content-length", b"0")) > 0


def _header(request: h11.Request, name: bytes, default: bytes = b"") -> str:
    """Return the first header with that name."""
    return next((value for found, value in request.headers if found == name), default).decode("latin-1")


# -- host names ---------------------------------------------------------------------------------------


_LOCAL: Final = "localhost"


def answers_to(header: str, names: Collection[str]) -> bool:
    """Return whether a `Host` header is accepted: an IP address, the local host, or one of `names`.

    The port is ignored."""
    host = _host(header)
    if host is None:
        return False
    return is_address(host) or host == _LOCAL or host.endswith(f".{_LOCAL}") or host in map(plain, names)


def plain(name: str) -> str:
    """Return a host name in the form used for comparison."""
    return name.lower().removesuffix(".")


def _host(header: str) -> str | None:
    """Return the host of `host`, `host:port`, `[v6]` or `[v6]:port`, without brackets. None if invalid."""
    host, colon, port = header.strip().partition("]") if header.startswith("[") else header.partition(":")
    if header.startswith("["):
        if not colon or (port and not port.startswith(":")):
            return None
        host, port = host[1:], port[1:]
    if port and not (port.isascii() and port.isdigit()):
        return None
    return plain(host)
