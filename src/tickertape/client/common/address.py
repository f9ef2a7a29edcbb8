"""Server addresses: parsing of URIs, and display without the password.

Invariant: no error text and no repr contains a password.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from tickertape.base.errors import BadOption
from tickertape.base.text_format import wrong_type


class Address(NamedTuple):
    """Parsed server URI: `path` of a Unix socket, or `host` and `port`, and the credentials in the URI."""

    uri: str
    host: str
    port: int
    path: str
    user: str | None
    password: str | None
    tls: bool = False

    def __repr__(self) -> str:
        return f"Address({self.uri!r})"  # without the password


_NETWORK: Final = ("tcp", "tls", "tcps")
"""`tcps` is the AMPS name for `tls`."""
NO_ADDRESS: Final = Address("nowhere", "", 0, "", None, None)
"""Placeholder address before a server is chosen."""


def shown_uri(uri: str) -> str:
    """Return the address without its password, escaped or not, for errors and logs."""
    scheme, mark, rest = uri.partition("://")
    if not mark:
        scheme, rest = "", uri
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    if not (at and colon) or (scheme == "unix" and rest.startswith("/")):
        return uri
    return f"{scheme}{mark}{user}:...@{place}"


def parse_uri(uri: str) -> Address:
    """Parse `tcp://host:port`, `tls://host:port`, both with an optional `user:password@`, or `unix:///path`.

    Raises `BadOption`, whose text never contains a password.
    """
    if not isinstance(uri, str):
        raise BadOption(wrong_type("server address", uri, "text such as tcp://host:port"))
    address: Address | None = None
    try:
        address = _address(uri)
    except ValueError:  # its text may contain parts of a password
        address = None
    if address is None or "\0" in address.host + address.path:
        hint = " In a user name or password write % / ? # @ as %25 %2F %3F %23 %40." if "@" in uri else ""
        raise BadOption(
            f"Invalid server address {shown_uri(uri)!r}. Use tcp://host:port, tls://host:port or "
            f"unix:///path.{hint}"
        )
    if "?" in uri or "#" in uri:
        raise BadOption(
            f"Invalid server address {address.uri!r}: it has a query or a fragment. Remove it, or write ? "
            "and # in a path as %3F and %23."
        )
    return address


def _address(uri: str) -> Address | None:
    """Return the parsed address, or None if it is invalid. Raises `ValueError`."""
    parts = urlsplit(uri)
    shown, port = shown_uri(uri), parts.port
    if parts.scheme == "unix" and parts.path and not parts.netloc:
        return Address(shown, "", 0, unquote(parts.path), None, None)
    if parts.scheme not in _NETWORK or not parts.hostname or not port or parts.path not in ("", "/"):
        return None
    host, mark, zone = parts.hostname.partition("%")
    if mark and ":" in host and zone.startswith("25"):  # RFC 6874: the percent sign is escaped
        zone = zone[2:]
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return Address(shown, host + mark + zone, port, "", user, password, parts.scheme != "tcp")
