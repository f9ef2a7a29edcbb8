"""Owns searching a text for many patterns at once, which takes little longer than for one of them.

Must never answer otherwise than the patterns one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tickertape.base.limits import pattern_set_memory_bytes
from tickertape.filter.compiler.regex import Pattern


class PatternSet:
    """Patterns that are searched for together."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = tuple(patterns)
        self._match = _together(self._patterns)

    def found(self, text: str) -> list[int]:
        """Which of them, by their place, begin a match anywhere in `text`; in any order."""
        if self._match is not None:
            numbers: list[int] = self._match(text.encode()) or []
            if len(self._patterns) in numbers:
                numbers.remove(len(self._patterns))
                return numbers
        return [number for number, pattern in enumerate(self._patterns) if pattern.search(text)]


def _together(patterns: tuple[Pattern, ...]) -> Callable[[bytes], Any] | None:
    """One search for all of them; None when there is no memory for one."""
    import re2  # late: most servers start without a pattern

    options = re2.Options()
    options.log_errors = False
    options.max_mem = pattern_set_memory_bytes
    matcher = re2.Set.SearchSet(options)
    for pattern in patterns:
        matcher.Add(pattern.text)
    matcher.Add("")  # is found in every text, but for a search that gave up
    try:
        matcher.Compile()
    except re2.error:
        return None
    match: Callable[[bytes], Any] = matcher.Match
    return match
