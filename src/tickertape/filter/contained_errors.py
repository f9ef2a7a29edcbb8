"""Counter of exceptions raised inside filters and contained there.

A filter comes from a client and must not end the process or another subscription. A filter that raises during
compilation is rejected. A message for which it raises does not match and counts as unreadable. Tests read the
counter, so containment does not hide defects.
"""

from __future__ import annotations

from typing import Final

from tickertape.base.text_format import said

_CHARACTERS_MAX: Final = 200


class ContainedErrors:
    """The number of contained exceptions, and the last one."""

    def __init__(self) -> None:
        self.count: int = 0
        self.last: str = ""
        """Type and text of the last exception."""

    def note(self, error: Exception) -> None:
        """Count `error`."""
        self.count += 1
        self.last = described(error)


def described(error: Exception) -> str:
    """Return the type of `error` and the start of its text."""
    return f"{type(error).__name__}: {said(error, _CHARACTERS_MAX)}"


DEFECTS: Final = ContainedErrors()
"""Contained exceptions of all filters of the process."""
