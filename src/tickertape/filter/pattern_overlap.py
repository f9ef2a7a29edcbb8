"""Overlap of topic patterns: whether two match one topic, or one matches all topics of another.

The answers are cautious, because no short search decides them for all expressions. `may_overlap` is False
only if no topic matches both patterns. `covers` is True only if each topic of one pattern matches the other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from tickertape.filter.compiler.regex import META_CHARACTERS, literal_prefix

EVERY_TOPIC: Final = ".*"
"""The usual pattern that matches every topic."""
_CACHED: Final = 512
_MAY_REPEAT_NEVER: Final = "*?{"
"""Characters after which the character before them may be missing."""


def may_overlap(one: str, other: str) -> bool:
    """Return whether two patterns may match one topic. False only if they start with different texts."""
    first, second = literal_start(one), literal_start(other)
    return first.startswith(second) or second.startswith(first)


def covers(wider: str, narrower: str) -> bool:
    """Return whether each topic that matches `narrower` also matches `wider`. False also if unknown."""
    if wider in (narrower, EVERY_TOPIC):
        return True
    prefix = literal_prefix(wider)
    return prefix is not None and literal_start(narrower).startswith(prefix)


@lru_cache(maxsize=_CACHED)
def literal_start(pattern: str) -> str:
    """Return a text with which every topic starts that matches `pattern`. Empty: none is known."""
    if not pattern.startswith("^") or "|" in pattern:
        return ""
    text = pattern[1:]
    end = next((at for at, sign in enumerate(text) if sign in META_CHARACTERS), len(text))
    if text[end : end + 1] and text[end] in _MAY_REPEAT_NEVER:
        end -= 1
    return text[: max(end, 0)]
