"""Owns how the suites say which promise is broken.

Must never depend on `assert`: a suite that runs with `python -O` finds as much.
"""

from __future__ import annotations


def must(holds: bool, text: str) -> None:
    """Raise `AssertionError` with this text unless it holds."""
    if not holds:
        raise AssertionError(text)


def same(what: str, found: object, wanted: object) -> None:
    """Raise `AssertionError` that tells what was found, unless it is what was wanted."""
    if found != wanted:
        raise AssertionError(f"{what}: {found!r} instead of {wanted!r}")
