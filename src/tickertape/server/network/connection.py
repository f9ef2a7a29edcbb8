"""Owns sockets: listening addresses and, for each connection, bytes in and buffers out.

Must never interpret a command; the wire machine and the engine do.
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
from typing import TYPE_CHECKING, Final, cast

from tickertape.base.interfaces import Buffer
from tickertape.engine.limits import outbox_bytes_max
from tickertape.server.config.addresses import parse_listen
from tickertape.wire.connection import Connection
from tickertape.wire.heartbeat import Liveness

if TYPE_CHECKING:
    from tickertape.server.engine_driver import EngineDriver

_BACKLOG: Final = 1024
_TAKEN: Final = (errno.EAGAIN, errno.EPROTOTYPE)
"""How a socket answers that somebody has: its queue is full, or it is of another type."""


class ClientConnection(asyncio.BufferedProtocol):
    """One connection of a client."""

    def __init__(self, instance: EngineDriver) -> None:
        self._instance = instance
        self._wire = Connection("server", scratch=instance.scratch)
        self._transport: asyncio.Transport | None = None
        self._conn = 0
        self._unread_for: set[str] = set()
        self.address = ""
        """Where it comes from: `host:port`, empty for a Unix socket."""
        self.client = ""
        """Name it logged on with."""
        self.ended = ("", "")
        """Error code and text with which the server ends it."""
        self.since = time.monotonic()
        """When it was accepted, monotonic seconds."""
        self._heard_at = self._said_at = self.since
        self._read_bytes = 0
        self._descriptor = -1
        self.logon_timer: asyncio.TimerHandle | None = None
        self._parting = False
        """The server has said all it has to say."""
        self._large = False
        """A large frame has begun and is not complete."""
        self.takes_logon = True
        """No logon has succeeded yet."""

    # -- called by the event loop ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = stream = cast("asyncio.Transport", transport)
        self._descriptor = stream.get_extra_info("socket").fileno()
        stream.set_write_buffer_limits(high=outbox_bytes_max, low=outbox_bytes_max // 4)
        self.address = _address(transport.get_extra_info("peername"))
        self._conn = self._instance.connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (the wire machine knows what it needs)
        return self._instance.scratch if self._parting else self._wire.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._parting:
            return
        self._heard_at = time.monotonic()
        self._read_bytes += nbytes
        self._took(nbytes)

    def _took(self, nbytes: int) -> None:
        """So much of what the client said is where the wire machine wanted it."""
        events = self._wire.received(nbytes)
        large = self._wire.large_frame
        if large is not None:
            self._large = True
            self._instance.large_frame(self._conn, *large)
        elif self._large:
            self._large = False
            self._instance.large_frame_ended(self._conn)
        if events:
            self._instance.events(self._conn, events)

    def pause_writing(self) -> None:
        self._instance.writable(self._conn, writable=False)

    def resume_writing(self) -> None:
        self._instance.writable(self._conn, writable=True)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (no error of ours)
        self._descriptor = -1
        self._instance.disconnected(self._conn)

    # -- called by the instance -----------------------------------------------------------------------

    def send(self, buffers: list[Buffer]) -> None:
        """Write buffers in order."""
        assert self._transport is not None
        if not self._transport.is_closing() and not self._parting:
            self._transport.writelines(buffers)
            self._said_at = time.monotonic()

    def logged_on(self) -> None:
        """The logon succeeded: the limits for strangers no longer hold."""
        self.takes_logon = False
        self._wire.logged_on()
        if self.logon_timer is not None:
            self.logon_timer.cancel()
            self.logon_timer = None

    def read(self, *, enabled: bool, why: str) -> None:
        """Stop reading from the socket for a reason, or end that reason; without any it is read again."""
        assert self._transport is not None
        (self._unread_for.discard if enabled else self._unread_for.add)(why)
        if not self._unread_for or self._parting:
            self._read_on()
            return
        with contextlib.suppress(RuntimeError):  # closing already
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Read from the socket again."""
        assert self._transport is not None
        with contextlib.suppress(RuntimeError):  # closing already
            self._transport.resume_reading()

    def unread_for(self, why: str) -> bool:
        """Whether it is not read from for this reason."""
        return why in self._unread_for

    def sight(self) -> Liveness:
        """What it looks like to a heartbeat."""
        # Who does not take what it is sent may be dead; every other reason not to read is the server's.
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
        """What waits to be written."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self, *, linger: bool) -> None:
        """Close once what was sent is written and, with `linger`, the peer has closed too; what it still
        sends is dropped.

        Closing a socket with unread bytes in it resets the connection, and the goodbye would be lost with
        it, or acknowledgements before it."""
        assert self._transport is not None
        self._parting = True
        self._wire.abandon()
        if not linger:
            self._transport.close()
            return
        with contextlib.suppress(OSError, RuntimeError):  # gone already
            self._transport.write_eof()
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close now."""
        assert self._transport is not None
        self._transport.abort()


def _unread_bytes(descriptor: int) -> int:
    """What has arrived at a socket and was not read."""
    size = bytearray(4)
    with contextlib.suppress(OSError, ValueError):  # closed already
        fcntl.ioctl(descriptor, termios.FIONREAD, size)
    return int.from_bytes(size, sys.byteorder)


def _address(peer: object) -> str:
    """Text of what the system calls a peer: nothing for a Unix socket."""
    if not isinstance(peer, tuple) or len(peer) < 2:
        return ""
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def listen(uri: str, make_peer: Callable[[], ClientConnection]) -> tuple[asyncio.Server, str]:
    """Listen on a `tcp://host:port`, `tls://host:port` or `unix:///path` address; returns the server and the
    address it really has. `make_peer` makes what takes a connection.
    """
    loop = asyncio.get_running_loop()
    address = parse_listen(uri)
    if address.path:
        _remove_stale(address.path)
        server = await loop.create_unix_server(make_peer, address.path, backlog=_BACKLOG)
        return server, uri
    server = await loop.create_server(make_peer, address.host, address.port, backlog=_BACKLOG)
    scheme = "tls" if address.tls else "tcp"
    host, port = server.sockets[0].getsockname()[:2]
    return server, f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _remove_stale(path: str) -> None:
    """Remove the socket file that a killed server left behind. Any other file is somebody's, and so is a
    socket that is answered: raises `OSError` as for a TCP port that is taken."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # a server that is too busy to accept is one
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
    raise OSError(errno.EADDRINUSE, f"{os.strerror(errno.EADDRINUSE)}: a process listens at this path")
