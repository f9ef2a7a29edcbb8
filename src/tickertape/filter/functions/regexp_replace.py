"""REGEXP_REPLACE: replace each match of a regular expression in a text.

Each search is charged to the message. A single search is linear in the text, but the end of a match may be
known only after the rest of the text was read, and then each of many matches reads all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from tickertape.filter.functions.arrays import Arrays
from tickertape.filter.functions.values import Scalar, text
from tickertape.filter.language.regex_syntax import RegexShape
from tickertape.filter.limits import text_result_characters_max

_ASSERTION: Final = re.compile(r"\$|\\[AbBz]|(?<!\[)\^")
"""Assertions: after one of them a search may read on without a match."""

_GROUP: Final = re.compile(r"\\[0-9gk]")
_CACHED: Final = 64
MATCH_WORK: Final = 8
"""What each match costs of `array_work_max`."""
_SCAN_CHARACTERS: Final = 64
"""Characters that a search may read behind a match for one of it."""

Replace = Callable[[Any, Any, Arrays], Scalar]


@lru_cache(maxsize=_CACHED)
def replacing(pattern: str) -> Replace:
    """Return a function of a text, what replaces each match, and the arrays of the message, which are
    charged. `pattern` is one that `compile_pattern` accepts."""
    import re2  # late: most servers start without a pattern

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True  # with groups a search is many times slower
    find = re2.compile(pattern, options).finditer
    ahead = reads_ahead(pattern)

    def replace(value: Any, by: Any, arrays: Arrays) -> Scalar:
        subject, other = text(value), text(by) or ""
        if subject is None:
            return None
        arrays.charge((len(subject) if ahead is None else 0) // _SCAN_CHARACTERS)
        parts: list[str] = []
        end = size = 0
        before = None
        for match in find(subject):
            span = begin, after = match.span()
            if span == before:
                continue  # the last one, empty, is found twice
            reads = len(subject) - after if ahead is None else ahead
            arrays.charge(MATCH_WORK + reads // _SCAN_CHARACTERS)
            parts += subject[end:begin], other
            size += begin - end + len(other)
            if size > text_result_characters_max:
                return None
            end, before = after, span
        parts.append(subject[end:])
        return "".join(parts) if 0 < size + len(parts[-1]) <= text_result_characters_max else None

    return replace


def refers_to_group(by: str) -> int | None:
    """Return where a replacement refers to a group of the match, as other languages write it; None when
    nowhere."""
    found = _GROUP.search(by)
    return None if found is None else found.start()


def reads_ahead(pattern: str) -> int | None:
    """Return the most characters that a search for `pattern` reads behind a match; None without a bound.

    A search goes on behind a match while the expression may still match more. There is a bound when it cannot
    go round in characters none of which may be the last of a match.
    """
    if _ASSERTION.search(pattern):
        return None
    shape = RegexShape(pattern)
    inner = ~shape.last
    left = {place: follow & inner for place, follow in enumerate(shape.follow) if inner >> place & 1}
    while left:
        waiting = 0
        for place in left:
            waiting |= 1 << place
        ends = [place for place, follow in left.items() if not follow & waiting]
        if not ends:
            return None
        for place in ends:
            del left[place]
    return len(shape.follow)
