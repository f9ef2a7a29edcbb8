"""Format external text for error messages: escaped and shortened."""

from __future__ import annotations

import math
import re
from typing import Final

shown_characters_max: Final = 80
"""Length above which `shown` shortens a text."""


def shown(text: str) -> str:
    """Return `text` quoted, escaped, and shortened if it is long."""
    return repr(text if len(text) <= shown_characters_max else text[: shown_characters_max - 3] + "...")


number_bits_max: Final = 256
"""Bits above which `shown_number` gives the size of an integer instead of its digits."""


def shown_number(value: float) -> str:
    """Return the digits of a number, or the size of a very large integer."""
    if isinstance(value, int) and value.bit_length() > number_bits_max:
        return f"an integer of {value.bit_length():,} bits"
    return str(value)


def is_finite(value: float) -> bool:
    """Return whether `value` is a finite number in the range of a float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


said_characters_max: Final = 2000
"""Length above which `said` shortens an error text."""

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def said(error: BaseException, characters_max: int = said_characters_max) -> str:
    """Return a library's error text in one line, shortened, without colours and control characters."""
    text = " ".join(_ESCAPES.sub("", str(error)).split())
    text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."
