"""Read the validity of a certificate file (PEM) without a library for X.509.

`ssl` loads certificates, but shows the dates of certificate authorities only.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tickertape.base.errors import ConfigurationError

_CERTIFICATE: Final = re.compile("-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----", re.ASCII)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18


def not_after(path: str) -> datetime:
    """Return the time (UTC) at which the first certificate of a PEM file expires.

    Raises:
        ConfigurationError: The file contains no valid certificate.
        OSError: The file cannot be read.
    """
    found = _CERTIFICATE.search(Path(path).read_text("ascii", "replace"))
    try:
        if found is None:
            raise ValueError("no BEGIN CERTIFICATE line")
        return _not_after(ssl.PEM_cert_to_DER_cert(found[0]))
    except ValueError as error:
        raise ConfigurationError(f"Cannot read certificate {path!r}: {error}. Use a PEM file.") from None


def _not_after(der: bytes) -> datetime:
    """Walk Certificate > TBSCertificate > Validity (RFC 5280, section 4.1)."""
    _, certificate, _ = _element(der, 0)
    _, to_be_signed, _ = _element(certificate, 0)
    tag, _, at = _element(to_be_signed, 0)
    # Skip the optional version, the serial number, the signature algorithm and the issuer.
    for _ in range(3 if tag == _VERSION else 2):
        _, _, at = _element(to_be_signed, at)
    tag, validity, _ = _element(to_be_signed, at)
    if tag != _SEQUENCE:
        raise ValueError("the validity is missing")
    _, _, at = _element(validity, 0)
    tag, text, _ = _element(validity, at)
    form = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}.get(tag)
    if form is None:
        raise ValueError("the end of the validity is not a time")
    expires = datetime.strptime(text.decode("ascii", "replace"), form).replace(tzinfo=UTC)
    # RFC 5280: two-digit years from 50 on belong to the 20th century
    return expires.replace(year=expires.year - 100) if tag == _UTC_TIME and expires.year >= 2050 else expires


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Return tag and content of the DER element at `at`, and where the next one starts."""
    if at + 2 > len(data):
        raise ValueError("unexpected end of data")
    tag, size, begin = data[at], data[at + 1], at + 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[at + 2 : begin], "big")
    if begin + size > len(data):
        raise ValueError("unexpected end of data")
    return tag, data[begin : begin + size], begin + size
