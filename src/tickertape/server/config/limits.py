"""Limits configuration: the table `[limits]`, the bounds for clients.

Invariant: no limit exceeds what other parts of the product can hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tickertape.base.client_limits import DEFAULT, LEAST, MOST, ClientLimits
from tickertape.base.errors import ConfigurationError
from tickertape.base.units import parse_size
from tickertape.server.config.section import Section

_WHY: Final = {
    "message_bytes_max": "frames, segments and the stores of clients hold no larger message",
    "filter_bytes_max": "a longer filter keeps all other clients waiting while it is read",
    "subscriptions_per_connection_max": "a bookmark store holds no more subscriptions",
}


def read_limits(section: Section) -> ClientLimits:
    """The table."""
    found = {name: section.value(name, _bounded(name), getattr(DEFAULT, name)) for name in DEFAULT._fields}
    section.finish()
    return ClientLimits(**found)


def _bounded(name: str) -> Callable[[Any], int]:
    low, high = getattr(LEAST, name), getattr(MOST, name)

    def read(value: Any) -> int:
        if isinstance(value, bool | dict | list | float):
            raise ConfigurationError(f"is a whole number from {low:,} to {high:,}")
        number = parse_size(value)
        if number < low:
            raise ConfigurationError(f"is at least {low:,}, not {number:,}")
        if number > high:
            raise ConfigurationError(f"is at most {high:,}, not {number:,}: {_WHY[name]}")
        return number

    return read
