"""Connection of the blocking client, with and without TLS: its socket and its receive thread.

A caller writes its frames directly. The receive thread writes the bytes that the socket did not accept, so
reads never wait for writes. A caller that waits for an answer may read it itself (`read_until`), which saves
two thread switches. The receive thread sleeps meanwhile.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from tickertape.base.errors import Disconnected, TimedOut, TlsFailed
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import receive_buffer_bytes
from tickertape.base.units import within
from tickertape.client.common.address import Address
from tickertape.client.common.fork_safety import detach
from tickertape.client.common.sockets import (
    closed_by_server,
    cut_off,
    not_connected,
    tls_closed,
    tls_error,
    unread_bytes,
)
from tickertape.client.limits import client_outbox_bytes_max
from tickertape.security.limits import encrypted_at_once_bytes_max
from tickertape.wire.heartbeat import Liveness

if TYPE_CHECKING:
    from tickertape.security.tls_channel import TlsChannel

POLL_SECONDS_MAX: Final = 86_400.0
"""Longest single wait for a socket. The system counts milliseconds in 31 bits, which is 24 days."""
BUFFERS_A_WRITE: Final = 64
"""Buffers per `sendmsg`."""


def open_socket(address: Address, timeout: float | None) -> socket.socket:
    """Connect a non-blocking socket. `timeout` in seconds. Raises `Disconnected`, `TimedOut`."""
    try:
        if address.path:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(socket_timeout(timeout))
                connection.connect(address.path)
            except BaseException:
                connection.close()
                raise
        else:
            connection = socket.create_connection((address.host, address.port), socket_timeout(timeout))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except TimeoutError as error:
        raise TimedOut(
            f"Cannot connect to {address.uri!r}: no answer {within(timeout)}. Check the address."
        ) from error
    except (OSError, UnicodeError) as error:
        raise not_connected(address, error) from error
    connection.setblocking(False)
    return connection


def socket_timeout(seconds: float | None) -> float | None:
    """Return the timeout for a socket, or None when `seconds` is longer than the system can count."""
    return None if seconds is None or seconds > POLL_SECONDS_MAX else seconds


def _poll_seconds(deadline: float) -> float:
    return min(max(0.0, deadline - time.monotonic()), POLL_SECONDS_MAX)


class SocketHandler(Protocol):
    """Callbacks of a connection to its driver, on the receive thread."""

    def buffer(self) -> memoryview:
        """Return the buffer for the next received bytes."""

    def arrived(self, count: int) -> float | None:
        """Process `count` received bytes (0: only time has passed).

        Returns the deadline of the next call in monotonic seconds, or None.
        """

    def lost(self, error: Disconnected) -> None:
        """Process the loss of the connection. This is the last call."""


class SocketConnection:
    """One connection. `start` starts the receive thread. After `hang_up` or a loss it is unusable."""

    def __init__(self, connection: socket.socket, uri: str, handler: SocketHandler) -> None:
        self._socket = connection
        self._uri = uri
        self._handler = handler
        self._outbox: deque[Buffer] = deque()
        self._added_bytes = 0
        self._written_bytes = 0
        self._writing = threading.RLock()
        # The same private method that `threading.Condition` uses. A public one does not exist.
        self._owns_writing: Callable[[], bool] = self._writing._is_owned  # type: ignore[attr-defined]
        self.blocked = False
        """Whether the socket buffer was full at the last write."""
        self._heard_at = self._said_at = time.monotonic()
        self._read_bytes = 0
        self._why: Disconnected | None = None
        self._reading = threading.RLock()
        self._owns_reading: Callable[[], bool] = self._reading._is_owned  # type: ignore[attr-defined]
        self._consuming = False
        """A caller read bytes from the socket that are not processed yet."""
        self._handing_on = False
        """The receive thread processes received bytes or a deadline. Handlers run meanwhile."""
        self._watching = threading.Lock()
        self._answering = False
        """Whether a caller reads. Meanwhile the receive thread does not poll for bytes."""
        self._deadline: float | None = None
        self._poller = select.epoll()
        self._poller.register(connection, select.EPOLLIN)
        self._answers = select.poll()
        self._wake_reader, self._waker = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._waker.setblocking(False)
        self._poller.register(self._wake_reader, select.EPOLLIN)
        self._answers.register(connection, select.POLLIN)
        self._room = threading.Condition(threading.Lock())
        self._gone = False
        self._begun = threading.Lock()
        """Acquired once: by the receive thread when it starts, or by `discard`."""
        self.thread = threading.Thread(target=self._run, name=f"tickertape {uri}", daemon=True)
        """The receive thread."""

    def start(self) -> None:
        """Start the receive thread."""
        self.thread.start()

    @property
    def hung_up(self) -> bool:
        """Whether the end of the connection was requested, with a reason."""
        return self._why is not None

    @property
    def congested(self) -> bool:
        """Whether the outbox is full."""
        return self.blocked and self._added_bytes - self._written_bytes > client_outbox_bytes_max

    @property
    def busy(self) -> bool:
        """Whether received bytes are not processed yet, for example because of a slow handler."""
        return self._handing_on or unread_bytes(self._socket.fileno()) > 0

    def add(self, buffers: Iterable[Buffer]) -> None:
        """Append buffers to the outbox. The lock of the client orders callers, and `push` writes."""
        for buffer in buffers:
            self._outbox.append(buffer)
            self._added_bytes += len(buffer)
        self._said_at = time.monotonic()

    def liveness(self) -> Liveness:
        """Return the liveness of the connection, for a heartbeat."""
        return Liveness(
            heard_at=self._heard_at,
            read_bytes=self._read_bytes,
            said_at=self._said_at,
            unwritten=bool(self._outbox),
            unread_bytes=unread_bytes(self._socket.fileno()),
        )

    def push(self) -> None:
        """Write as much of the outbox as the socket accepts. Never waits.

        A Ctrl-C can arrive between any two steps. The number of written bytes is then unknown, so the
        connection ends instead of sending bytes twice. The owner releases the lock, which may be held even
        though `acquire` has not returned.
        """
        if not self._outbox or self._owns_writing():
            return  # The outbox is empty, or a signal handler interrupted a write, which continues later.
        try:
            while self._outbox and not self.blocked and self._writing.acquire(blocking=False):
                self._write()
                self._writing.release()
        except BaseException:
            self.hang_up(
                Disconnected(f"Cannot continue: a write to {self._uri!r} was interrupted. Connect again.")
            )
            raise
        finally:
            if self._owns_writing():
                self._writing.release()

    def try_again(self) -> None:
        """Retry a blocked write: the receive thread may be busy."""
        if self.blocked:
            self.blocked = False
            self.push()
            self._tell_room()

    def wait_room(self, timeout: float | None) -> bool:
        """Wait until the connection is not `congested`. Returns False after `timeout` seconds."""
        with self._room:
            return self._room.wait_for(lambda: self._gone or not self.congested, timeout)

    def wait_unblocked(self) -> None:
        """Wait until the socket is writable or closed."""
        with self._room:
            self._room.wait_for(lambda: self._gone or not self.blocked)

    def hang_up(self, why: Disconnected | None = None) -> None:
        """Stop sending and receiving. The receive thread then reports the loss."""
        self._why = self._why or why
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._wake()

    def discard(self) -> bool:
        """Close a connection whose receive thread never started. Returns False if it started.

        Only the thread itself knows: an interrupted `start` may have started it.
        """
        if not self._begun.acquire(blocking=False):
            return False
        for end in (self._socket, self._waker, self._wake_reader, self._poller):
            end.close()
        return True

    def read_until(self, done: Callable[[], bool], deadline: float | None) -> None:
        """Read on the calling thread until `done()`, `deadline` (monotonic seconds), or the end.

        Returns immediately if another thread reads. A Ctrl-C during the wait is harmless. A Ctrl-C while
        received bytes are processed ends the connection.
        """
        try:
            if not self._reading.acquire(blocking=False):
                return
            self._watch(answering=True)
            while not (self._over or done()) and self._read_answer(done, deadline):
                pass
            self._watch(answering=False)
            self._reading.release()
        except BaseException:
            if self._owns_reading():
                if self._consuming:
                    self.hang_up(
                        Disconnected(
                            f"Cannot continue: a read from {self._uri!r} was interrupted. Connect again."
                        )
                    )
                self._watch(answering=False)
                self._reading.release()
            raise

    def detach(self) -> None:
        """Detach a forked child from the connection of its parent, without sending anything."""
        self._gone = True  # The parent shares the poller, so leave it unchanged.
        detach(self._socket.fileno())

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
                self.hang_up(
                    Disconnected(f"Cannot write to {self._uri!r}: {error.strerror or error}. Connect again.")
                )
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
        if not self._begun.acquire(blocking=False):
            return
        error = Disconnected(f"Cannot continue: the receive thread of {self._uri!r} failed. Connect again.")
        try:
            error = self._receive()
        except BaseException as failure:
            error.__cause__ = failure
            raise
        finally:
            # Set before the socket closes, or a concurrent write reports the closed socket as the reason.
            self._why = self._why or error
            with self._reading:
                self._gone = True
                for end in (self._poller, self._socket, self._waker, self._wake_reader):
                    end.close()
            with self._room:
                self._room.notify_all()
            self._handler.lost(self._why)

    def _receive(self) -> Disconnected:
        while True:
            deadline = self._deadline
            wait = None if deadline is None else _poll_seconds(deadline)
            self._handing_on = False
            ready = self._poller.poll(wait)
            self._handing_on = True
            if not ready:
                self._deadline = self._handler.arrived(0)
            for number, happened in ready:
                if number == self._wake_reader.fileno():
                    with contextlib.suppress(BlockingIOError):
                        self._wake_reader.recv(4096)
                    self._watch()
                    continue
                if happened & select.EPOLLOUT:
                    self._unblock()
                # A reading caller reads these bytes. It also sees the end, so the wait for it is short.
                ended = happened & (select.EPOLLHUP | select.EPOLLERR)
                if happened & ~select.EPOLLOUT and self._reading.acquire(blocking=bool(ended)):
                    try:
                        end = self._why if self._over else self._read()
                    finally:
                        self._reading.release()
                    if end is not None:
                        return end

    @property
    def _over(self) -> bool:
        """Whether no more bytes may be processed. The caller holds `_reading`.

        An interrupted read has processed a part of its bytes, so the bytes after them have no meaning."""
        return self._gone or self._consuming

    def _read(self) -> Disconnected | None:
        """Process all bytes that the socket has. Returns the error when the connection ended."""
        while True:
            room = self._handler.buffer()
            try:
                count = self._socket.recv_into(room)
            except (BlockingIOError, InterruptedError):
                return None
            except OSError as error:
                return Disconnected(
                    f"Cannot read from {self._uri!r}: {error.strerror or error}. Connect again."
                )
            if count == 0:
                return closed_by_server(self._uri)
            self._heard_at = time.monotonic()
            self._read_bytes += count
            self._deadline = self._handler.arrived(count)
            if count < len(room):
                return None  # The socket is empty now: another read would be wasted.

    def _read_answer(self, done: Callable[[], bool], deadline: float | None) -> bool:
        wait = None if deadline is None else _poll_seconds(deadline) * 1000
        if not self._answers.poll(wait):
            return deadline is not None and time.monotonic() < deadline
        if done():
            return False
        self._consuming = True
        self._why = self._read() or self._why
        self._consuming = False
        if self._deadline is not None:
            self._wake()
        return self._why is None

    def _watch(self, *, answering: bool | None = None) -> None:
        """Set the events that wake the receive thread. `answering`: the new value, if it changes."""
        with self._watching:
            if answering is not None:
                self._answering = answering
            if not self._gone:
                reading = 0 if self._answering else select.EPOLLIN
                self._poller.modify(self._socket, reading | (select.EPOLLOUT if self.blocked else 0))

    def _unblock(self) -> None:
        self.blocked = False
        self._watch()
        self.push()
        self._tell_room()

    def _tell_room(self) -> None:
        if not self.congested:
            with self._room:
                self._room.notify_all()


_HANDSHAKE_BYTES: Final = 16 * 1024
"""Bytes of one read of the handshake."""


def shake(
    connection: socket.socket, channel: TlsChannel, uri: str, deadline: float | None, seconds: float | None
) -> None:
    """Perform the TLS handshake on a connected socket.

    `deadline`: end of the timeout of `seconds`, in monotonic seconds. Raises `TlsFailed`, `TimedOut`,
    `Disconnected`.
    """
    try:
        done = False
        while not done:
            try:
                done = channel.shake()
            finally:  # After a failure, this sends the alert.
                connection.settimeout(_left(deadline))
                connection.sendall(channel.take())
            if not done:
                connection.settimeout(_left(deadline))
                data = connection.recv(_HANDSHAKE_BYTES)
                if not data:
                    raise tls_closed(uri)
                channel.feed(data)
    except TlsFailed as error:
        raise TlsFailed(tls_error(uri, error)) from None
    except TimeoutError as error:
        raise TimedOut(
            f"Cannot use TLS with {uri!r}: no answer {within(seconds)}. Check that the server uses TLS at "
            "this address."
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise Disconnected(f"Cannot use TLS with {uri!r}: {reason}. Check the network.") from error


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return socket_timeout(left)


class TlsConnection(SocketConnection):
    """A `SocketConnection` after a completed TLS handshake.

    Invariant: cipher text is sent in the order of its encryption.
    """

    def __init__(
        self, connection: socket.socket, uri: str, handler: SocketHandler, channel: TlsChannel
    ) -> None:
        super().__init__(connection, uri, handler)
        self._channel = channel
        self._cipher_in = memoryview(bytearray(receive_buffer_bytes))
        self._cipher_out = memoryview(b"")
        """Cipher text that is not sent yet."""
        self._encrypted = 0
        """Number of buffers at the head of the outbox in that cipher text. They stay until it is sent."""

    def hang_up(self, why: Disconnected | None = None) -> None:
        """End the connection, with the closing alert of TLS if the outbox is empty."""
        if not self.hung_up and self._writing.acquire(blocking=False):
            try:
                if not self._outbox and not self._cipher_out:
                    self._socket.send(self._channel.farewell())
            except OSError:  # The connection is closed or blocked: end it without the alert.
                pass
            finally:
                self._writing.release()
        super().hang_up(why)

    # -- inside -----------------------------------------------------------------------------------------

    def _write(self) -> None:
        while self._outbox:
            if not self._cipher_out and not self._encrypt():
                return
            try:
                sent = self._socket.send(self._cipher_out)
            except (BlockingIOError, InterruptedError):
                self.blocked = True
                self._wake()
                return
            except OSError as error:
                self._fail(
                    Disconnected(f"Cannot write to {self._uri!r}: {error.strerror or error}. Connect again.")
                )
                return
            self._cipher_out = self._cipher_out[sent:]
            if not self._cipher_out:
                for _ in range(self._encrypted):
                    self._written_bytes += len(self._outbox.popleft())
                self._encrypted = 0

    def _encrypt(self) -> bool:
        """Encrypt the head of the outbox. Returns False after a failure."""
        outbox = self._outbox
        first = outbox[0]
        if len(first) > encrypted_at_once_bytes_max:
            whole = memoryview(first)
            outbox[0] = whole[encrypted_at_once_bytes_max:]
            outbox.appendleft(whole[:encrypted_at_once_bytes_max])
        some: list[Buffer] = []
        size = 0
        for i in range(min(len(outbox), BUFFERS_A_WRITE)):
            size += len(outbox[i])
            if some and size > encrypted_at_once_bytes_max:
                break
            some.append(outbox[i])
        try:
            data = some[0] if len(some) == 1 else b"".join(some)
            self._cipher_out = memoryview(self._channel.encrypted(data))
        except TlsFailed as error:
            self._fail(TlsFailed(tls_error(self._uri, error)))
            return False
        self._encrypted = len(some)
        return True

    def _fail(self, error: Disconnected) -> None:
        self._outbox.clear()
        self._cipher_out, self._encrypted = memoryview(b""), 0
        self.hang_up(error)

    def _receive(self) -> Disconnected:
        # The last bytes of the handshake may include application data.
        with self._reading:
            end = self._hand_on()
        return super()._receive() if end is None else end

    def _read(self) -> Disconnected | None:
        while True:
            try:
                count = self._socket.recv_into(self._cipher_in)
            except (BlockingIOError, InterruptedError):
                return None
            except OSError as error:
                return Disconnected(
                    f"Cannot read from {self._uri!r}: {error.strerror or error}. Connect again."
                )
            if count == 0:
                return Disconnected(cut_off(self._uri))
            self._heard_at = time.monotonic()
            self._read_bytes += count
            self._channel.feed(self._cipher_in[:count])
            end = self._hand_on()
            if end is not None or count < len(self._cipher_in):
                return end

    def _hand_on(self) -> Disconnected | None:
        """Process the decrypted bytes. Returns the error when the connection ended."""
        channel = self._channel
        while True:
            try:
                count = channel.read_into(self._handler.buffer())
            except TlsFailed as error:
                return TlsFailed(tls_error(self._uri, error))
            if count:
                self._deadline = self._handler.arrived(count)
            if channel.closed:  # The alert may follow data in the same bytes.
                return closed_by_server(self._uri)
            if channel.drained:
                return None
