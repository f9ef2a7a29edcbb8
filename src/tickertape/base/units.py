"""Parse human-readable sizes and durations (`"64MB"`, `"500ms"`), and format timeouts for errors.

A number without a unit is bytes or seconds. Unknown units are errors. Units of size are powers of 1024 in
upper or lower case. Units of time are lower case.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from tickertape.base.errors import BadOption
from tickertape.base.text_format import is_finite, shown, shown_number, wrong_type

SIZE_UNITS: Final = {"": 1, "B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3, "TB": 1024**4}
"""Bytes per unit of size."""
INTERVAL_UNITS: Final = {
    "": Decimal(1),
    "us": Decimal("0.000001"),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
    "w": Decimal(604800),
}
"""Seconds per unit of time."""

_AMOUNT: Final = re.compile(r"[ \t]*([0-9]{1,18}(?:\.[0-9]{1,9})?)[ \t]*([A-Za-z]*)[ \t]*")


def parse_size(value: str | int) -> int:
    """Return the bytes of `value`: an int (unchanged) or text such as `"64MB"`, `"1.5 KB"`, `"4096"`.

    Raises `BadOption` for any other value, and for a negative or fractional number of bytes.
    """
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadOption(wrong_type("size", value, "a number of bytes or text such as '64MB'"))
    if isinstance(value, int):
        if value < 0:
            raise BadOption(f"Invalid size '{shown_number(value)}'. Use a number of bytes >= 0.")
        return value
    match = _AMOUNT.fullmatch(value)
    unit = SIZE_UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise BadOption(
            f"Invalid size {shown(value)}. Use bytes or a number with B, KB, MB, GB or TB (1024s), such as "
            "'64MB'."
        )
    size = Decimal(match[1]) * unit
    if size != size.to_integral_value():
        raise BadOption(f"Invalid size {shown(value)}. Use a whole number of bytes.")
    return int(size)


def parse_interval(value: str | float, name: str = "interval") -> float:
    """Return the seconds of `value`: a number (unchanged) or text such as `"500ms"`, `"10s"`, `"5m"`, `"1d"`.

    Raises `BadOption` with `name` for any other value, and for a negative or infinite number.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadOption(wrong_type(name, value, "a number of seconds or text such as '500ms'"))
    if isinstance(value, int | float):
        if not (value >= 0 and is_finite(value)):
            raise BadOption(f"Invalid {name} '{shown_number(value)}'. Use a finite number of seconds >= 0.")
        return float(value)
    match = _AMOUNT.fullmatch(value)
    unit = INTERVAL_UNITS.get(match[2]) if match else None
    if match is None or unit is None:
        raise BadOption(
            f"Invalid {name} {shown(value)}. Use seconds or a number with us, ms, s, m, h, d or w, such as "
            "'500ms'."
        )
    return float(Decimal(match[1]) * unit)


def within(seconds: float | None) -> str:
    """Return the phrase for a wait of `seconds` in an error text."""
    if seconds is None:
        return "in time"
    return f"within {seconds:.3g} s" if seconds < 100 else f"within {seconds:.0f} s"
