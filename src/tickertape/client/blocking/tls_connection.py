"""TLS connection of the blocking client: the handshake, and cipher text over the socket.

Invariant: cipher text is sent in the order in which it was made.
"""

from __future__ import annotations

import socket
import time
from typing import Final

from tickertape.base.errors import Disconnected, TimedOut, TlsFailed
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import receive_buffer_bytes
from tickertape.base.units import within
from tickertape.client.blocking.connection import (
    BUFFERS_A_WRITE,
    SocketConnection,
    SocketHandler,
    socket_timeout,
)
from tickertape.client.common.sockets import cut_off, tls_error
from tickertape.security.channel import Channel
from tickertape.security.limits import encrypted_at_once_bytes_max

_HANDSHAKE_BYTES: Final = 16 * 1024
"""Bytes of one read of the handshake."""


def shake(
    connection: socket.socket, channel: Channel, uri: str, deadline: float | None, seconds: float | None
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
    """A `SocketConnection` whose handshake is done."""

    def __init__(self, connection: socket.socket, uri: str, handler: SocketHandler, channel: Channel) -> None:
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
