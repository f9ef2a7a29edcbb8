"""String functions.

They run in linear time and return no string longer than `text_result_characters_max`.
"""

from __future__ import annotations

import re
import zlib
from datetime import UTC, datetime
from typing import Final

from tickertape.filter.functions.values import Number
from tickertape.filter.limits import text_result_characters_max

_EASY: Final = 1 << 16
"""Below this product of lengths the ordinary search is fast for all inputs."""
_LONG: Final = 30_000
"""From this length on `str.find` is linear for all inputs: CPython then uses its two-way search."""
BLANKS: Final = " \t\r\n"


def find(text: str, part: str) -> int:
    """Return `text.find(part)`, in linear time for all inputs."""
    if len(text) * len(part) <= _EASY:
        return text.find(part)
    found = (text + "\0" * max(_LONG, 4 * len(part))).find(part)
    return found if found + len(part) <= len(text) else -1


def instr(text: str, part: str) -> int:
    """Return the position of the first `part` in `text`, from 1, or 0 if it is absent."""
    return find(text, part) + 1


def instr_i(text: str, part: str) -> int:
    """Return the same as `instr`, ignoring case.

    The position counts characters of `text`. Case folding may turn one character into several: a match that
    starts inside such a character is reported at that character."""
    folded = text.casefold()
    found = find(folded, part.casefold())
    if found < 0 or len(folded) == len(text):
        return found + 1
    return _unfolded(text, found) + 1


def _unfolded(text: str, at: int) -> int:
    """Return the index in `text` of the character that produced character `at` of the case-folded text."""
    low, high, before = 0, len(text), 0
    while high - low > 1:
        middle = (low + high) // 2
        size = len(text[low:middle].casefold())
        if before + size <= at:
            low, before = middle, before + size
        else:
            high = middle
    return low


def streq_i(text: str, other: str) -> bool:
    """Return whether both strings are equal ignoring case, even if both are numbers."""
    return text.casefold() == other.casefold()


def concat(*texts: str) -> str | None:
    """Return the concatenation of all strings."""
    return None if sum(map(len, texts)) > text_result_characters_max else "".join(texts)


def replace(text: str, part: str, by: str) -> str | None:
    """Return `text` with every `part` replaced."""
    if len(text) * len(part) <= _EASY:
        return _unless_long(text, text.count(part), part, by) and text.replace(part, by)
    filler = next(c for c in map(chr, range(len(part) + 1)) if c not in part)
    padding = filler * max(_LONG, 4 * len(part))
    padded = text + padding
    return _unless_long(text, padded.count(part), part, by) and padded.replace(part, by)[: -len(padding)]


def _unless_long(text: str, count: int, part: str, by: str) -> str | None:
    """Return `text`, or None if this number of replacements makes it too long."""
    return None if len(text) + count * (len(by) - len(part)) > text_result_characters_max else text


def substr(text: str, start: Number, length: Number | None = None) -> str | None:
    """Return the characters at the positions `start`, `start` + 1, ..., from 1: `length` of them or all."""
    if start != start or length != length:
        return None
    first = max(-(2.0**53), min(start, 2.0**53))
    begin = int(first)
    if length is None:
        return text[max(begin - 1, 0) :]
    if length < 0:
        return None
    return text[max(begin - 1, 0) : max(begin - 1 + int(min(length, 2.0**53)), 0)]


def left(text: str, length: Number) -> str | None:
    """Return the first `length` characters."""
    return substr(text, 1, length)


def right(text: str, length: Number) -> str | None:
    """Return the last `length` characters."""
    if not length >= 0:
        return None
    return text[max(len(text) - int(min(length, 2.0**53)), 0) :]


def crc32(text: str) -> int:
    """Return the CRC-32 (as in zip) of the UTF-8 bytes of a string."""
    return zlib.crc32(text.encode())


def char_value(code: Number) -> str | None:
    """Return the character of a Unicode code point."""
    if not 0 < code < 0x110000 or 0xD800 <= code < 0xE000:
        return None
    return chr(int(code))


# -- times --------------------------------------------------------------------------------------------

TIME_DIRECTIVES: Final = frozenset("YymdHMSfj%")
"""Characters allowed after a % in a time format. None of them depends on a language or locale."""
_TIME_CHARACTERS_MAX: Final = 64
_TIME_FORM: Final = (
    "invalid time format. Use at most 64 characters and the directives %Y %y %m %d %H %M %S %f %j %%"
)


def bad_time_format(pattern: str, *, once: bool) -> tuple[int, str] | None:
    """Return the position and reason of the first error in a time format, or None.

    With `once`, a repeated directive is an error, because a format for parsing may have each directive
    once."""
    at = 0
    seen = set()
    while (at := pattern.find("%", at)) >= 0:
        directive = pattern[at + 1 : at + 2]
        if not directive or directive not in TIME_DIRECTIVES:
            return at, _TIME_FORM
        if once and directive in seen:
            return (
                at,
                f"STRPTIME allows each directive once, but %{directive} is repeated. Remove one of them",
            )
        seen.add(directive.strip("%"))
        at += 2
    return (_TIME_CHARACTERS_MAX, _TIME_FORM) if len(pattern) > _TIME_CHARACTERS_MAX else None


def strptime(text: str, pattern: str) -> Number | None:
    """Return the seconds since 1970 (UTC) of a time in the format `pattern`. NULL if it does not match."""
    if len(text) > _TIME_CHARACTERS_MAX:
        return None
    if "%d" in pattern and "%Y" not in pattern and "%y" not in pattern:
        # Python assumes the year 1900. Newer versions warn about a day without a year, so add it.
        text, pattern = f"1900 {text}", f"%Y {pattern}"
    try:
        seconds = datetime.strptime(text, pattern).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError, re.error):
        return None
    return int(seconds) if seconds.is_integer() else seconds


def strftime(seconds: Number, pattern: str) -> str | None:
    """Return a time, in seconds since 1970 (UTC), in the format `pattern`."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(pattern)
    except (ValueError, OverflowError, OSError):
        return None
