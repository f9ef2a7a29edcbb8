"""Credentials: which of them, and which TLS options, go with which address.

Invariants: a token never travels in clear over a network, and no TLS option is ignored.
"""

from __future__ import annotations

import ssl
from ipaddress import ip_address
from typing import NamedTuple

from tickertape.base.errors import BadOption
from tickertape.client.common.address import Address
from tickertape.security.contexts import TLS, client_context


class Credentials(NamedTuple):
    """What an application said of how to reach servers. `tls`: for `tls://` addresses; None: the certificates
    of the system are trusted. `has_token`: the password is a token."""

    tls: TLS | None = None
    has_token: bool = False

    def check(self, address: Address) -> None:
        """Raise `BadOption` for an address that does not go with what was said."""
        if self.tls is not None and not address.tls:
            raise BadOption(f"tls= is for tls:// addresses, and {address.uri} is none")
        if self.has_token and not address.tls and not _is_here(address):
            raise BadOption(
                f"a token would travel in clear to {address.uri}: connect to a tls:// address (or give it as "
                "password=, where the network is trusted)"
            )

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a `tls://` address. Raises `BadOption`."""
        return client_context(self.tls or TLS())

    def name_of(self, address: Address) -> str:
        """Return the name that the server's certificate must have."""
        return (self.tls.server_name if self.tls is not None else None) or address.host


def password_of(password: str | None, token: str | None) -> str | None:
    """Return the password of the logon: the one or the other. Raises `BadOption`."""
    if token is None:
        return password
    if password is not None:
        raise BadOption("token= and password= exclude each other: a token is the password of a logon")
    if not isinstance(token, str):
        raise BadOption(f"token is text, not {type(token).__name__}")
    return token


def credentials_of(tls: TLS | None, token: str | None) -> Credentials:
    """Make the credentials of a client's arguments. Raises `BadOption`."""
    if tls is not None and not isinstance(tls, TLS):
        raise BadOption(f"tls is a tickertape.TLS, not {type(tls).__name__}")
    return Credentials(tls, token is not None)


def _is_here(address: Address) -> bool:
    """Whether the address is on this machine."""
    if address.path or address.host == "localhost":
        return True
    try:
        return ip_address(address.host).is_loopback
    except ValueError:
        return False
