"""Convert between Python objects and bodies: bytes as they are, text as UTF-8, other objects as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tickertape.base.errors import BadMessage

_ONLY_BYTES: Final = {bytes}
_to_json: Final = msgspec.json.Encoder().encode
_from_json: Final = msgspec.json.Decoder().decode


def encode(data: object) -> bytes:
    """`data` as a body: bytes as they are, `str` as UTF-8, anything else as JSON.

    Raises `BadMessage` for text with lone surrogates and for what msgspec cannot encode.
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
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadMessage(f"a {type(data).__name__} cannot be made a message body: {error}") from error


def encode_all(messages: Sequence[object]) -> list[bytes]:
    """Return each of `messages` as `encode` gives it; looks at them together when all are bytes."""
    if set(map(type, messages)) == _ONLY_BYTES:
        return list(messages)  # type: ignore[arg-type]
    return list(map(encode, messages))


def decode(data: bytes) -> Any:
    """Return a body, read as JSON. Raises `BadMessage` when it is not."""
    try:
        return _from_json(data)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"a body of {len(data)} bytes is not JSON: {error}") from error
