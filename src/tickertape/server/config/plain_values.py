"""Owns values that keys of several sections have: flags, choices, times and counts.

Must never take a value for another: a number is no flag, and no text is a number but one of digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tickertape.base.errors import ConfigurationError
from tickertape.base.units import parse_interval
from tickertape.server.config.section import kind_of

_DIGITS_MAX: Final = 20


def flag_of(value: Any) -> bool:
    """A flag. Raises `ConfigurationError`, as all here."""
    # As text too, because that is all that ${VAR} can give.
    flag = {"true": True, "false": False}.get(value) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise ConfigurationError(f"is true or false, not {kind_of(value)}")
    return flag


def check_choice(value: Any, names: Sequence[str]) -> None:
    """`value` is one of `names`."""
    if value not in names:
        allowed = ", ".join(f'"{name}"' for name in names)
        raise ConfigurationError(f"is one of {allowed}, not {kind_of(value)}")


def seconds_of(value: Any) -> float:
    """A time in seconds. Raises `BadOption` too."""
    if isinstance(value, dict | list):
        raise ConfigurationError(f'is a time such as 1 (seconds) or "500ms", not {kind_of(value)}')
    return parse_interval(value)


def count_of(value: Any, least: int, most: int) -> int:
    """A whole number, `least` to `most`."""
    # As text too, because that is all that ${VAR} can give.
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit():
        count = int(text)
        if least <= count <= most:
            return count
    raise ConfigurationError(f"is a number, {least:,} to {most:,}, not {kind_of(value)}")
