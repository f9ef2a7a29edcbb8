"""Connection of the blocking client, with and without TLS: its socket and its receive thread.

A caller that has something to send writes it at once; what the socket does not take is left to the receive
thread, so that reading never waits for writing. A caller that waits for an answer may read it itself
(`read_until`), which saves waking two threads; the receive thread sleeps meanwhile.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from tickertape.base.errors import Disconnected, TimedOut, TlsFailed
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import receive_buffer_bytes
from tickertape.base.units import within
from tickertape.client.common.address import Address
from tickertape.client.common.fork_safety import detach
from tickertape.client.common.sockets import cut_off, not_connected, tls_error, unread_bytes
from tickertape.client.limits import client_outbox_bytes_max
from tickertape.security.limits import encrypted_at_once_bytes_max
from tickertape.security.tls_channel import TlsChannel
from tickertape.wire.heartbeat import Liveness

POLL_SECONDS_MAX: Final = 86_400.0
"""The longest wait for a socket at a time: the system counts milliseconds in 31 bits, 24 days."""
BUFFERS_A_WRITE: Final = 64
"""Buffers given to one `sendmsg`."""


def open_socket(address: Address, timeout: float | None) -> socket.socket:
    """A connected, non-blocking socket. `timeout` in seconds. Raises `Disconnected`, `TimedOut`."""
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
        raise TimedOut(f"no connection to {address.uri} {within(timeout)}") from error
    except (OSError, UnicodeError) as error:
        raise not_connected(address, error) from error
    connection.setblocking(False)
    return connection


def socket_timeout(seconds: float | None) -> float | None:
    """The timeout to give to a socket: none when it is longer than the system can count."""
    return None if seconds is None or seconds > POLL_SECONDS_MAX else seconds


def _poll_seconds(deadline: float) -> float:
    return min(max(0.0, deadline - time.monotonic()), POLL_SECONDS_MAX)


class SocketHandler(Protocol):
    """The side of a driver that its connection calls, on the receive thread."""

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes."""

    def arrived(self, count: int) -> float | None:
        """That many bytes came (0 = only time has passed).

        When to call again at the latest, monotonic seconds.
        """

    def lost(self, error: Disconnected) -> None:
        """The connection is gone; the last call."""


class SocketConnection:
    """One connection. `start` begins the receive thread; after `hang_up` or a loss the link is used up."""

    def __init__(self, connection: socket.socket, uri: str, handler: SocketHandler) -> None:
        self._socket = connection
        self._uri = uri
        self._handler = handler
        self._outbox: deque[Buffer] = deque()
        self._added_bytes = 0
        self._written_bytes = 0
        self._writing = threading.RLock()
        # Python's own conditions ask a lock this way; there is no public name for it.
        self._owns_writing: Callable[[], bool] = self._writing._is_owned  # type: ignore[attr-defined]
        self.blocked = False
        """Whether the socket took no more when it was last written to."""
        self._heard_at = self._said_at = time.monotonic()
        self._read_bytes = 0
        self._why: Disconnected | None = None
        self._reading = threading.RLock()
        self._owns_reading: Callable[[], bool] = self._reading._is_owned  # type: ignore[attr-defined]
        self._consuming = False
        """Bytes were taken from the socket by a caller and are not handed on yet."""
        self._handing_on = False
        """The receive thread hands on what came, or that time has passed: handlers run meanwhile."""
        self._watching = threading.Lock()
        self._answering = False
        """Whether a caller reads: then the receive thread does not look for bytes."""
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
        """Taken, once, by whoever decides that the receive thread runs, or that it never will."""
        self.thread = threading.Thread(target=self._run, name=f"tickertape {uri}", daemon=True)
        """The receive thread."""

    def start(self) -> None:
        """Begin to receive."""
        self.thread.start()

    @property
    def hung_up(self) -> bool:
        """Whether somebody said why it has to end."""
        return self._why is not None

    @property
    def congested(self) -> bool:
        """Whether so much waits for the socket that no more should be added."""
        return self.blocked and self._added_bytes - self._written_bytes > client_outbox_bytes_max

    @property
    def busy(self) -> bool:
        """Whether something has arrived that is not dealt with yet: a handler takes its time, say."""
        return self._handing_on or unread_bytes(self._socket.fileno()) > 0

    def add(self, buffers: Iterable[Buffer]) -> None:
        """Put buffers behind what waits. Callers are ordered by the client's lock; `push` then writes."""
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
        """Write what the socket takes now; never waits.

        A Ctrl-C may come between any two steps. Then nobody knows how much of a frame went out, so the
        connection ends rather than send some bytes twice; and the lock, which may be held without `acquire`
        having returned, is given back by its owner.
        """
        if not self._outbox or self._owns_writing():
            return  # nothing waits, or a signal handler called while writing, which goes on afterwards
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

    def try_again(self) -> None:
        """Write what the socket did not take before, if it does now: the receive thread may be busy."""
        if self.blocked:
            self.blocked = False
            self.push()
            self._tell_room()

    def wait_room(self, timeout: float | None) -> bool:
        """Wait until it is not `congested`; False when `timeout` seconds have passed."""
        with self._room:
            return self._room.wait_for(lambda: self._gone or not self.congested, timeout)

    def wait_unblocked(self) -> None:
        """Wait until the socket takes more, or is gone."""
        with self._room:
            self._room.wait_for(lambda: self._gone or not self.blocked)

    def hang_up(self, why: Disconnected | None = None) -> None:
        """Stop sending and receiving; the receive thread then reports the loss."""
        self._why = self._why or why
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._wake()

    def discard(self) -> bool:
        """Close a link whose receive thread has not begun, and then never will; False when it has.

        Only the thread itself can tell: an interrupted `start` may have started it.
        """
        if not self._begun.acquire(blocking=False):
            return False
        for end in (self._socket, self._waker, self._wake_reader, self._poller):
            end.close()
        return True

    def read_until(self, done: Callable[[], bool], deadline: float | None) -> None:
        """Read on the calling thread until `done()`, `deadline` (monotonic seconds), or the end.

        Returns at once when another thread is reading. A Ctrl-C while it waits does no harm; one while bytes
        are handed on ends the connection.
        """
        try:
            if not self._reading.acquire(blocking=False):
                return
            self._watch(answering=True)
            while not done() and self._read_answer(done, deadline):
                pass
            self._watch(answering=False)
            self._reading.release()
        except BaseException:
            if self._owns_reading():
                if self._consuming:
                    self.hang_up(Disconnected(f"reading from {self._uri} was interrupted"))
                self._watch(answering=False)
                self._reading.release()
            raise

    def detach(self) -> None:
        """Let go of the connection in a forked child, without a word to the server: it is the parent's."""
        self._gone = True  # the poller is shared with the parent: hands off
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
        if not self._begun.acquire(blocking=False):
            return
        error = Disconnected("the receive thread failed")
        try:
            error = self._receive()
        except BaseException as failure:
            error.__cause__ = failure
            raise
        finally:
            # Before the socket is closed, or whoever writes finds that out and names it as the reason.
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
                # A caller that reads takes the bytes; it also sees the end, so waiting for it is short then.
                ended = happened & (select.EPOLLHUP | select.EPOLLERR)
                if happened & ~select.EPOLLOUT and self._reading.acquire(blocking=bool(ended)):
                    try:
                        end = self._read()
                    finally:
                        self._reading.release()
                    if end is not None:
                        return end

    def _read(self) -> Disconnected | None:
        """Hand on what the socket has; why there will be no more, if so."""
        while True:
            room = self._handler.buffer()
            try:
                count = self._socket.recv_into(room)
            except (BlockingIOError, InterruptedError):
                return None
            except OSError as error:
                return Disconnected(f"cannot read from {self._uri}: {error.strerror or error}")
            if count == 0:
                return Disconnected(f"{self._uri} closed the connection")
            self._heard_at = time.monotonic()
            self._read_bytes += count
            self._deadline = self._handler.arrived(count)
            if count < len(room):
                return None  # that emptied the socket: asking again would only cost

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
        """Set the events that wake the receive thread; `answering` when that changes."""
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
    """Make the handshake on a connected socket until `deadline`, which is where `seconds` end. Raises
    `TlsFailed`, `TimedOut`, `Disconnected`."""
    try:
        done = False
        while not done:
            try:
                done = channel.shake()
            finally:  # an alert too, when it failed
                connection.settimeout(_left(deadline))
                connection.sendall(channel.take())
            if not done:
                connection.settimeout(_left(deadline))
                data = connection.recv(_HANDSHAKE_BYTES)
                if not data:
                    raise TlsFailed(f"{uri} closed the connection during the TLS handshake")
                channel.feed(data)
    except TlsFailed as error:
        raise TlsFailed(tls_error(uri, error)) from None
    except TimeoutError as error:
        raise TimedOut(f"no TLS handshake with {uri} {within(seconds)}") from error
    except OSError as error:
        raise Disconnected(f"the TLS handshake with {uri} failed: {error.strerror or error}") from error


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return socket_timeout(left)


