"""Unread bytes of a socket, and the texts of connection errors, for both fronts."""

from __future__ import annotations

import contextlib
import fcntl
import sys
import termios
from typing import Final

from tickertape.base.errors import Disconnected, TlsFailed
from tickertape.client.common.address import Address

SPEAKS_NO_TLS: Final = "does not use TLS"
"""In what `Channel` says of such a server."""


def unread_bytes(descriptor: int) -> int:
    """Return the number of bytes at a socket that were not read; 0 when it is closed."""
    size = bytearray(4)
    with contextlib.suppress(OSError, ValueError):
        fcntl.ioctl(descriptor, termios.FIONREAD, size)
    return int.from_bytes(size, sys.byteorder)


def not_connected(address: Address, error: OSError | UnicodeError) -> Disconnected:
    """Why there is no connection: `UnicodeError` is about a host name that no resolver takes."""
    if isinstance(error, OSError):
        return Disconnected(f"cannot connect to {address.uri}: {error.strerror or error}")
    return Disconnected(
        f"Cannot connect to {address.uri}: the host name has an empty label or one above 63 characters. "
        "Check the host name."
    )


def tls_error(uri: str, error: TlsFailed) -> str:
    """Return the text of a failure, with the address and a hint."""
    text = str(error)
    if uri in text:
        return text
    hint = "; without TLS it is a tcp:// address" if text.endswith(SPEAKS_NO_TLS) else ""
    return f"{uri}: {text}{hint}"


def cut_off(uri: str) -> str:
    """Return the text for a connection that ended without the end that TLS has."""
    return f"the connection to {uri} was cut off, without the end that TLS has"
