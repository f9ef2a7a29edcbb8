"""Owns what a fuzz target is. A target raises `AssertionError`, or whatever it did not expect, for a defect;
what it may meet is named where it is caught.

Must never catch more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tickertape.base.errors import TickertapeError


class Target(NamedTuple):
    """Something that takes bytes from outside."""

    run: Callable[[bytes], str]
    """Its outcome in a word, of those that are allowed."""
    seeds: Callable[[], Sequence[bytes]]
    mend: Callable[[bytes], bytes] = bytes
    """Puts checksums right after a mutation."""
    words: tuple[bytes, ...] = ()
    """What a mutation may put in."""
    cost: int = 1
    """How much longer a run of it takes than the usual."""


TEXT_CHARACTERS_MAX: Final = 1200
"""Longest text of an error; escaped, what is repeated of the input is longer than it was."""


def brief(error: TickertapeError, *kinds: type[TickertapeError]) -> None:
    """The error is one of `kinds`, if any are given, and its text can be printed and is not long."""
    assert not kinds or isinstance(error, kinds), repr(error)
    assert len(str(error)) < TEXT_CHARACTERS_MAX
    assert str(error).isprintable()


def texts(*given: str) -> Callable[[], Sequence[bytes]]:
    """Seeds that are text."""
    return lambda: [text.encode() for text in given]