class TlsConnection(SocketConnection):
    """A `SocketConnection` whose handshake is done.

    Invariant: cipher text is sent in the order in which it was made."""

    def __init__(
        self, connection: socket.socket, uri: str, handler: SocketHandler, channel: TlsChannel
    ) -> None:
        super().__init__(connection, uri, handler)
        self._channel = channel
        self._cipher_in = memoryview(bytearray(receive_buffer_bytes))
        self._cipher_out = memoryview(b"")
        """Cipher text that is being sent."""
        self._encrypted = 0
        """Buffers at the head of the outbox that it is made of; they stay there until it was sent."""

    def hang_up(self, why: Disconnected | None = None) -> None:
        """End the connection, with the end that TLS has when nothing waits before it."""
        if not self.hung_up and self._writing.acquire(blocking=False):
            try:
                if not self._outbox and not self._cipher_out:
                    self._socket.send(self._channel.farewell())
            except OSError:  # the connection is gone, or takes nothing: an end without a word
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
                self._fail(Disconnected(f"cannot write to {self._uri}: {error.strerror or error}"))
                return
            self._cipher_out = self._cipher_out[sent:]
            if not self._cipher_out:
                for _ in range(self._encrypted):
                    self._written_bytes += len(self._outbox.popleft())
                self._encrypted = 0

    def _encrypt(self) -> bool:
        """Make cipher text of what is at the head of the outbox; whether that could be done."""
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
        # With the last bytes of the handshake something may have come already.
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
                return Disconnected(f"cannot read from {self._uri}: {error.strerror or error}")
            if count == 0:
                return Disconnected(cut_off(self._uri))
            self._heard_at = time.monotonic()
            self._read_bytes += count
            self._channel.feed(self._cipher_in[:count])
            end = self._hand_on()
            if end is not None or count < len(self._cipher_in):
                return end

    def _hand_on(self) -> Disconnected | None:
        """Hand on what was decrypted; why there will be no more, if so."""
        channel = self._channel
        while True:
            try:
                count = channel.read_into(self._handler.buffer())
            except TlsFailed as error:
                return TlsFailed(tls_error(self._uri, error))
            if count:
                self._deadline = self._handler.arrived(count)
            if channel.closed:  # perhaps with the same bytes
                return Disconnected(f"{self._uri} closed the connection")
            if channel.drained:
                return None
