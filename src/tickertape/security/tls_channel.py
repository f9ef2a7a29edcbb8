"""One end of a TLS connection without a socket: encrypts and decrypts bytes.

Data is returned only after it was authenticated. Data that was tampered with, or that arrives before the
handshake is complete, is an error.
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

HANDSHAKE_BYTE: Final = 0x16
"""The first byte of every TLS connection: a record of the handshake."""
_AT_ONCE_BYTES: Final = 64 * KIB
"""Bytes encrypted while the lock is held; readers wait for it."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG")
"""Error text of the library for bytes that are not TLS."""


class TlsChannel:
    """One end of a TLS connection: `feed` received bytes, `take` bytes to send. One thread may read while
    another writes.

    `server_name`: for a client, the name or address that the certificate of the server must have.
    """

    def __init__(
        self, context: ssl.SSLContext, *, server: bool = False, server_name: str | None = None
    ) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server, server_hostname=server_name
        )
        # The library takes no two calls at a time on one connection.
        self._lock = threading.Lock()
        self._peer = "client" if server else "server"
        self._failure: TlsFailed | None = None
        self.established = False
        """Whether the handshake is done: before, nothing can be read or written."""
        self.closed = False
        """Whether the other side said that nothing more comes. An end without that was cut off."""

    def feed(self, data: Buffer) -> None:
        """These bytes came; they are copied."""
        with self._lock:
            self._incoming.write(data)

    def take(self) -> bytes:
        """Return the bytes to send now, of a handshake or an alert; empty if there are none."""
        with self._lock:
            return self._outgoing.read()

    @property
    def answers(self) -> bool:
        """Whether reading left something to `take`: the other side may provoke any number of alerts."""
        return self._outgoing.pending > 0

    @property
    def drained(self) -> bool:
        """Whether everything that came was read, as far as it can be."""
        return not self._incoming.pending and not self._tls.pending()

    def shake(self) -> bool:
        """Continue the handshake and return whether it is complete. Call `take` afterwards in any case.

        Raises `TlsFailed`: then `take` returns the alert for the peer.
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
        """Decrypt into `room`, until it is full or nothing more came; 0 when nothing did, or `closed`.

        Raises `TlsFailed` for what does not come from the other side as it was sent."""
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
                if not filled:  # else it is told by the next call: what came before it counts
                    raise failure from None
        return filled

    def encrypted(self, data: Buffer) -> bytes:
        """Return the cipher text of `data`, with whatever else is to be sent before it. Raises
        `TlsFailed`."""
        rest = memoryview(data)
        while rest:
            with self._lock:
                try:
                    rest = rest[self._tls.write(rest[:_AT_ONCE_BYTES]) :]
                except ssl.SSLError as error:
                    raise self._failed(error) from None
        return self.take()

    def farewell(self) -> bytes:
        """Return the closing alert; nothing may be encrypted after it."""
        if self.established:
            try:
                with self._lock:
                    self._tls.unwrap()
            except ssl.SSLError:  # it waits for the answer of the other side, which we do not
                pass
        return self.take()

    def _failed(self, error: ssl.SSLError) -> TlsFailed:
        """Return the error for an error of the library; the first one is the cause of all others."""
        if self._failure is None:
            self._failure = TlsFailed(_explained(error, self._peer))
        return self._failure


def portions(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    """`buffers` in pieces that are encrypted in one go: small ones joined, large ones as they lie, cut."""
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
    """What went wrong with the other side, a `peer`, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the {peer} is not accepted: {error.verify_message}"
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        return f"what the {peer} said is no TLS"
    alert = reason.partition("ALERT_")[2]
    if alert:
        return f"the {peer} refused the connection: {_words(alert)}"
    return f"TLS with the {peer} failed: {_words(reason)}"


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()
