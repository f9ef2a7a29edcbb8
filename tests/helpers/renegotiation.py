"""A TLS 1.2 client that requests a second handshake, which Python's `ssl` cannot do.

Must never check a certificate: it is a hostile client.
"""

from __future__ import annotations

import ctypes
import socket
from types import TracebackType
from typing import Any, Final, Self

LIBRARY: Final = "libssl.so.3"
_TLS_1_2: Final = 0x0303
_SET_MAX_VERSION: Final = 124
_ALERT: Final = 0x15
_HEADER_BYTES: Final = 5
_ROOM_BYTES: Final = 1 << 16


class RenegotiatingClient:
    """Takes over a connected socket. Raises `OSError` where the library of OpenSSL 3 is not."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ssl = ctypes.CDLL(LIBRARY)
        for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new", "BIO_new", "BIO_s_mem"):
            getattr(self._ssl, name).restype = ctypes.c_void_p
        self._context = self._pointer("SSL_CTX_new", self._pointer("TLS_client_method"))
        self._call("SSL_CTX_ctrl", self._context, _SET_MAX_VERSION, ctypes.c_long(_TLS_1_2), None)
        self._tls = self._pointer("SSL_new", self._context)
        self._in, self._out = (self._pointer("BIO_new", self._pointer("BIO_s_mem")) for _ in range(2))
        self._call("SSL_set_bio", self._tls, self._in, self._out)
        self._call("SSL_set_connect_state", self._tls)

    def __enter__(self) -> Self:
        while self._call("SSL_do_handshake", self._tls) != 1:
            self._send()
            data = self._connection.recv(_ROOM_BYTES)
            assert data, "the server ended the connection in the handshake"
            self._call("BIO_write", self._in, data, len(data))
        self._send()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._call("SSL_free", self._tls)
        self._call("SSL_CTX_free", self._context)

    def renegotiate(self) -> None:
        """Send the first record of another handshake."""
        assert self._call("SSL_renegotiate", self._tls) == 1
        self._call("SSL_do_handshake", self._tls)
        self._send()

    def hears_alert(self) -> bool:
        """Wait for the server's next record, and return whether it is an alert."""
        return self._connection.recv(_HEADER_BYTES)[:1] == bytes([_ALERT])

    def _send(self) -> None:
        room = ctypes.create_string_buffer(_ROOM_BYTES)
        count = self._call("BIO_read", self._out, room, _ROOM_BYTES)
        if count > 0:
            self._connection.sendall(room.raw[:count])

    def _pointer(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(getattr(self._ssl, name)(*arguments))

    def _call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self._ssl, name)(*arguments))
