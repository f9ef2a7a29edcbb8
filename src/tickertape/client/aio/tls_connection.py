"""TLS connection on an event loop: the handshake, and cipher text over the transport.

Invariant: nothing is handed on before the handshake is done, or that the server did not send.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Sequence

from tickertape.base.errors import Disconnected, TlsFailed
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import receive_buffer_bytes
from tickertape.client.aio.connection import AsyncioConnection, AsyncioHandler
from tickertape.client.common.address import Address
from tickertape.client.common.sockets import cut_off, tls_error
from tickertape.security.channel import Channel, portions


class AsyncioTlsConnection(AsyncioConnection):
    """A `AsyncioConnection` over TLS; `name` is what the certificate of the server must say."""

    def __init__(self, address: Address, handler: AsyncioHandler, context: ssl.SSLContext, name: str) -> None:
        super().__init__(address, handler)
        self._channel = Channel(context, server_name=name)
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
