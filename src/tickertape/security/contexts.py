"""Create TLS contexts from certificates, keys and trusted authorities.

Client contexts always verify the certificate and the name of the server. Password prompts for keys are
disabled.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from tickertape.base.errors import BadOption, ConfigurationError, UsageError
from tickertape.base.text_format import shown
from tickertape.security.private_files import check_private

_NOT_PEM: Final = (None, "NO_START_LINE", "NO_CERTIFICATE_OR_CRL_FOUND")
"""Reasons for which the library could not read a file at all."""
_CURES: Final = {
    "EE_KEY_TOO_SMALL": "its key is too small; use RSA with at least 2048 bits, or an elliptic curve",
    "CA_KEY_TOO_SMALL": "the key of its CA is too small; use RSA with at least 2048 bits",
    "CA_MD_TOO_WEAK": "it is signed with a weak digest; sign it with SHA-256",
}


class TLS(msgspec.Struct, frozen=True, kw_only=True):
    """How a client meets servers at `tls://` addresses. The certificate of the server is always checked, and
    that it is for the name or address that the client connects to.

    `ca`: path of a file with the certificates that are trusted (PEM); None (default): those of the system.
    `certificate`, `key`: paths of the client's own certificate, with those between it and the CA, and of its
    key, both PEM; for servers with `client_ca`. The key may not be readable for everybody. `server_name`: the
    name that the certificate must have, when it is not that of the address. The files are read for each
    connection, so that new ones count from the next one on.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            there, missing = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise BadOption(f"TLS: {there} is given without {missing}")


def client_context(tls: TLS) -> ssl.SSLContext:
    """What connections of a client are made with. Raises `BadOption` for files that cannot be used."""
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    if tls.ca is None:
        context.load_default_certs()
    else:
        _trust(context, tls.ca, "ca", BadOption)
    if tls.certificate is not None and tls.key is not None:
        _identify(context, tls.certificate, tls.key, BadOption)
    return context


def server_context(certificate: str, key: str, client_ca: str | None) -> ssl.SSLContext:
    """What connections of a server are made with; with `client_ca` every client needs a certificate that it
    has signed. Raises `ConfigurationError` for files that cannot be used."""
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.num_tickets = 0  # sessions are long: taking one up again would save nothing
    context.options |= ssl.OP_NO_TICKET
    _identify(context, certificate, key, ConfigurationError)
    if client_ca is not None:
        _trust(context, client_ca, "client_ca", ConfigurationError)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _hardened(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _trust(context: ssl.SSLContext, path: str | Path, what: str, refuse: type[UsageError]) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        if error.reason in _NOT_PEM:
            raise refuse(f"{what} {path} has no certificate in PEM") from None
        raise refuse(f"{what} {path} cannot be used: {_in_words(error)}") from None
    except OSError as error:
        raise refuse(f"{what} {path} cannot be read: {error.strerror or error}") from None
    except ValueError:  # a NUL, or a surrogate
        raise refuse(f"{what}: {shown(str(path))} is not a file name") from None


def _identify(
    context: ssl.SSLContext, certificate: str | Path, key: str | Path, refuse: type[UsageError]
) -> None:
    check_private(key, "key", refuse)

    def locked() -> NoReturn:
        raise refuse(
            f"key {key} is locked with a password: store it without one, readable for its owner only"
        )

    try:
        context.load_cert_chain(certificate, key, password=locked)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise refuse(f"certificate {certificate} and key {key} do not belong together") from None
        if error.reason in _NOT_PEM:
            raise refuse(f"certificate {certificate} or key {key} is not in PEM") from None
        raise refuse(f"certificate {certificate} with key {key} cannot be used: {_in_words(error)}") from None
    except OSError as error:
        raise refuse(f"certificate {certificate} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise refuse(f"certificate: {shown(str(certificate))} is not a file name") from None


def _in_words(error: ssl.SSLError) -> str:
    """Return the library's error text for a certificate or key."""
    reason = error.reason or str(error)
    return _CURES.get(reason, reason.replace("_", " ").lower())
