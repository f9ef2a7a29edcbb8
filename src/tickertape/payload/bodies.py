"""Conversion of Python objects to bodies: bytes unchanged, strings as UTF-8, others as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tickertape.base.errors import BadMessage

_ONLY_BYTES: Final = {bytes}
_to_json: Final = msgspec.json.Encoder().encode
_from_json: Final = msgspec.json.Decoder().decode


def encode(data: object) -> bytes:
    """Return `data` as a body: bytes unchanged, `str` as UTF-8, anything else as JSON.

    Raises `BadMessage` for strings with lone surrogates, and for objects that msgspec cannot encode.
    """
    kind = type(data)
    if kind is bytes:
        return data  # type: ignore[return-value]
    try:
        if kind is dict:
            return _to_json(data)
        if isinstance(data, (bytes, bytearray, memoryview)):
            return bytes(data)
        return data.encode() if isinstance(data, str) else _to_json(data)
    except UnicodeEncodeError as error:
        raise BadMessage(
            f"Cannot encode {type(data).__name__} as a message body: it is not valid Unicode. "
            "Use valid Unicode text, or publish bytes."
        ) from error
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadMessage(
            f"Cannot encode {type(data).__name__} as a message body: {error}. "
            "Publish bytes, str or a JSON value."
        ) from error


def encode_all(messages: Sequence[object]) -> list[bytes]:
    """Return each of `messages` as encoded by `encode`. Faster if all are bytes."""
    if set(map(type, messages)) == _ONLY_BYTES:
        return list(messages)  # type: ignore[arg-type]
    return list(map(encode, messages))


def decode(data: bytes) -> Any:
    """Return a body decoded from JSON. Raises `BadMessage` if it is not JSON."""
    try:
        return _from_json(data)
    except (ValueError, RecursionError) as error:
        raise BadMessage(
            f"Cannot decode a body of {len(data)} bytes as JSON: {error}. Read the body as bytes."
        ) from error
