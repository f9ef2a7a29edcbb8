"""TLS options of a client: the public class `tickertape.TLS`, and the start of TLS errors.

This module does not import `ssl`, so a client without TLS does not load OpenSSL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tickertape.base.errors import BadOption

TLS_FAILED: Final = "Cannot use TLS: "
"""First words of the errors of a TLS channel."""


class TLS(msgspec.Struct, frozen=True, kw_only=True):
    """TLS settings of a client for `tls://` addresses.

    The client always verifies the server certificate and its name. It reads the files for each connection, so
    a reconnect uses renewed certificates. A connect raises `BadOption` for unusable files.

    Args:
        ca: Path of a PEM file with the trusted CA certificates. None (default): the CAs of the system.
        certificate: Path of the client certificate and its intermediate certificates (PEM). Servers with
            `client_ca` require it.
        key: Path of the private key of `certificate` (PEM, without a password). Its mode must not grant
            rights to other users (0600).
        server_name: Name that the server certificate must contain. None (default): the host of the address.

    Raises:
        BadOption: `certificate` without `key`, or `key` without `certificate`.

    Example:
        >>> tls = tt.TLS(ca="ca.pem", server_name="tickertape.example.com")
        >>> client = tt.Client("desk", "tls://10.0.0.7:9007", tls=tls, connect=False)
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            there, missing = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise BadOption(f"Invalid TLS settings: '{there}' requires '{missing}'. Pass both or neither.")
