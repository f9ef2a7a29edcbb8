"""Server limits that the configuration can change and that clients receive at logon.

They never exceed the capacity of frames, batches, the log and client stores.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tickertape.base import limits
from tickertape.base.errors import BadFilter, MessageTooLarge
from tickertape.base.limits import KIB

message_bytes_least: Final = limits.batch_bytes_target
"""Lowest `message_bytes_max`. Clients gather no larger message with others."""
filter_bytes_least: Final = 64
filter_bytes_most: Final = 16 * KIB
"""Highest `filter_bytes_max`. Parsing a filter of this size takes a server about 100 ms."""


class ClientLimits(NamedTuple):
    """Limits of one server. The names are the configuration keys and the fields on the wire."""

    message_bytes_max: int = limits.message_bytes_max
    filter_bytes_max: int = limits.filter_bytes_max
    subscriptions_per_connection_max: int = limits.subscriptions_per_connection_max


DEFAULT: Final = ClientLimits()
LEAST: Final = ClientLimits(message_bytes_least, filter_bytes_least, 1)
MOST: Final = DEFAULT._replace(filter_bytes_max=filter_bytes_most)


def message_too_large(size: int, most: int) -> MessageTooLarge:
    """Return the error for a body of `size` bytes."""
    return MessageTooLarge(
        f"Invalid message: {size:,} bytes is too large. Use at most {most:,} bytes (message_bytes_max)."
    )


def filter_too_long(size: int, most: int) -> BadFilter:
    """Return the error for a filter of `size` bytes."""
    return BadFilter(
        f"Filter of {size:,} bytes is too long. Use at most {most:,} bytes (filter_bytes_max).", most
    )


def check_filter(text: str | None, most: int) -> None:
    """Raise `BadFilter` for a filter longer than `most` bytes."""
    if text is not None and (size := len(text.encode("utf-8", "surrogatepass"))) > most:
        raise filter_too_long(size, most)
