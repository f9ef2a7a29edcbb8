"""Counter of exceptions raised inside filters and contained there.

A filter comes from a client and must not end the process or another subscription. A filter that raises during
compilation is rejected. A message for which it raises does not match and counts as unreadable. Tests read the
counter, so containment does not hide defects.
"""

from __future__ import annotations

from typing import Final

from tickertape.base.text_format import described

_CHARACTERS_MAX: Final = 200


class ContainedErrors:
    """The number of contained exceptions, and the last one."""

    def __init__(self) -> None:
        self.count: int = 0
        self.last: str = ""
        """Type and text of the last exception."""

    def note(self, error: Exception) -> str:
        """Count `error`. Return its type and the start of its text."""
        self.count += 1
        self.last = text = described(error, _CHARACTERS_MAX)
        return text


DEFECTS: Final = ContainedErrors()
"""Contained exceptions of all filters of the process."""
