"""Listening addresses: their text form, and which of them other machines can reach.

The text alone decides: no name is resolved, no port opened.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final, NamedTuple

from tickertape.base.errors import ConfigurationError
from tickertape.base.text_format import shown

ADMIN_DEFAULT: Final = "http://127.0.0.1:9008"
ADMIN_FORMS: Final = "http://127.0.0.1:9008, http://[::1]:9008 (port 0 takes a free one)"
LISTEN_FORMS: Final = (
    "tcp://127.0.0.1:9007, tcp://[::1]:9007, tls://0.0.0.0:9007 (port 0 takes a free one) or unix:///path"
)
TLS_SCHEMES: Final = ("tls", "tcps")
"""The same thing; the second is the word of the reference."""
_NOT_BUILT: Final = ("ws", "wss")
_UNIX_PATH_BYTES_MAX: Final = 107
"""Longest path of a Unix socket that the system can bind, without its final zero."""

_HOST_BYTES_MAX: Final = 253
"""Longest name that the domain name system has."""


class ListenAddress(NamedTuple):
    """A listening address: `path` of a Unix socket, else `host` (without brackets) and `port` (0: a free
    one)."""

    host: str
    port: int
    path: str
    tls: bool = False

    @property
    def loopback(self) -> bool:
        """Whether only processes of this machine can reach it."""
        return bool(self.path) or _is_loopback(self.host)


def parse_listen(text: str) -> ListenAddress:
    """Parse `tcp://host:port`, `tls://host:port` or `unix:///path`. Raises `ConfigurationError`."""
    scheme, colon, rest = text.partition("://")
    if colon and scheme in _NOT_BUILT:
        raise ConfigurationError(f"{scheme}:// is not built yet; listen on {LISTEN_FORMS}")
    if colon and scheme == "unix":
        return _unix(text, rest)
    tls = scheme in TLS_SCHEMES
    if not colon or not (tls or scheme == "tcp"):
        raise ConfigurationError(f"{shown(text)} is no address to listen on; use {LISTEN_FORMS}")
    return _host_and_port(text, rest, LISTEN_FORMS)._replace(tls=tls)


def parse_admin(text: str) -> ListenAddress:
    """Parse `http://host:port`. Raises `ConfigurationError`."""
    scheme, colon, rest = text.partition("://")
    if colon and scheme == "https":
        raise ConfigurationError(f"https:// is not built yet; listen on {ADMIN_FORMS}")
    if not colon or scheme != "http":
        raise ConfigurationError(f"{shown(text)} is no address for administration; use {ADMIN_FORMS}")
    return _host_and_port(text, rest.removesuffix("/"), ADMIN_FORMS)


def parse_host_name(text: str) -> str:
    """Parse a host name without a port. Raises `ConfigurationError`."""
    if not text or not _is_host(text):
        raise ConfigurationError(f"{shown(text)} is not a host name without a port, such as db1.example.com")
    return text


def _is_host(host: str) -> bool:
    return len(host) <= _HOST_BYTES_MAX and host.isprintable() and not any(c in host for c in ":/@[] \t")


def _host_and_port(text: str, rest: str, forms: str) -> ListenAddress:
    host, colon, port = rest.rpartition(":")
    if not colon or not host:
        raise ConfigurationError(f"{shown(text)} needs a host and a port; use {forms}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not is_address(host, socket.AF_INET6):
            raise ConfigurationError(f"{shown(host)} in {shown(text)} is no IPv6 address")
    elif not _is_host(host):
        raise ConfigurationError(f"{shown(host)} in {shown(text)} is no host; use {forms}")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ConfigurationError(f"{shown(port)} in {shown(text)} is no port: 0 to 65535")
    return ListenAddress(host, int(port), "")


def _unix(text: str, path: str) -> ListenAddress:
    if not path.startswith("/") or path.endswith("/"):
        raise ConfigurationError(
            f"{shown(text)} needs the absolute path of a socket: unix:///run/tickertape.sock"
        )
    if len(path.encode("utf-8", "replace")) > _UNIX_PATH_BYTES_MAX or not path.isprintable():
        raise ConfigurationError(
            f"the path in {shown(text)} cannot be a socket: "
            f"at most {_UNIX_PATH_BYTES_MAX} bytes, without control characters"
        )
    return ListenAddress("", 0, path)


def _is_loopback(host: str) -> bool:
    if is_address(host, socket.AF_INET):
        return host.startswith("127.")
    return host == "localhost" or (
        is_address(host, socket.AF_INET6)
        and socket.inet_pton(socket.AF_INET6, host) == socket.inet_pton(socket.AF_INET6, "::1")
    )


def is_address(host: str, *families: socket.AddressFamily) -> bool:
    """Whether a host is an address of one of `families`; none given: of either."""
    for family in families or (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return True
    return False
