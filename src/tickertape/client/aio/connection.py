"""Connection on an event loop, with and without TLS: its transport, and whether that takes more.

It works on the loops of asyncio and of uvloop.
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
from tickertape.client.common.sockets import cut_off, tls_error, unread_bytes
from tickertape.client.limits import client_outbox_bytes_max
from tickertape.security.tls_channel import TlsChannel, portions
from tickertape.wire.heartbeat import Liveness

JOINED_BYTES_MAX: Final = 16 * KIB
"""Up to here one write of a copy costs less than a write of each buffer as it lies."""


class AsyncioHandler(Protocol):
    """The side of a driver that its connection calls."""

    def opened(self, link: AsyncioConnection) -> None:
        """The connection stands."""

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes."""

    def arrived(self, count: int) -> None:
        """Take in that many bytes."""

    def written(self, link: AsyncioConnection, frame: int) -> None:
        """Every publish frame up to `frame`, as `report_written` was given it, was written."""

    def lost(self, link: AsyncioConnection, error: Disconnected) -> None:
        """The connection is gone; the last call that counts."""


class AsyncioConnection(asyncio.BufferedProtocol):
    """One connection. After `hang_up`, `discard` or a loss it is used up."""

    def __init__(self, address: Address, handler: AsyncioHandler) -> None:
        self._address = address
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self.congested = False
        """Whether so much waits for the socket that no more should be added."""
        self._reported = 0
        """The last frame given to `report_written`."""
        self._unreported = 0
        """The frame to report when the transport takes more; 0 when there is none."""
        self._heard_at = self._said_at = time.monotonic()
        self._read_bytes = 0
        self.changed = Notifier()
        """Wakes callers that wait until it takes more, or is gone."""
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
        """Write, after all that was written before; never waits. Where nobody reads it any more it is
        dropped: `lost` is on its way."""
        transport = self._transport
        if transport is None or self.gone or transport.is_closing():
            return
        self._said_at = time.monotonic()
        if sum(map(len, buffers)) <= JOINED_BYTES_MAX:
            transport.write(b"".join(buffers))
        else:
            for buffer in buffers:
                if transport.is_closing():
                    return  # a write before failed; the loop counts more of them, and complains
                transport.write(buffer)

    def report_written(self, frame: int, loop: asyncio.AbstractEventLoop) -> None:
        """Call `written` for this publish frame in the second turn of `loop` from now, or later: a publisher
        gives one turn after each frame, and may have more to publish after it."""
        if frame != self._reported:
            with contextlib.suppress(RuntimeError):  # its loop was closed
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
        """Wait until it is not `congested`; False when `seconds` have passed."""
        return await self.changed.wait_for(lambda: self.gone or not self.congested, seconds)

    def end_gently(self) -> None:
        """Let `hang_up` send first what is still to be sent."""
        self._gently = True

    def hang_up(self) -> None:
        """Stop sending and receiving; `lost` is called soon."""
        if self._transport is not None:
            _end(self._transport.close if self._gently else self._transport.abort)

    def discard(self, why: Disconnected) -> None:
        """Stop at once; `lost` is called now."""
        if self._transport is not None:
            _end(self._transport.abort)
        self._lose(why)

    def detach(self) -> None:
        """Let go of the connection in a forked child, without a word to the server: it is the parent's."""
        if self._descriptor >= 0:
            detach(self._descriptor)

    # -- called by the loop -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=client_outbox_bytes_max)
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._opened()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the machine knows how much it wants
        """Return the buffer for the next bytes."""
        return self._handler.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take in that many bytes."""
        self._heard_at = time.monotonic()
        self._read_bytes += nbytes
        self._handler.arrived(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._descriptor = -1
        if exc is None:
            error = Disconnected(f"{self._address.uri} closed the connection")
        else:
            error = Disconnected(f"the connection to {self._address.uri} was lost: {exc}")
            error.__cause__ = exc
        self._lose(error)

    def pause_writing(self) -> None:
        """Enough waits for the socket."""
        self.congested = True

    def resume_writing(self) -> None:
        """It takes more."""
        self.congested = False
        self.changed.wake()
        frame, self._unreported = self._unreported, 0
        if frame:
            self._report(frame)

    def _opened(self) -> None:
        """It can be used."""
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
    # A loop that was closed has no transport any more that could be told.
    with contextlib.suppress(RuntimeError):
        end()


class AsyncioTlsConnection(AsyncioConnection):
    """A `AsyncioConnection` over TLS; `name` is what the certificate of the server must say.

    Invariant: nothing is handed on before the handshake is done, or that the server did not send."""

    def __init__(self, address: Address, handler: AsyncioHandler, context: ssl.SSLContext, name: str) -> None:
        super().__init__(address, handler)
        self._channel = TlsChannel(context, server_name=name)
        self._cipher_in = memoryview(bytearray(receive_buffer_bytes))
        self._shaken: asyncio.Future[None] | None = None
        """Done when the handshake is, or has failed."""

    async def dial(self) -> None:
        """Connect, and make the handshake. Raises `OSError`, `TlsFailed`."""
        self._shaken = asyncio.get_running_loop().create_future()
        try:
            await super().dial()
            await self._shaken
        except BaseException:
            self._shaken.cancel()
            self._give_up()
            raise

    def send(self, buffers: Sequence[Buffer]) -> None:
        """As without TLS."""
        try:
            super().send([self._channel.encrypted(portion) for portion in portions(buffers)])
        except TlsFailed as error:
            self.discard(TlsFailed(tls_error(self._address.uri, error)))

    def hang_up(self) -> None:
        """End the connection, with the end that TLS has."""
        if not self.gone:
            with contextlib.suppress(RuntimeError):  # its loop was closed
                self._write_out(self._channel.farewell())
        super().hang_up()

    # -- called by the loop -----------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the buffer for the next bytes."""
        return self._cipher_in

    def buffer_updated(self, nbytes: int) -> None:
        """Take in that many bytes."""
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
        """The connection is gone."""
        uri = self._address.uri
        shaken = self._shaken
        if shaken is not None and not shaken.done():
            why = "" if exc is None else f": {exc}"
            shaken.set_exception(TlsFailed(f"{uri} closed the connection during the TLS handshake{why}"))
        if exc is None and not self._channel.closed:
            self._lose(Disconnected(cut_off(uri)))
        super().connection_lost(exc)

    # -- inside -----------------------------------------------------------------------------------------

    def _opened(self) -> None:
        self._shake()

    def _shake(self) -> None:
        try:
            done = self._channel.shake()
        finally:  # an alert too, when it failed
            self._write_out(self._channel.take())
        if done and self._shaken is not None and not self._shaken.done():
            self._shaken.set_result(None)
            super()._opened()

    def _hand_on(self) -> None:
        while not self.gone:
            count = self._channel.read_into(self._handler.buffer())
            if count:
                self._handler.arrived(count)
            if self._channel.closed:  # perhaps with the same bytes
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
