"""Fuzz target: a function of bytes, and its allowed exceptions.

Every other exception of a target is a defect. Must never catch more than a target allows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tickertape.base.errors import TickertapeError


class Target(NamedTuple):
    """Something that takes bytes from outside."""

    run: Callable[[bytes], str]
    """Return the outcome of an input in a word. Raises `allowed` exceptions, and `AssertionError` for a
    defect.
    """
    seeds: Callable[[], Sequence[bytes]]
    mend: Callable[[bytes], bytes] = bytes
    """Puts checksums right after a mutation."""
    words: tuple[bytes, ...] = ()
    """Words that a mutation may insert."""
    cost: int = 1
    """How much longer a run of it takes than the usual."""
    allowed: tuple[type[Exception], ...] = ()
    """The exceptions that an input may cause. Empty: the target must accept every input."""

    def outcome(self, data: bytes) -> str:
        """Return the outcome of an input or the name of an allowed exception. Every other one is raised."""
        try:
            return self.run(data)
        except self.allowed as error:
            if isinstance(error, TickertapeError):
                brief(error)
                return error.code
            return type(error).__name__


@contextlib.contextmanager
def taken() -> Iterator[None]:
    """Turn every exception after the acceptance of an input into a defect, allowed or not."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"error after acceptance: {error!r}") from error


TEXT_CHARACTERS_MAX: Final = 1200
"""Maximum length of an error text. Escaped, repeated input is longer than it was."""


def brief(error: TickertapeError) -> None:
    """Check that the text of an error is printable and short."""
    assert len(str(error)) < TEXT_CHARACTERS_MAX
    assert str(error).replace("\n", "").isprintable()


def texts(*given: str) -> Callable[[], Sequence[bytes]]:
    """Return the seeds that are text."""
    return lambda: [text.encode() for text in given]
