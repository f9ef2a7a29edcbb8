"""Canonical form of field values: equal values have equal bytes on each machine and run.

Values compare as in JSON: 1 and 1.0 are equal, but true, 1 and "1" differ. NaN equals itself.
The bytes are stored in logs and checkpoints, so they never change.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import Any, Final

import msgspec

_INTEGER_MIN: Final = -(1 << 63)
_INTEGER_MAX: Final = (1 << 64) - 1
_LARGE_INTEGER: Final = 1
"""Extension with the hexadecimal digits of an integer beyond 64 bits."""
_NAN: Final = msgspec.msgpack.Ext(2, b"")
_GENERATED_BYTES: Final = 16

encode_canonical: Final = msgspec.msgpack.Encoder().encode
"""Function that encodes a value of `normal_form`, or a tuple of them, as the shortest MessagePack."""


def normal_form(value: Any) -> Any:
    """Return a value that has the same encoding as each equal value.

    Raises `TypeError` for an object whose names cannot be ordered."""
    kind = type(value)
    if kind is list:
        return [normal_form(element) for element in value]
    if kind is dict:
        return {name: normal_form(value[name]) for name in sorted(value)}
    if kind is float:
        if value != value:
            return _NAN
        if value.is_integer():
            value, kind = int(value), int
    if kind is int and not _INTEGER_MIN <= value <= _INTEGER_MAX:
        return msgspec.msgpack.Ext(_LARGE_INTEGER, b"%x" % value)
    return value


def generated_key(domain: str, canonical: bytes) -> str:
    """Return the generated key of a record: 22 characters of base64url, of BLAKE2b-128.

    The digest covers `domain` as a MessagePack text, which contains its length, and then the canonical key.
    So no other domain and key have the same input.
    """
    digest = blake2b(encode_canonical(domain) + canonical, digest_size=_GENERATED_BYTES).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()
