"""Listening addresses: parsing, and whether other machines can reach them.

Parsing resolves no names and opens no ports.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final, NamedTuple

from tickertape.base.errors import ConfigurationError
from tickertape.base.text_format import shown

ADMIN_DEFAULT: Final = "http://127.0.0.1:9008"
ADMIN_FORMS: Final = "http://127.0.0.1:9008 or http://[::1]:9008 (port 0 picks a free port)"
LISTEN_FORMS: Final = (
    "tcp://127.0.0.1:9007, tcp://[::1]:9007, tls://0.0.0.0:9007 (port 0 picks a free port) or unix:///path"
)
SERVER_FORMS: Final = "tls://host:port, tcp://host:port or unix:///path"
TLS_SCHEMES: Final = ("tls", "tcps")
"""Synonyms. The reference uses `tcps`."""
_NOT_BUILT: Final = ("ws", "wss")
_UNIX_PATH_BYTES_MAX: Final = 107
"""Longest path of a Unix socket, without the terminating zero."""

_HOST_BYTES_MAX: Final = 253
"""Longest DNS name."""


class ListenAddress(NamedTuple):
    """A listening address: `path` of a Unix socket, or `host` (without brackets) and `port` (0: a free
    port)."""

    host: str
    port: int
    path: str
    tls: bool = False

    @property
    def loopback(self) -> bool:
        """Whether only processes on this machine can reach it."""
        return bool(self.path) or _is_loopback(self.host)


def parse_listen(text: str) -> ListenAddress:
    """Parse `tcp://host:port`, `tls://host:port` or `unix:///path`. Raises `ConfigurationError`."""
    scheme, colon, rest = text.partition("://")
    if colon and scheme in _NOT_BUILT:
        raise ConfigurationError(f"Cannot listen on {scheme}://: not supported yet. Use {LISTEN_FORMS}.")
    if colon and scheme == "unix":
        return _unix(text, rest)
    tls = scheme in TLS_SCHEMES
    if not colon or not (tls or scheme == "tcp"):
        raise ConfigurationError(f"Invalid listen address {shown(text)}. Use {LISTEN_FORMS}.")
    return _host_and_port(text, rest, LISTEN_FORMS)._replace(tls=tls)


def parse_server(text: str) -> ListenAddress:
    """Parse the address of another server: `tcp://host:port`, `tls://host:port` or `unix:///path`.

    Raises `ConfigurationError`."""
    scheme, colon, rest = text.partition("://")
    if colon and scheme == "unix":
        return _unix(text, rest)
    tls = scheme in TLS_SCHEMES
    if not colon or not (tls or scheme == "tcp"):
        raise ConfigurationError(f"Invalid server address {shown(text)}. Use {SERVER_FORMS}.")
    address = _host_and_port(text, rest, SERVER_FORMS)
    if not address.port:
        raise ConfigurationError(f"Invalid port '0' in {shown(text)}. Use 1 to 65535.")
    return address._replace(tls=tls)


def parse_admin(text: str) -> ListenAddress:
    """Parse `http://host:port`. Raises `ConfigurationError`."""
    scheme, colon, rest = text.partition("://")
    if colon and scheme == "https":
        raise ConfigurationError(f"Cannot listen on https://: not supported yet. Use {ADMIN_FORMS}.")
    if not colon or scheme != "http":
        raise ConfigurationError(f"Invalid admin address {shown(text)}. Use {ADMIN_FORMS}.")
    return _host_and_port(text, rest.removesuffix("/"), ADMIN_FORMS)


def parse_host_name(text: str) -> str:
    """Parse a host name without a port. Raises `ConfigurationError`."""
    if not text or not _is_host(text):
        raise ConfigurationError(
            f"Invalid host name {shown(text)}. Use a name without a port, such as db1.example.com."
        )
    return text


def _is_host(host: str) -> bool:
    return len(host) <= _HOST_BYTES_MAX and host.isprintable() and not any(c in host for c in ":/@[] \t")


def _host_and_port(text: str, rest: str, forms: str) -> ListenAddress:
    host, colon, port = rest.rpartition(":")
    if not colon or not host:
        raise ConfigurationError(f"Invalid address {shown(text)}: host or port is missing. Use {forms}.")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not is_address(host, socket.AF_INET6):
            raise ConfigurationError(f"Invalid IPv6 address {shown(host)} in {shown(text)}. Use {forms}.")
    elif not _is_host(host):
        raise ConfigurationError(f"Invalid host {shown(host)} in {shown(text)}. Use {forms}.")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ConfigurationError(f"Invalid port {shown(port)} in {shown(text)}. Use 0 to 65535.")
    return ListenAddress(host, int(port), "")


def _unix(text: str, path: str) -> ListenAddress:
    if not path.startswith("/") or path.endswith("/"):
        raise ConfigurationError(
            f"Invalid Unix socket address {shown(text)}. Use an absolute path, such as "
            "unix:///run/tickertape.sock."
        )
    if len(path.encode("utf-8", "replace")) > _UNIX_PATH_BYTES_MAX or not path.isprintable():
        raise ConfigurationError(
            f"Invalid socket path in {shown(text)}. Use at most {_UNIX_PATH_BYTES_MAX} bytes, without "
            "control characters."
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
    """Return whether a host is an IP address of one of `families` (default: IPv4 and IPv6)."""
    for family in families or (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return True
    return False


def remote_address(name: object) -> str:
    """Return the text of a remote address. Empty for a Unix socket."""
    if not isinstance(name, tuple) or len(name) < 2:
        return ""
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
