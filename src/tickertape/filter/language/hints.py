"""Owns what is said to who writes a filter as another language would have it.

Must never accept anything: it names what this language has instead.
"""

from __future__ import annotations

import re
from typing import Final

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
    """As `suggestion`, for what stands at character `at`."""
    found = _NAME.match(text, at) or _SIGN.match(text, at)
    if found is None and at and text[at - 1] == "=":
        found = _SIGN.match(text, at - 1)
    return "" if found is None else suggestion(found[0])


def no_number(text: str, at: int) -> str | None:
    """What stands at character `at` like a number and is none."""
    found = _NO_NUMBER.match(text, at)
    return None if found is None else found[0]
