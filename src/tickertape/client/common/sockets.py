"""Unread bytes of a socket, and texts of connection errors, for both clients."""

from __future__ import annotations

import contextlib
import fcntl
import sys
import termios

from tickertape.base.errors import Disconnected, TlsFailed
from tickertape.client.common.address import Address
from tickertape.security.tls_options import TLS_FAILED


def unread_bytes(descriptor: int) -> int:
    """Return the number of unread bytes of a socket, 0 if it is closed."""
    size = bytearray(4)
    with contextlib.suppress(OSError, ValueError):
        fcntl.ioctl(descriptor, termios.FIONREAD, size)
    return int.from_bytes(size, sys.byteorder)


def not_connected(address: Address, error: OSError | UnicodeError) -> Disconnected:
    """Return the error of a failed connection attempt. `UnicodeError` is an invalid host name."""
    if isinstance(error, OSError):
        refused = isinstance(error, ConnectionRefusedError)  # asyncio words it differently
        reason = "connection refused" if refused else error.strerror or str(error)
        down = isinstance(error, ConnectionRefusedError | FileNotFoundError)
        cure = "Is the server running? (tickertape serve)" if down else "Check the address."
        return Disconnected(f"Cannot connect to {address.uri!r}: {reason[:1].lower()}{reason[1:]}. {cure}")
    return Disconnected(
        f"Cannot connect to {address.uri!r}: the host name has an empty label or one above 63 characters. "
        "Check the host name."
    )


def tls_error(uri: str, error: TlsFailed) -> str:
    """Return the text of a TLS failure, with the address."""
    text = str(error)
    return text if uri in text else f"Cannot use TLS with {uri!r}: {text.removeprefix(TLS_FAILED)}"


def tls_closed(uri: str) -> TlsFailed:
    """Return the error of a server that closed the connection before the end of the TLS handshake."""
    return TlsFailed(
        f"Cannot use TLS with {uri!r}: the server closed the connection during the TLS handshake. Check that "
        "this is a tls:// address."
    )


def cut_off(uri: str) -> str:
    """Return the error text for a connection that ended without a TLS close notification."""
    return (
        f"Cannot continue: the connection to {uri!r} was cut off without a TLS close notification. "
        "Check the network."
    )


def closed_by_server(uri: str) -> Disconnected:
    """Return the error of a connection that the server closed without a reason."""
    return Disconnected(
        f"Cannot continue: the connection to {uri!r} was closed by the server. Connect again."
    )
