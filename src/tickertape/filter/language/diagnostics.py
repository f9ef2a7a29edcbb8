"""Filter error messages: position, excerpt with a caret, and hints for words of other query languages.

Excerpts are escaped and shortened.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from tickertape.base.errors import BadFilter

_BEFORE: Final = 30
_AFTER: Final = 20
"""Characters shown before and after a position."""


TEXT_FORM: Final = r"""'(?>[^']|'')*+'|"(?>[^"]|"")*+\""""
"""A quoted string, as a regular expression."""


class Diagnostic(Exception):
    """An error in text that the grammar accepts."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at
        self.reason = reason


class Unexpected(Exception):
    """A syntax error."""

    def __init__(self, at: int, expected: frozenset[str], ended: bool) -> None:
        super().__init__(at)
        self.at = at
        self.expected = expected
        """Names of the expected terminals."""
        self.ended = ended
        """Whether the text ended too early."""


def bad_filter(text: str, at: int, reason: str) -> BadFilter:
    """Return the error at character `at` of the filter `text`, with an excerpt and a caret below it.

    The text of the error has three lines: the message, the excerpt and the caret."""
    line, column = place(text, at)
    where = f"line {line}, column {column}" if "\n" in text else f"column {column}"
    stop = "" if reason.endswith("?") else "."
    excerpt, caret = caret_lines(text, at)
    return BadFilter(f"Invalid filter at {where}: {reason}{stop}\n  {excerpt}\n  {caret}", at)


def place(text: str, at: int) -> tuple[int, int]:
    """Return line and column of a character, both from 1."""
    begin = text.rfind("\n", 0, at) + 1
    return text.count("\n", 0, at) + 1, at - begin + 1


def caret_lines(text: str, at: int) -> tuple[str, str]:
    """Return an excerpt of the line of `text` with character `at`, and a line with a caret below it."""
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    first, last = max(begin, at - _BEFORE), min(end, at + _AFTER)
    before = ("..." if first > begin else "") + _escaped(text[first:at])
    after = _escaped(text[at:last]) + ("..." if last < end else "")
    return (before + after).rstrip(), " " * sum(map(_columns, before)) + "^"


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _columns(character: str) -> int:
    """Return the number of terminal columns of a character."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


_LIKE: Final = "LIKE"
_BEGINS: Final = "BEGINS WITH"
_ENDS: Final = "ENDS WITH"
_INSTEAD: Final = {
    **dict.fromkeys(("CONTAINS", "MATCH", "MATCHES", "REGEXP", "REGEX", "RLIKE", "GLOB", "SIMILAR"), _LIKE),
    "REGEXP_LIKE": "REGEXP_MATCH",
    "ILIKE": "LIKE '(?i)...'",
    **dict.fromkeys(("STARTS", "STARTSWITH", "STARTS_WITH", "BEGINSWITH", "BEGINS_WITH", "PREFIX"), _BEGINS),
    **dict.fromkeys(("ENDSWITH", "ENDS_WITH", "SUFFIX"), _ENDS),
    "EQ": "=",
    "NE": "!=",
    "LT": "<",
    "LE": "<=",
    "GT": ">",
    "GE": ">=",
    "MOD": "%",
    "ISNULL": "IS NULL",
    "LEN": "LENGTH",
    "IIF": "IF",
    "CASE": "IF(condition, a, b)",
    "&&": "AND",
    "||": "OR",
    "!": "NOT",
    "=~": _LIKE,
    "~": _LIKE,
}
_NAME: Final = re.compile(r"[^\W\d]\w*")
_SIGN: Final = re.compile(r"=~|&&|\|\||[~!]")
_NO_NUMBER: Final = re.compile(r"[-+]?[0-9][\w.]*")


def suggestion(name: str) -> str:
    """Return a hint for a word or operator of another language, such as `. Did you mean LIKE?`, or ""."""
    found = _INSTEAD.get(name.upper())
    return "" if found is None else f". Did you mean {found}?"


def instead_at(text: str, at: int) -> str:
    """Return the `suggestion` for the text at character `at`."""
    found = _NAME.match(text, at) or _SIGN.match(text, at)
    if found is None and at and text[at - 1] == "=":
        found = _SIGN.match(text, at - 1)
    return "" if found is None else suggestion(found[0])


def malformed_number_at(text: str, at: int) -> str | None:
    """Return the malformed number at character `at`, or None."""
    found = _NO_NUMBER.match(text, at)
    return None if found is None else found[0]
