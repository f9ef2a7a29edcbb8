"""Registry of message types by name.

A type is imported at its first use, because one of them needs an optional package.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from tickertape.base.errors import BadOption
from tickertape.base.text_format import not_one_of
from tickertape.payload.types import MessageType

MESSAGE_TYPES: Final = ("json", "messagepack", "nvfix", "fix", "bson", "binary")
"""The names of the types."""
MESSAGE_TYPE_ALIASES: Final = {"msgpack": "messagepack"}


def message_type(name: str) -> MessageType:
    """Return the message type `name`, one of `MESSAGE_TYPES` or an alias. Always the same object per name.

    Raises `BadOption` for any other name, and for `bson` if its package is not installed.
    """
    known = MESSAGE_TYPE_ALIASES.get(name, name)
    if known not in MESSAGE_TYPES:
        raise BadOption(not_one_of("Unknown message type", name, MESSAGE_TYPES))
    return _made(known)


@cache
def _made(name: str) -> MessageType:
    if name == "json":
        from tickertape.payload.formats.json import Json

        return Json()
    if name == "messagepack":
        from tickertape.payload.formats.messagepack import MessagePack

        return MessagePack()
    if name in {"fix", "nvfix"}:
        from tickertape.payload.formats.fix import Fix

        return Fix(name, numbered=name == "fix")
    if name == "bson":
        return bson_type()
    from tickertape.payload.formats.binary import Binary

    return Binary()


def bson_type() -> MessageType:
    """Return the type `bson`. Raises `BadOption` if its package is not installed."""
    try:
        from tickertape.payload.formats.bson import Bson
    except ImportError as error:
        raise BadOption(
            f"Message type bson needs the bson package of pymongo ({error}). "
            "Install it: pip install 'tickertape[bson]'"
        ) from error
    return Bson()
