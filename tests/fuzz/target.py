"""Owns what a fuzz target is: what it makes of bytes, and which exceptions may come of that.

Whatever else a target raises is a defect. Must never catch more than a target allows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tickertape.base.errors import TickertapeError


class Target(NamedTuple):
    """Something that takes bytes from outside."""

    run: Callable[[bytes], str]
    """Its outcome in a word. Raises what is `allowed`, and `AssertionError` for a defect."""
    seeds: Callable[[], Sequence[bytes]]
    mend: Callable[[bytes], bytes] = bytes
    """Puts checksums right after a mutation."""
    words: tuple[bytes, ...] = ()
    """What a mutation may put in."""
    cost: int = 1
    """How much longer a run of it takes than the usual."""
    allowed: tuple[type[Exception], ...] = ()
    """The exceptions that may come of an input. None of them: the target must take whatever comes."""

    def outcome(self, data: bytes) -> str:
        """What comes of an input, an allowed exception included; every other one is raised."""
        try:
            return self.run(data)
        except self.allowed as error:
            if isinstance(error, TickertapeError):
                brief(error)
                return error.code
            return type(error).__name__


@contextlib.contextmanager
def taken() -> Iterator[None]:
    """What a target does with an input that it took: whatever is raised here is a defect, allowed or not."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"it was taken, and then came {error!r}") from error


TEXT_CHARACTERS_MAX: Final = 1200
"""Longest text of an error; escaped, what is repeated of the input is longer than it was."""


def brief(error: TickertapeError) -> None:
    """The text of the error can be printed and is not long."""
    assert len(str(error)) < TEXT_CHARACTERS_MAX
    assert str(error).replace("\n", "").isprintable()


def texts(*given: str) -> Callable[[], Sequence[bytes]]:
    """Seeds that are text."""
    return lambda: [text.encode() for text in given]
