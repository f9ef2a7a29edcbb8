"""Owns what a mutation is: a defect of one line, the promise it breaks, and who has to notice it.

Must never plant one.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """`old`, which stands exactly once in the file `module` of the package, becomes `new`."""

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Test files, below `tests/`, one of which has to fail."""
    promise: str
    """What it breaks: a goal (`R9`), a numbered `behaviour 28`, an `invariant 22`."""
    tier: str
    """Directory of tests that is expected to notice it."""
