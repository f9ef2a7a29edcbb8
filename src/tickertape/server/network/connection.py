"""Connections of a server: listening sockets, and the bytes received and sent on each connection.

The wire protocol state machine decodes commands. The connection handler executes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import stat
import sys
import termios
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Buffer
from tickertape.engine.limits import outbox_bytes_max
from tickertape.server.config.addresses import parse_listen, remote_address
from tickertape.wire.connection import HTTP_TEXT, Connection, Received, Violation
from tickertape.wire.heartbeat import Liveness

if TYPE_CHECKING:  # only servers that replicate import them
    from tickertape.wire.accepted_connection import AcceptedConnection
    from tickertape.wire.link_connection import LinkConnection

_BACKLOG: Final = 1024
_TAKEN: Final = (errno.EAGAIN, errno.EPROTOTYPE)
"""Errors of a socket on which another process listens: full accept queue, or another socket type."""


class ConnectionHandler(Protocol):
    """Receiver of the events of connections. `conn` is the number returned by `connected`."""

    scratch: memoryview
    """Receive buffer shared by all connections. The bytes of a read are consumed before the next read."""
    cipher_scratch: memoryview
    """Receive buffer for encrypted bytes, shared in the same way."""

    def connected(self, connection: PeerConnection) -> int:
        """Register an accepted connection. Return its number."""

    def received(self, conn: int, events: list[Received | Violation]) -> None:
        """Handle the decoded frames of a connection."""

    def violated(self, conn: int, error: TickertapeError) -> None:
        """Close a connection after a protocol violation."""

    def writable(self, conn: int, *, writable: bool) -> None:
        """Report whether the outbox of a connection is below its limit."""

    def large_frame(self, conn: int, size: int, received: int) -> None:
        """Report the received bytes of an incomplete large frame."""

    def large_frame_ended(self, conn: int) -> None:
        """Report that the large frame of a connection is complete."""

    def lost(self, conn: int) -> None:
        """Remove a closed connection."""


_HTTP_REFUSAL: Final = (
    "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"  # language: HTTP, not prose
    f"content-length: {len(HTTP_TEXT) + 1}\r\nconnection: close\r\n\r\n{HTTP_TEXT}\n"
).encode()


class PeerConnection(asyncio.BufferedProtocol):
    """The connection of a client or of another server. `wire`: its protocol state."""

    def __init__(
        self, handler: ConnectionHandler, wire: Connection | AcceptedConnection | LinkConnection
    ) -> None:
        self._handler = handler
        self._wire = wire
        self._transport: asyncio.Transport | None = None
        self._conn = 0
        self._unread_for: set[str] = set()
        self.address = ""
        """Remote address: `host:port`, empty for a Unix socket."""
        self.client = ""
        """Client name of its logon. Of a link the names of source and destination."""
        self.source = self.destination = ""
        """Instance name of the other end of a link: its source if it is an accepted one, else its
        destination."""
        self.user: str | None = None
        """Name of the token of an accepted link. None: it has none."""
        self.ended = ("", "")
        """Error code and text with which the server closed it."""
        self.since = time.monotonic()
        """Time at which it was made, in monotonic seconds."""
        self._heard_at = self._said_at = self.since
        self.decoding_since = self.since
        """Time at which the event loop began to decode the last received bytes, in monotonic seconds."""
        self._read_bytes = 0
        self._descriptor = -1
        self._closing = False
        """Whether the server has stopped sending."""
        self._http = False
        """Whether the client sent an HTTP request instead of a TLS handshake."""
        self._large = False
        """Whether a large frame is incomplete."""
        self.takes_logon = True
        """Whether the connection has no successful logon yet, or no open link."""

    # -- called by the event loop ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop do not inherit from those of asyncio.
        self._transport = stream = cast("asyncio.Transport", transport)
        self._descriptor = stream.get_extra_info("socket").fileno()
        stream.set_write_buffer_limits(high=outbox_bytes_max, low=outbox_bytes_max // 4)
        self.address = remote_address(transport.get_extra_info("peername"))
        self._begin()

    def _begin(self) -> None:
        """Register the new connection."""
        self._conn = self._handler.connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (the wire machine knows what it needs)
        return self._handler.scratch if self._closing else self._wire.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        self.decoding_since = self._heard_at = time.monotonic()
        self._read_bytes += nbytes
        self._decode(nbytes)

    def _decode(self, nbytes: int) -> None:
        """Decode `nbytes` received into the buffer of the wire state machine."""
        events = self._wire.received(nbytes)
        large = self._wire.large_frame
        if large is not None:
            self._large = True
            self._handler.large_frame(self._conn, *large)
        elif self._large:
            self._large = False
            self._handler.large_frame_ended(self._conn)
        if events:
            self._handler.received(self._conn, events)

    def pause_writing(self) -> None:
        self._handler.writable(self._conn, writable=False)

    def resume_writing(self) -> None:
        self._handler.writable(self._conn, writable=True)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (an error of the peer)
        self._descriptor = -1
        self._handler.lost(self._conn)

    # -- called by the handler -------------------------------------------------------------------------

    def send(self, buffers: list[Buffer]) -> None:
        """Write buffers in order. An HTTP client gets an HTTP answer instead."""
        self._write([_HTTP_REFUSAL] if self._http or self._wire.speaks_http else buffers)

    def _write(self, buffers: list[Buffer]) -> None:
        assert self._transport is not None
        if not self._transport.is_closing() and not self._closing:
            self._transport.writelines(buffers)
            self._said_at = time.monotonic()

    @property
    def link(self) -> LinkConnection | None:
        """Protocol state of the link. None: the peer is a client, or has sent no command."""
        return None

    def opens(self, source: str, user: str | None) -> None:
        """Note the handshake of an accepted link: its source, and the name of its token."""
        self.source, self.user = source, user

    def linked(self, name: str) -> None:
        """Note that the link is open. `name`: its source and destination."""
        self.client = name
        self.takes_logon = False

    def set_reading(self, *, enabled: bool, reason: str) -> None:
        """Add or remove a reason not to read from the socket. Reading resumes without reasons."""
        assert self._transport is not None
        (self._unread_for.discard if enabled else self._unread_for.add)(reason)
        if not self._unread_for or self._closing:
            self._resume_reading()
            return
        with contextlib.suppress(RuntimeError):  # the transport is closing
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        assert self._transport is not None
        with contextlib.suppress(RuntimeError):  # the transport is closing
            self._transport.resume_reading()

    def unread_for(self, reason: str) -> bool:
        """Return whether the socket is not read for this reason."""
        return reason in self._unread_for

    def liveness(self) -> Liveness:
        """Return the activity of the connection, for the heartbeat."""
        # A client that does not read may be dead. All other reasons to stop reading are the server's own.
        excused = bool(self._unread_for - {"outbox"})
        return Liveness(
            heard_at=self._heard_at,
            read_bytes=self._read_bytes,
            said_at=self._said_at,
            unwritten=self.outbox_bytes > 0,
            unread_bytes=_unread_bytes(self._descriptor),
            excused=excused,
        )

    @property
    def outbox_bytes(self) -> int:
        """Bytes waiting to be written."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self, code: str, text: str, *, linger: bool) -> None:
        """Close with an error code and text, after all sent data is written.

        With `linger`, wait until the client has closed too, and drop the bytes that it still sends. Closing a
        socket with unread bytes resets the connection, which can lose the last frames sent, for example
        acknowledgements."""
        assert self._transport is not None
        self.ended = code, text
        self._closing = True
        self._wire.abandon()
        if not linger:
            self._transport.close()
            return
        with contextlib.suppress(OSError, RuntimeError):  # the connection is closed already
            self._transport.write_eof()
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close now."""
        assert self._transport is not None
        self._transport.abort()


class ClientConnection(PeerConnection):
    """An accepted connection of a client or, at an address for links, of the source of a link.

    `wire`: its protocol state (None: a `Connection` in the role "server")."""

    def __init__(self, handler: ConnectionHandler, wire: AcceptedConnection | None = None) -> None:
        self._accepted = Connection("server", scratch=handler.scratch) if wire is None else wire
        super().__init__(handler, self._accepted)

    @property
    def link(self) -> LinkConnection | None:
        return None if isinstance(self._accepted, Connection) else self._accepted.link

    def logged_on(self, client: str) -> None:
        """Lift the limits that hold before a logon."""
        self.client = client
        self.takes_logon = False
        self._accepted.logged_on()


def _unread_bytes(descriptor: int) -> int:
    """Return the number of unread bytes in the receive buffer of a socket."""
    size = bytearray(4)
    with contextlib.suppress(OSError, ValueError):  # closed already
        fcntl.ioctl(descriptor, termios.FIONREAD, size)
    return int.from_bytes(size, sys.byteorder)


async def listen(uri: str, connect: Callable[[], ClientConnection]) -> tuple[asyncio.Server, str]:
    """Listen on a `tcp://host:port`, `tls://host:port` or `unix:///path` address.

    `connect` creates the object for an accepted connection. Return the server and the bound address.
    """
    loop = asyncio.get_running_loop()
    address = parse_listen(uri)
    if address.path:
        _remove_stale(address.path)
        server = await loop.create_unix_server(connect, address.path, backlog=_BACKLOG)
        return server, uri
    server = await loop.create_server(connect, address.host, address.port, backlog=_BACKLOG)
    scheme = "tls" if address.tls else "tcp"
    host, port = server.sockets[0].getsockname()[:2]
    return server, f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _remove_stale(path: str) -> None:
    """Remove the socket file of a killed server.

    Raises `OSError` for a socket on which a process listens, as for a TCP port in use."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # a busy server that does not accept counts as a listener
            probe.connect(path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
    raise OSError(errno.EADDRINUSE, f"{os.strerror(errno.EADDRINUSE)}: another process listens at this path")
