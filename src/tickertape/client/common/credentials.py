"""Credentials: the rules for tokens, passwords and TLS options per server address.

Invariants: a token is never sent unencrypted over a network, and no TLS option is ignored.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from tickertape.base.errors import BadOption
from tickertape.base.text_format import wrong_type
from tickertape.client.common.address import Address
from tickertape.security.tls_options import TLS

if TYPE_CHECKING:
    from ssl import SSLContext


class Credentials(NamedTuple):
    """Credential options of a client.

    `tls`: TLS options for `tls://` addresses. None trusts the certificates of the system. `has_token`: the
    password is a token.
    """

    tls: TLS | None = None
    has_token: bool = False

    def check(self, address: Address) -> None:
        """Raise `BadOption` for an address that does not allow these credentials."""
        if self.tls is not None and not address.tls:
            raise BadOption(
                f"Cannot use tls= with {address.uri!r}: it is not a tls:// address. Use a tls:// address or "
                "remove tls=."
            )
        if self.has_token and not address.tls and not _is_here(address):
            raise BadOption(
                f"Cannot send a token to {address.uri!r}: it would be unencrypted. Use a tls:// address, or "
                "pass the token as password= if the network is trusted."
            )

    def context(self) -> SSLContext:
        """Return the TLS context for a `tls://` address. Raises `BadOption`."""
        from tickertape.security.contexts import client_context  # imports `ssl`

        return client_context(self.tls or TLS())

    def name_of(self, address: Address) -> str:
        """Return the name that the server's certificate must contain."""
        return (self.tls.server_name if self.tls is not None else None) or address.host


def password_of(password: str | None, token: str | None) -> str | None:
    """Return the password of the logon, which is `password` or `token`. Raises `BadOption`."""
    if token is None:
        return password
    if password is not None:
        raise BadOption(
            "Cannot use token= and password= together: the client sends the token as the password. Pass "
            "only one."
        )
    if not isinstance(token, str):
        raise BadOption(wrong_type("token", token, "str"))
    return token


def credentials_of(tls: TLS | None, token: str | None) -> Credentials:
    """Return the credentials for the arguments of a client. Raises `BadOption`."""
    if tls is not None and not isinstance(tls, TLS):
        raise BadOption(wrong_type("tls", tls, "tickertape.TLS"))
    return Credentials(tls, token is not None)


def _is_here(address: Address) -> bool:
    """Return whether the address is on this machine."""
    if address.path or address.host == "localhost":
        return True
    try:
        return ip_address(address.host).is_loopback
    except ValueError:
        return False
