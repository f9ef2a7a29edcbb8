"""String functions.

They run in linear time and return no text longer than `text_result_characters_max`.
"""

from __future__ import annotations

import re
import zlib
from datetime import UTC, datetime
from typing import Final

from tickertape.filter.functions.values import Number
from tickertape.filter.limits import text_result_characters_max

_EASY: Final = 1 << 16
"""Below this product of lengths the usual search is quick whatever the texts are."""
_LONG: Final = 30_000
"""From this length on `str.find` is linear whatever the texts are: CPython then searches two ways."""
BLANKS: Final = " \t\r\n"


def find(text: str, part: str) -> int:
    """As `text.find(part)`, but linear for any texts."""
    if len(text) * len(part) <= _EASY:
        return text.find(part)
    found = (text + "\0" * max(_LONG, 4 * len(part))).find(part)
    return found if found + len(part) <= len(text) else -1


def instr(text: str, part: str) -> int:
    """Return where `part` first begins in `text`, from 1; 0 when it does not."""
    return find(text, part) + 1


def instr_i(text: str, part: str) -> int:
    """As `instr`, upper and lower case alike. The place counts characters of `text`, of which one may become
    several where case does not count: a part that begins within one begins at it."""
    folded = text.casefold()
    found = find(folded, part.casefold())
    if found < 0 or len(folded) == len(text):
        return found + 1
    return _unfolded(text, found) + 1


def _unfolded(text: str, at: int) -> int:
    """Return the index in `text` of the character that the character `at` of the case-folded text comes
    from."""
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
    """Return whether both are the same text, upper and lower case alike, also where both are numbers."""
    return text.casefold() == other.casefold()


def concat(*texts: str) -> str | None:
    """Return all of them, one after the other."""
    return None if sum(map(len, texts)) > text_result_characters_max else "".join(texts)


def replace(text: str, part: str, by: str) -> str | None:
    """`text` with every `part` of it replaced."""
    if len(text) * len(part) <= _EASY:
        return _unless_long(text, text.count(part), part, by) and text.replace(part, by)
    filler = next(c for c in map(chr, range(len(part) + 1)) if c not in part)
    padding = filler * max(_LONG, 4 * len(part))
    padded = text + padding
    return _unless_long(text, padded.count(part), part, by) and padded.replace(part, by)[: -len(padding)]


def _unless_long(text: str, count: int, part: str, by: str) -> str | None:
    """Return `text` unless this many replacements make it too long."""
    return None if len(text) + count * (len(by) - len(part)) > text_result_characters_max else text


def substr(text: str, start: Number, length: Number | None = None) -> str | None:
    """Return the characters of the places `start`, `start` + 1, ..., counted from 1; `length` of them or
    all."""
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
    """Return the CRC-32 (as of zip) of its bytes in UTF-8."""
    return zlib.crc32(text.encode())


def char_value(code: Number) -> str | None:
    """Return the character of a Unicode code point."""
    if not 0 < code < 0x110000 or 0xD800 <= code < 0xE000:
        return None
    return chr(int(code))


# -- times --------------------------------------------------------------------------------------------

TIME_DIRECTIVES: Final = frozenset("YymdHMSfj%")
"""What may follow a % in a format of a time: none whose meaning depends on a language or a place."""
_TIME_CHARACTERS_MAX: Final = 64
_TIME_FORM: Final = "a format has at most 64 characters, and %Y %y %m %d %H %M %S %f %j %% only"


def bad_time_format(pattern: str, *, once: bool) -> tuple[int, str] | None:
    """Return the place of the first mistake in a time format, and the reason; None when there is none. With
    `once` a repeated directive is one: a format that times are read with can have each directive once."""
    at = 0
    seen = set()
    while (at := pattern.find("%", at)) >= 0:
        directive = pattern[at + 1 : at + 2]
        if not directive or directive not in TIME_DIRECTIVES:
            return at, _TIME_FORM
        if once and directive in seen:
            return at, f"STRPTIME takes each directive once, and %{directive} is repeated"
        seen.add(directive.strip("%"))
        at += 2
    return (_TIME_CHARACTERS_MAX, _TIME_FORM) if len(pattern) > _TIME_CHARACTERS_MAX else None


def strptime(text: str, pattern: str) -> Number | None:
    """Return the seconds since 1970, UTC, of a time written like `pattern`; NULL when it is not."""
    if len(text) > _TIME_CHARACTERS_MAX:
        return None
    if "%d" in pattern and "%Y" not in pattern and "%y" not in pattern:
        # The year that Python assumes. Without one, newer Pythons warn: of days, which years do not share.
        text, pattern = f"1900 {text}", f"%Y {pattern}"
    try:
        seconds = datetime.strptime(text, pattern).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError, re.error):
        return None
    return int(seconds) if seconds.is_integer() else seconds


def strftime(seconds: Number, pattern: str) -> str | None:
    """Return a time given in seconds since 1970, UTC, written like `pattern`."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime(pattern)
    except (ValueError, OverflowError, OSError):
        return None
