"""Assertions of the conformance suites; each failure names the broken promise.

They do not use `assert`, so they also work with `python -O`.
"""

from __future__ import annotations


def must(holds: bool, text: str) -> None:
    """Raise `AssertionError` with this text unless it holds."""
    if not holds:
        raise AssertionError(text)


def same(what: str, found: object, wanted: object) -> None:
    """Raise `AssertionError` with the found value unless it is the expected one."""
    if found != wanted:
        raise AssertionError(f"{what}: {found!r} instead of {wanted!r}")
