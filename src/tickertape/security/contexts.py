"""TLS contexts of clients and servers.

Client contexts always verify the certificate and the name of the server. Password prompts for keys are
disabled.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, NoReturn

from tickertape.base.errors import BadOption, ConfigurationError, UsageError
from tickertape.base.text_format import shown
from tickertape.security.private_files import check_private
from tickertape.security.tls_options import TLS

_NOT_PEM: Final = (None, "NO_START_LINE", "NO_CERTIFICATE_OR_CRL_FOUND")
"""OpenSSL error reasons for files that are not PEM."""
_CURES: Final = {
    "EE_KEY_TOO_SMALL": "the key is too small. Use RSA with at least 2048 bits, or an elliptic curve",
    "CA_KEY_TOO_SMALL": "the key of the CA is too small. Use RSA with at least 2048 bits",
    "CA_MD_TOO_WEAK": "the signature uses a weak digest. Sign it with SHA-256",
}


def client_context(tls: TLS) -> ssl.SSLContext:
    """Return the TLS context for connections of a client. Raises `BadOption` for unusable files."""
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    if tls.ca is None:
        context.load_default_certs()
    else:
        _trust(context, tls.ca, "CA file", BadOption)
    if tls.certificate is not None and tls.key is not None:
        _identify(context, tls.certificate, tls.key, BadOption)
    return context


def server_context(certificate: str, key: str, client_ca: str | None) -> ssl.SSLContext:
    """Return the TLS context for connections of a server.

    With `client_ca`, every client needs a certificate signed by that CA. Raises `ConfigurationError` for
    unusable files.
    """
    context = _hardened(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.num_tickets = 0  # Connections are long, so session resumption would save nothing.
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
    path = str(path)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        if error.reason in _NOT_PEM:
            raise refuse(
                f"Cannot use {what} {path!r}: it contains no PEM certificate. Use a PEM file."
            ) from None
        raise refuse(f"Cannot use {what} {path!r}: {_in_words(error)}.") from None
    except OSError as error:
        raise refuse(
            f"Cannot read {what} {path!r}: {error.strerror or error}. Check the path and its permissions."
        ) from None
    except ValueError:  # a NUL, or a surrogate
        raise refuse(f"Invalid {what} {shown(path)}. Use the path of a file.") from None


def _identify(
    context: ssl.SSLContext, certificate: str | Path, key: str | Path, refuse: type[UsageError]
) -> None:
    certificate, key = str(certificate), str(key)
    check_private(key, "key", refuse)

    def locked() -> NoReturn:
        raise refuse(
            f"Cannot use key {key!r}: it is encrypted with a password. Store it without a password, with "
            "mode 0600."
        )

    try:
        context.load_cert_chain(certificate, key, password=locked)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise refuse(
                f"Cannot use certificate {certificate!r} with key {key!r}: they do not match. "
                "Use the key that the certificate was issued for."
            ) from None
        if error.reason in _NOT_PEM:
            raise refuse(
                f"Cannot use certificate {certificate!r} with key {key!r}: one of them is not PEM. "
                "Use PEM files."
            ) from None
        raise refuse(
            f"Cannot use certificate {certificate!r} with key {key!r}: {_in_words(error)}."
        ) from None
    except OSError as error:
        raise refuse(
            f"Cannot read certificate {certificate!r}: {error.strerror or error}. Check the path and its "
            "permissions."
        ) from None
    except ValueError:
        raise refuse(f"Invalid certificate {shown(certificate)}. Use the path of a file.") from None


def _in_words(error: ssl.SSLError) -> str:
    """Return the text of an OpenSSL error for a certificate or key."""
    reason = error.reason or str(error)
    return _CURES.get(reason) or f"{reason.replace('_', ' ').lower()}. Check the file"
