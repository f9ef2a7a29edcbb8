"""One end of a TLS connection without a socket: encrypts and decrypts bytes.

Reads return authenticated data only. Modified data, and data before the end of the handshake, is an error.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterable, Iterator
from typing import Final

from tickertape.base.errors import TlsFailed
from tickertape.base.interfaces import Buffer
from tickertape.base.limits import KIB
from tickertape.security.limits import encrypted_at_once_bytes_max
from tickertape.security.tls_options import TLS_FAILED

HANDSHAKE_BYTE: Final = 0x16
"""First byte of every TLS connection: the type of a handshake record."""
_AT_ONCE_BYTES: Final = 64 * KIB
"""Bytes encrypted per hold of the lock. Readers wait for the lock."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL error reasons for bytes that are not TLS."""
_UNKNOWN_CA: Final = (18, 19, 20, 21)
"""OpenSSL verification codes for certificates of a CA that is not trusted."""


class TlsChannel:
    """One end of a TLS connection: `feed` received bytes, `take` bytes to send.

    One thread may read while another writes. `server_name`: for a client, the name or address that the server
    certificate must contain.
    """

    def __init__(
        self, context: ssl.SSLContext, *, server: bool = False, server_name: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server, server_hostname=server_name
        )
        # OpenSSL does not allow concurrent calls on one connection.
        self._lock = threading.Lock()
        self._peer = "client" if server else "server"
        self._failure: TlsFailed | None = None
        self.established = False
        """Whether the handshake is complete. Reads and writes are possible only afterwards."""
        self.closed = False
        """Whether the peer sent its closing alert. A connection that ends without it was cut off."""

    def feed(self, data: Buffer) -> None:
        """Add received bytes. They are copied."""
        with self._lock:
            self._incoming.write(data)

    def take(self) -> bytes:
        """Return the handshake or alert bytes to send now (possibly empty)."""
        with self._lock:
            return self._outgoing.read()

    @property
    def answers(self) -> bool:
        """Whether a read left bytes to `take`. The peer can provoke any number of alerts."""
        return self._outgoing.pending > 0

    @property
    def drained(self) -> bool:
        """Whether all received bytes that can be decrypted were read."""
        return not self._incoming.pending and not self._tls.pending()

    def shake(self) -> bool:
        """Continue the handshake and return whether it is complete. Always call `take` afterwards.

        Raises `TlsFailed`. In that case `take` returns the alert for the peer.
        """
        try:
            with self._lock:
                self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise TlsFailed(_explained(error, self._peer)) from None
        self.established = True
        return True

    def read_into(self, room: memoryview) -> int:
        """Decrypt into `room` until it is full or no data is left, and return the number of bytes.

        Returns 0 without data, or when the channel is `closed`. Raises `TlsFailed` for data that is not
        authentic.
        """
        if self._failure is not None:
            raise self._failure
        filled = 0
        with self._lock:
            try:
                while filled < len(room) and not self.closed and not (filled and self.drained):
                    count = self._tls.read(len(room) - filled, room[filled:])
                    self.closed = not count
                    filled += int(count)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                failure = self._failed(error)
                if not filled:  # Otherwise the next call raises it: return the valid data first.
                    raise failure from None
        return filled

    def encrypted(self, data: Buffer) -> bytes:
        """Return the cipher text of `data`, after pending handshake or alert bytes. Raises `TlsFailed`."""
        rest = memoryview(data)
        while rest:
            with self._lock:
                try:
                    rest = rest[self._tls.write(rest[:_AT_ONCE_BYTES]) :]
                except ssl.SSLError as error:
                    raise self._failed(error) from None
        return self.take()

    def farewell(self) -> bytes:
        """Return the closing alert. No data may be encrypted afterwards."""
        if self.established:
            try:
                with self._lock:
                    self._tls.unwrap()
            except ssl.SSLError:  # OpenSSL wants the closing alert of the peer. We do not wait for it.
                pass
        return self.take()

    def _failed(self, error: ssl.SSLError) -> TlsFailed:
        """Convert an OpenSSL error. The first error is the cause of all later ones and is kept."""
        if self._failure is None:
            self._failure = TlsFailed(_explained(error, self._peer))
        return self._failure


def portions(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield `buffers` in pieces for one encryption each: joins small buffers, splits large ones uncopied."""
    some: list[Buffer] = []
    size = 0
    for buffer in buffers:
        if size + len(buffer) <= encrypted_at_once_bytes_max:
            some.append(buffer)
            size += len(buffer)
            continue
        if some:
            yield b"".join(some)
        whole = memoryview(buffer)
        while len(whole) > encrypted_at_once_bytes_max:
            yield whole[:encrypted_at_once_bytes_max]
            whole = whole[encrypted_at_once_bytes_max:]
        some, size = [whole], len(whole)
    if some:
        yield some[0] if len(some) == 1 else b"".join(some)


def _explained(error: ssl.SSLError, peer: str) -> str:
    """Return the text of a TLS error with a `peer` ("client" or "server")."""
    if isinstance(error, ssl.SSLCertVerificationError):
        cure = f"Check the certificate and the clock of the {peer}."
        if peer == "server" and error.verify_code in _UNKNOWN_CA:
            cure = "Pass the CA certificate with TLS(ca=...) or --ca."
        message = error.verify_message.rstrip(".")
        return f"{TLS_FAILED}the certificate of the {peer} is not accepted: {message}. {cure}"
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        cure = "Use tcp://, or check the port." if peer == "server" else "Use tls:// in the client."
        return f"{TLS_FAILED}the {peer} does not use TLS. {cure}"
    alert = reason.partition("ALERT_")[2]
    if alert:
        cure = f"Check the certificates and the TLS settings of the {peer}."
        return f"{TLS_FAILED}the {peer} refused the connection: {_words(alert)}. {cure}"
    return (
        f"{TLS_FAILED}{_words(reason)} with the {peer}. Check the network and the TLS settings of both sides."
    )


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()
