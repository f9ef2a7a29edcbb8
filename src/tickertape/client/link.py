"""Owns one connection to a server: its socket, its receive thread and what waits to be written.

Must never decide anything about the protocol. Whoever has something to send writes it at once; what the
socket does not take is left to the receive thread, so that reading never waits for writing.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from tickertape.base.errors import BadOption, Disconnected, TimedOut
from tickertape.base.limits import client_outbox_bytes_max
from tickertape.base.ports import Buffer

BUFFERS_A_WRITE: Final = 64
"""Buffers given to one `sendmsg`."""


class Address(NamedTuple):
    """Where a server is: `path` of a Unix socket, else `host` and `port`; and who logs on there."""

    uri: str
    host: str
    port: int
    path: str
    user: str | None
    password: str | None


def parse_uri(uri: str) -> Address:
    """Read `tcp://host:port`, `tcp://user:password@host:port` or `unix:///path`. Raises `BadOption`."""
    parts = urlsplit(uri)
    shown = uri.replace(f":{parts.password}@", ":...@") if parts.password else uri
    try:
        port = parts.port
    except ValueError as error:
        raise BadOption(f"{shown!r}: {error}") from error
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    if parts.scheme == "unix" and parts.path and not parts.netloc:
        return Address(shown, "", 0, unquote(parts.path), None, None)
    if parts.scheme == "tcp" and parts.hostname and port and parts.path in ("", "/"):
        return Address(shown, parts.hostname, port, "", user, password)
    raise BadOption(f"{shown!r} is no server address: use tcp://host:port or unix:///path")


def dial(address: Address, timeout: float | None) -> socket.socket:
    """A connected, non-blocking socket. `timeout` in seconds. Raises `Disconnected`, `TimedOut`."""
    try:
        if address.path:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(timeout)
                connection.connect(address.path)
            except BaseException:
                connection.close()
                raise
        else:
            connection = socket.create_connection((address.host, address.port), timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except TimeoutError as error:
        raise TimedOut(f"no connection to {address.uri} within {timeout} s") from error
    except OSError as error:
        raise Disconnected(f"cannot connect to {address.uri}: {error.strerror or error}") from error
    connection.setblocking(False)
    return connection


class Driven(Protocol):
    """The one side of a client that its link calls, on the receive thread."""

    def buffer(self) -> memoryview:
        """Where to read the next bytes into."""

    def arrived(self, count: int) -> float | None:
        """That many bytes came (0 = only time has passed).

        When to call again at the latest, monotonic seconds.
        """

    def lost(self, error: Disconnected) -> None:
        """The connection is gone; the last call."""


class Link:
    """One connection. `start` begins the receive thread; after `hang_up` or a loss the link is used up."""

    def __init__(self, connection: socket.socket, uri: str, driven: Driven) -> None:
        self._socket = connection
        self._uri = uri
        self._driven = driven
        self._outbox: deque[Buffer] = deque()
        self._added_bytes = 0
        self._written_bytes = 0
        self._writing = threading.RLock()
        # Python's own conditions ask a lock this way; there is no public name for it.
        self._owns_writing: Callable[[], bool] = self._writing._is_owned  # type: ignore[attr-defined]
        self.blocked = False
        """Whether the socket took no more when it was last written to."""
        self._why: Disconnected | None = None
        self._wake_reader, self._waker = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._waker.setblocking(False)
        self._room = threading.Condition(threading.Lock())
        self._gone = False
        self._thread = threading.Thread(target=self._run, name=f"tickertape {uri}", daemon=True)

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    @property
    def thread(self) -> threading.Thread:
        """The receive thread."""
        return self._thread

    @property
    def congested(self) -> bool:
        """Whether so much waits for the socket that no more should be added."""
        return self.blocked and self._added_bytes - self._written_bytes > client_outbox_bytes_max

    def add(self, buffers: Iterable[Buffer]) -> None:
        """Put buffers behind what waits. Callers are ordered by the client's lock; `push` then writes."""
        for buffer in buffers:
            self._outbox.append(buffer)
            self._added_bytes += len(buffer)

    def push(self) -> None:
        """Write what the socket takes now; never waits.

        A Ctrl-C may come between any two steps. Then nobody knows how much of a frame went out, so the
        connection ends rather than send some bytes twice; and the lock, which may be held without `acquire`
        having returned, is given back by its owner.
        """
        if self._owns_writing():
            return  # called by a signal handler in the middle of writing, which goes on afterwards
        try:
            while self._outbox and not self.blocked and self._writing.acquire(blocking=False):
                self._write()
                self._writing.release()
        except BaseException:
            self.hang_up(Disconnected(f"writing to {self._uri} was interrupted"))
            raise
        finally:
            if self._owns_writing():
                self._writing.release()

    def wait_room(self, timeout: float | None) -> bool:
        """Wait until it is not `congested`; False when `timeout` seconds have passed."""
        with self._room:
            return self._room.wait_for(lambda: self._gone or not self.congested, timeout)

    def hang_up(self, why: Disconnected | None = None) -> None:
        """Stop sending and receiving; the receive thread then reports the loss."""
        self._why = self._why or why
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._wake()

    def discard(self) -> None:
        """Close a link that was never started."""
        for end in (self._socket, self._waker, self._wake_reader):
            end.close()

    # -- inside -----------------------------------------------------------------------------------------

    def _write(self) -> None:
        outbox = self._outbox
        while outbox:
            some = [outbox[i] for i in range(min(len(outbox), BUFFERS_A_WRITE))]
            try:
                sent = self._socket.sendmsg(some)
            except (BlockingIOError, InterruptedError):
                self.blocked = True
                self._wake()
                return
            except OSError as error:
                outbox.clear()
                self.hang_up(Disconnected(f"cannot write to {self._uri}: {error.strerror or error}"))
                return
            self._written_bytes += sent
            for buffer in some:
                if sent < len(buffer):
                    outbox[0] = memoryview(buffer)[sent:]
                    break
                sent -= len(buffer)
                outbox.popleft()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def _run(self) -> None:
        error = Disconnected("the receive thread failed")
        try:
            error = self._receive()
        except BaseException as failure:
            error.__cause__ = failure
            raise
        finally:
            self._gone = True
            self._socket.close()
            self._waker.close()
            self._wake_reader.close()
            with self._room:
                self._room.notify_all()
            self._driven.lost(self._why or error)

    def _receive(self) -> Disconnected:
        poller = select.poll()
        poller.register(self._wake_reader, select.POLLIN)
        poller.register(self._socket, select.POLLIN)
        deadline: float | None = None
        while True:
            try:
                count = self._socket.recv_into(self._driven.buffer())
                if count == 0:
                    return Disconnected(f"{self._uri} closed the connection")
                deadline = self._driven.arrived(count)
                continue
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                return Disconnected(f"cannot read from {self._uri}: {error.strerror or error}")
            poller.modify(self._socket, select.POLLIN | (select.POLLOUT if self.blocked else 0))
            wait = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = poller.poll(wait)
            if not ready:
                deadline = self._driven.arrived(0)
            for number, happened in ready:
                if number == self._wake_reader.fileno():
                    with contextlib.suppress(BlockingIOError):
                        self._wake_reader.recv(4096)
                elif happened & select.POLLOUT:
                    self._unblock()

    def _unblock(self) -> None:
        self.blocked = False
        self.push()
        if not self.congested:
            with self._room:
                self._room.notify_all()
