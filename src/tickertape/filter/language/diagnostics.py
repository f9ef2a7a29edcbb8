"""Filter error messages: position, excerpt with caret, and hints for words of other languages.

Text of a filter is always escaped and shortened.
"""

from __future__ import annotations

import re
from typing import Final

from tickertape.base.errors import BadFilter

_BEFORE: Final = 30
_AFTER: Final = 20
"""Characters that are shown before and after a place."""


TEXT_FORM: Final = r"""'(?>[^']|'')*+'|"(?>[^"]|"")*+\""""
"""A text in quotes, as a regular expression."""


class Diagnostic(Exception):
    """An error that the grammar accepts and the language does not."""

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
        """Whether the text is over."""


def bad_filter(text: str, at: int, reason: str) -> BadFilter:
    """Return the error at character `at` of the filter `text`, with a caret before it."""
    line, column = place(text, at)
    return BadFilter(f"line {line}, column {column}: {reason}: {_excerpt(text, at)}", at)


def place(text: str, at: int) -> tuple[int, int]:
    """Line and column of a character, both from 1."""
    begin = text.rfind("\n", 0, at) + 1
    return text.count("\n", 0, at) + 1, at - begin + 1


def caret_lines(text: str, at: int) -> tuple[str, str]:
    """Return the line of `text` with character `at`, and a line with a caret below it; for a terminal."""
    begin = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[begin : len(text) if end < 0 else end]
    shown = "".join(c if c.isprintable() else "?" for c in line)
    return shown, " " * (at - begin) + "^"


def _excerpt(text: str, at: int) -> str:
    first, last = max(0, at - _BEFORE), at + _AFTER
    before = ("..." if first else "") + _escaped(text[first:at])
    after = _escaped(text[at:last]) + ("..." if last < len(text) else "")
    return f"{before.rstrip()} ^ {after}".strip()


def _escaped(text: str) -> str:
    return repr("'" + text)[2:-1]  # a quote in it makes repr use the other kind, and leaves this one alone


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
    """What this language has for a word or sign of another: `; perhaps LIKE`, or nothing."""
    found = _INSTEAD.get(name.upper())
    return "" if found is None else f"; perhaps {found}"


def instead_at(text: str, at: int) -> str:
    """As `suggestion`, for the text at character `at`."""
    found = _NAME.match(text, at) or _SIGN.match(text, at)
    if found is None and at and text[at - 1] == "=":
        found = _SIGN.match(text, at - 1)
    return "" if found is None else suggestion(found[0])


def malformed_number_at(text: str, at: int) -> str | None:
    """Return the text at character `at` that resembles a number and is none."""
    found = _NO_NUMBER.match(text, at)
    return None if found is None else found[0]
