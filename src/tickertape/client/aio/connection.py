"""Connection of the asyncio client, with and without TLS: its transport and its write congestion.

It works on the event loops of asyncio and uvloop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from tickertape.base.errors import Disconnected, TlsFailed
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import KIB, receive_buffer_bytes
from tickertape.client.aio.waiting import Notifier
from tickertape.client.common.address import Address
from tickertape.client.common.fork_safety import detach
from tickertape.client.common.sockets import closed_by_server, cut_off, tls_closed, tls_error, unread_bytes
from tickertape.client.limits import client_outbox_bytes_max
from tickertape.security.tls_channel import TlsChannel, portions
from tickertape.wire.heartbeat import Liveness

JOINED_BYTES_MAX: Final = 16 * KIB
"""Up to this size, one write of a joined copy costs less than one write per buffer."""


class AsyncioHandler(Protocol):
    """Callbacks of a connection to its driver."""

    def opened(self, link: AsyncioConnection) -> None:
        """Process the established connection."""

    def buffer(self) -> memoryview:
        """Return the buffer for the next received bytes."""

    def arrived(self, count: int) -> None:
        """Process `count` received bytes."""

    def written(self, link: AsyncioConnection, frame: int) -> None:
        """Process the write of all publish frames up to `frame`, an argument of `report_written`."""

    def lost(self, link: AsyncioConnection, error: Disconnected) -> None:
        """Process the loss of the connection. Later calls are ignored."""


class AsyncioConnection(asyncio.BufferedProtocol):
    """One connection. After `hang_up`, `discard` or a loss it cannot be used again."""

    def __init__(self, address: Address, handler: AsyncioHandler) -> None:
        self._address = address
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self.congested = False
        """Whether the write buffer of the transport is full."""
        self._reported = 0
        """The last frame passed to `report_written`."""
        self._unreported = 0
        """The frame to report when the transport is writable again, or 0."""
        self._heard_at = self._said_at = time.monotonic()
        self._read_bytes = 0
        self.changed = Notifier()
        """Wakes callers that wait until the connection is writable or closed."""
        self.gone = False
        self._gently = False

    async def dial(self) -> None:
        """Connect. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        address = self._address
        if address.path:
            await loop.create_unix_connection(lambda: self, address.path)
        else:
            await loop.create_connection(lambda: self, address.host, address.port)

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Write buffers after all earlier ones. Never waits.

        A closed connection drops them: `lost` follows.
        """
        transport = self._transport
        if transport is None or self.gone or transport.is_closing():
            return
        self._said_at = time.monotonic()
        if sum(map(len, buffers)) <= JOINED_BYTES_MAX:
            transport.write(b"".join(buffers))
        else:
            for buffer in buffers:
                if transport.is_closing():
                    return  # An earlier write failed. The loop would log a warning for further writes.
                transport.write(buffer)

    def report_written(self, frame: int, loop: asyncio.AbstractEventLoop) -> None:
        """Call `written` for this publish frame in the second iteration of `loop` from now, or later.

        A publisher yields one iteration after each frame, and may publish more afterwards.
        """
        if frame != self._reported:
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                loop.call_soon(loop.call_soon, self._report, frame)
            self._reported = frame

    def liveness(self) -> Liveness:
        """Return the liveness of the connection, for a heartbeat."""
        transport = self._transport
        return Liveness(
            heard_at=self._heard_at,
            read_bytes=self._read_bytes,
            said_at=self._said_at,
            unwritten=transport is not None and transport.get_write_buffer_size() > 0,
            unread_bytes=unread_bytes(self._descriptor),
        )

    async def wait_room(self, seconds: float | None) -> bool:
        """Wait until the connection is not `congested`. Returns False after `seconds`."""
        return await self.changed.wait_for(lambda: self.gone or not self.congested, seconds)

    def end_gently(self) -> None:
        """Let `hang_up` send the write buffer first."""
        self._gently = True

    def hang_up(self) -> None:
        """Stop sending and receiving. The loop calls `lost` soon afterwards."""
        if self._transport is not None:
            _end(self._transport.close if self._gently else self._transport.abort)

    def discard(self, why: Disconnected) -> None:
        """Stop immediately and call `lost`."""
        if self._transport is not None:
            _end(self._transport.abort)
        self._lose(why)

    def detach(self) -> None:
        """Detach a forked child from the connection of its parent, without sending anything."""
        if self._descriptor >= 0:
            detach(self._descriptor)

    # -- called by the loop -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Process the established connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=client_outbox_bytes_max)
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._opened()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the decoder chooses the size
        """Return the buffer for the next received bytes."""
        return self._handler.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` received bytes."""
        self._heard_at = time.monotonic()
        self._read_bytes += nbytes
        self._handler.arrived(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Process the loss of the connection."""
        self._descriptor = -1
        if exc is None:
            error = closed_by_server(self._address.uri)
        else:
            error = Disconnected(
                f"Cannot continue: the connection to {self._address.uri!r} was lost: {exc}. Connect again."
            )
            error.__cause__ = exc
        self._lose(error)

    def pause_writing(self) -> None:
        """Process a full write buffer."""
        self.congested = True

    def resume_writing(self) -> None:
        """Process a write buffer with free space."""
        self.congested = False
        self.changed.wake()
        frame, self._unreported = self._unreported, 0
        if frame:
            self._report(frame)

    def _opened(self) -> None:
        """Report the established connection to the driver."""
        self._handler.opened(self)

    def _report(self, frame: int) -> None:
        if self.congested:
            self._unreported = frame
        elif not self.gone:
            self._handler.written(self, frame)

    def _lose(self, error: Disconnected) -> None:
        if self.gone:
            return
        self.gone = True
        self._handler.lost(self, error)
        self.changed.wake()


def _end(end: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # The loop is closed, and its transports with it.
        end()


class AsyncioTlsConnection(AsyncioConnection):
    """An `AsyncioConnection` over TLS. The server certificate must contain `name`.

    Invariant: only authenticated data is processed, and only after the handshake.
    """

    def __init__(self, address: Address, handler: AsyncioHandler, context: ssl.SSLContext, name: str) -> None:
        super().__init__(address, handler)
        self._channel = TlsChannel(context, server_name=name)
        self._cipher_in = memoryview(bytearray(receive_buffer_bytes))
        self._shaken: asyncio.Future[None] | None = None
        """Done when the handshake has completed or failed."""

    async def dial(self) -> None:
        """Connect and perform the handshake. Raises `OSError`, `TlsFailed`."""
        self._shaken = asyncio.get_running_loop().create_future()
        try:
            await super().dial()
            await self._shaken
        except BaseException:
            self._shaken.cancel()
            self._give_up()
            raise

    def send(self, buffers: Sequence[Buffer]) -> None:
        """Encrypt and write buffers. Never waits."""
        try:
            super().send([self._channel.encrypted(portion) for portion in portions(buffers)])
        except TlsFailed as error:
            self.discard(TlsFailed(tls_error(self._address.uri, error)))

    def hang_up(self) -> None:
        """End the connection with the closing alert of TLS."""
        if not self.gone:
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                self._write_out(self._channel.farewell())
        super().hang_up()

    # -- called by the loop -----------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the buffer for the next received bytes."""
        return self._cipher_in

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` received bytes."""
        self._heard_at = time.monotonic()
        self._read_bytes += nbytes
        if self.gone:
            return
        self._channel.feed(self._cipher_in[:nbytes])
        try:
            if not self._channel.established:
                self._shake()
            if self._channel.established:
                self._hand_on()
        except TlsFailed as error:
            self._fail(TlsFailed(tls_error(self._address.uri, error)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Process the loss of the connection."""
        uri = self._address.uri
        shaken = self._shaken
        if shaken is not None and not shaken.done():
            shaken.set_exception(tls_closed(uri))
        if exc is None and not self._channel.closed:
            self._lose(Disconnected(cut_off(uri)))
        super().connection_lost(exc)

    # -- inside -----------------------------------------------------------------------------------------

    def _opened(self) -> None:
        self._shake()

    def _shake(self) -> None:
        try:
            done = self._channel.shake()
        finally:  # After a failure, this sends the alert.
            self._write_out(self._channel.take())
        if done and self._shaken is not None and not self._shaken.done():
            self._shaken.set_result(None)
            super()._opened()

    def _hand_on(self) -> None:
        while not self.gone:
            count = self._channel.read_into(self._handler.buffer())
            if count:
                self._handler.arrived(count)
            if self._channel.closed:  # The alert may follow data in the same bytes.
                super().hang_up()
                return
            if self._channel.drained:
                return

    def _fail(self, error: TlsFailed) -> None:
        if self._shaken is not None and not self._shaken.done():
            self._shaken.set_exception(error)
            self._give_up()
        else:
            self.discard(error)

    def _give_up(self) -> None:
        """Close the transport of a connection that failed."""
        if self._transport is not None and not self._channel.established:
            self._transport.close()

    def _write_out(self, cipher_text: bytes) -> None:
        if cipher_text and self._transport is not None and not self._transport.is_closing():
            self._transport.write(cipher_text)
