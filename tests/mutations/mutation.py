"""Mutation: a defect of one line, the guarantee that it breaks, and the tests that must detect it.

Must never plant one.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """Replaces `old`, which occurs exactly once in the file `module` of the package, with `new`."""

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Test files, below `tests/`, at least one must fail."""
    promise: str
    """The broken guarantee: a goal (`R9`), a numbered `behaviour 28`, or an `invariant 22`."""
    tier: str
    """Directory of tests that is expected to notice it."""
