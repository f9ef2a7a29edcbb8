"""TLS connections: the handshake of both ends, and encryption of received and sent bytes.

Invariants:
- No byte received before the end of the handshake reaches the wire state machine.
- At most one read of cipher text is buffered, while reading from the connection is paused.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import TYPE_CHECKING

from tickertape.base.errors import TickertapeError, TlsFailed, TlsRequired
from tickertape.base.interfaces import Buffer
from tickertape.security.tls_channel import HANDSHAKE_BYTE, TlsChannel, portions
from tickertape.server.limits import handshake_bytes_max
from tickertape.server.network.connection import ClientConnection, ConnectionHandler, PeerConnection
from tickertape.wire.commands import PREFACE
from tickertape.wire.connection import HTTP_TEXT, is_http, may_become_http

if TYPE_CHECKING:  # only servers that replicate import them
    from tickertape.wire.accepted_connection import AcceptedConnection


class TlsPeerConnection(PeerConnection):
    """A connection over TLS, of either end. Subclasses pass the TLS state to `_use`."""

    def _use(self, channel: TlsChannel) -> None:
        self._channel = channel
        self._handshake_bytes = 0
        self._pumping = False

    # -- called by the event loop ---------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._handler.cipher_scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        self.decoding_since = self._heard_at = time.monotonic()
        self._read_bytes += nbytes
        data = self._handler.cipher_scratch[:nbytes]
        if self._channel.established:
            self._channel.feed(data)
        elif not self._shake(data):
            return
        self._pump()

    # -- called by the handler ------------------------------------------------------------------------

    def _write(self, buffers: list[Buffer]) -> None:
        if self._channel.established:  # nothing can be sent before the handshake
            try:
                super()._write([self._channel.encrypted(portion) for portion in portions(buffers)])
            except TlsFailed:
                self.abort()

    def close(self, code: str, text: str, *, linger: bool) -> None:
        """Send a TLS close notification, then close as without TLS."""
        self._write_out(self._channel.farewell())
        super().close(code, text, linger=linger)

    # -- internals ------------------------------------------------------------------------------------

    def _shake(self, data: memoryview) -> bool:
        """Continue the handshake. Return whether it is done."""
        self._handshake_bytes += len(data)
        self._channel.feed(data)
        try:
            done = self._channel.shake()
            if not done and self._handshake_bytes > handshake_bytes_max:
                raise TlsFailed(
                    f"Cannot use TLS: the handshake has more than {handshake_bytes_max} bytes. Send fewer "
                    "certificates."
                )
        except TlsFailed as error:
            self._write_out(self._channel.take())
            self._refused(error)
            return False
        self._write_out(self._channel.take())
        return done

    def _refused(self, error: TickertapeError) -> None:
        """Close the connection after a failure of TLS."""
        self._handler.violated(self._conn, error)

    def _write_out(self, cipher_text: bytes) -> None:
        assert self._transport is not None
        if cipher_text and not self._transport.is_closing():
            self._transport.write(cipher_text)

    def _pump(self) -> None:
        """Decode received cipher text unless reading is paused."""
        if self._pumping:
            return  # a caller on the stack continues the loop
        self._pumping = True
        try:
            while not self._closing and not self._unread_for:
                count = self._channel.read_into(self._wire.buffer())
                if self._channel.answers:  # send now, so that the outbox limit applies and pauses reading
                    self._write_out(self._channel.take())
                if count:
                    self._decode(count)
                if self._channel.closed and self._transport is not None:  # the same read may close it
                    self._transport.close()
                    return
                if self._channel.drained:
                    return
        except TlsFailed as error:
            self._write_out(self._channel.take())
            self._handler.violated(self._conn, error)
        finally:
            self._pumping = False

    def _resume_reading(self) -> None:
        # Decode buffered cipher text first. Then read more, or the end of the connection.
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self.decoding_since = time.monotonic()
        if self._channel.established:
            self._pump()
        if not self._unread_for or self._closing:
            super()._resume_reading()


class TlsClientConnection(TlsPeerConnection, ClientConnection):
    """An accepted connection over TLS. The time limit of the logon includes the handshake."""

    def __init__(
        self,
        handler: ConnectionHandler,
        context: ssl.SSLContext,
        wire: AcceptedConnection | None = None,
    ) -> None:
        super().__init__(handler, wire)
        self._use(TlsChannel(context, server=True))
        self._plain = False
        """Whether the client uses our protocol or HTTP without TLS. The error is then sent without TLS."""
        self._first = b""
        """First bytes of a client that does not use TLS."""

    def _write(self, buffers: list[Buffer]) -> None:
        if self._plain:
            PeerConnection._write(self, buffers)
        else:
            super()._write(buffers)

    def _shake(self, data: memoryview) -> bool:
        if self._first or (not self._handshake_bytes and data[0] != HANDSHAKE_BYTE):
            self._refuse_plain(data)
            return False
        return super()._shake(data)

    def _refuse_plain(self, data: memoryview) -> None:
        """Refuse a client without TLS, once its first bytes show the protocol."""
        self._first = first = (self._first + data[: len(PREFACE)])[: len(PREFACE)]
        if may_become_http(first):
            return
        error: TlsFailed | TlsRequired
        if is_http(first):
            self._plain = self._http = True
            error = TlsFailed(HTTP_TEXT)
        elif first[0] == PREFACE[0]:
            self._plain = True
            error = TlsRequired("Cannot log on without TLS: this address requires TLS. Connect to tls://.")
        else:
            error = TlsFailed("Cannot use TLS: the client did not send a TLS handshake. Use a TLS client.")
        self._refused(error)
