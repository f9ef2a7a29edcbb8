"""Limits that the configuration of an instance can change and that clients learn at logon.

They never exceed what frames, batches, the log and the stores of clients can hold.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tickertape.base import limits
from tickertape.base.errors import BadFilter, MessageTooLarge
from tickertape.base.limits import KIB

message_bytes_least: Final = limits.batch_bytes_target
"""The least `message_bytes_max`: no larger message is gathered with others by a client."""
filter_bytes_least: Final = 64
filter_bytes_most: Final = 16 * KIB
"""The largest `filter_bytes_max`: reading such a text takes a server about 100 ms."""


class ClientLimits(NamedTuple):
    """What one instance takes. The names are the keys of the configuration and the fields of the wire."""

    message_bytes_max: int = limits.message_bytes_max
    filter_bytes_max: int = limits.filter_bytes_max
    subscriptions_per_connection_max: int = limits.subscriptions_per_connection_max


DEFAULT: Final = ClientLimits()
LEAST: Final = ClientLimits(message_bytes_least, filter_bytes_least, 1)
MOST: Final = DEFAULT._replace(filter_bytes_max=filter_bytes_most)


def message_too_large(size: int, most: int) -> MessageTooLarge:
    """Return the error for a body of `size` bytes."""
    return MessageTooLarge(f"a message of {size:,} bytes: at most {most:,} are allowed (message_bytes_max)")


def filter_too_long(size: int, most: int) -> BadFilter:
    """Return the error for a filter of `size` bytes."""
    return BadFilter(f"a filter of {size:,} bytes: at most {most:,} are read (filter_bytes_max)", most)


def check_filter(text: str | None, most: int) -> None:
    """Raise `BadFilter` for a filter above `most` bytes."""
    if text is not None and (size := len(text.encode("utf-8", "surrogatepass"))) > most:
        raise filter_too_long(size, most)
