"""Owns what a mutation is: a defect of one line, and the tests that have to notice it.

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
