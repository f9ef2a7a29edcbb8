"""Assertions of the conformance suites. Each failure names the violated requirement.

They do not use `assert`, so they also work with `python -O`.
"""

from __future__ import annotations


def must(holds: bool, text: str) -> None:
    """Raise `AssertionError` with `text` unless `holds` is true."""
    if not holds:
        raise AssertionError(text)


def same(what: str, found: object, wanted: object) -> None:
    """Raise `AssertionError` with both values unless `found` equals `wanted`."""
    if found != wanted:
        raise AssertionError(f"{what}: {found!r} instead of {wanted!r}")
