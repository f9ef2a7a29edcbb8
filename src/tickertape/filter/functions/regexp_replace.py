"""REGEXP_REPLACE: replaces each match of a regular expression in a string.

Each search is charged to the message. One search is linear in the string. However, the end of a match may be
known only after reading the rest of the string, and then each of many matches reads all of it.
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
"""Cost per match, of `array_work_max`."""
_SCAN_CHARACTERS: Final = 64
"""Characters read after a match per unit of cost."""

Replace = Callable[[Any, Any, Arrays], Scalar]


@lru_cache(maxsize=_CACHED)
def replacing(pattern: str) -> Replace:
    """Return a function of a string, the replacement and the arrays of the message, which are charged.

    `pattern` must be accepted by `compile_pattern`."""
    import re2  # imported late: most servers start without a pattern

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True  # searches with groups are many times slower
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
                continue  # an empty last match is found twice
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
    """Return the position of a group reference, as in other languages, in a replacement. None without one."""
    found = _GROUP.search(by)
    return None if found is None else found.start()


def reads_ahead(pattern: str) -> int | None:
    """Return the maximum number of characters that a search reads after a match. None without a limit.

    A search continues after a match while the expression may match more. A limit exists if every cycle of
    positions contains one that can end a match.
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
