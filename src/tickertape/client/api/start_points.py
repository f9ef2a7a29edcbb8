"""Named start points of subscriptions: EPOCH, NOW and MOST_RECENT.

Each is the text that goes on the wire, or that the client replaces, with a `repr` that shows its name.
"""

from __future__ import annotations

from typing import Final

from tickertape.base import bookmarks


class NamedStart(str):
    """A start point with a name."""

    __slots__ = ("_name",)

    _name: str

    def __new__(cls, text: str, name: str) -> NamedStart:
        made = super().__new__(cls, text)
        made._name = name
        return made

    def __repr__(self) -> str:
        return f"tickertape.{self._name}"

    def __reduce__(self) -> tuple[type[NamedStart], tuple[str, str]]:
        return NamedStart, (str(self), self._name)


EPOCH: Final = NamedStart(bookmarks.EPOCH, "EPOCH")
"""Start with the first message of the log. The word `"epoch"` means the same."""
NOW: Final = NamedStart(bookmarks.NOW, "NOW")
"""Start after the last message of the log. The word `"now"` means the same."""
MOST_RECENT: Final = NamedStart(bookmarks.MOST_RECENT, "MOST_RECENT")
"""Start where the bookmark store of the client says. The word `"recent"` means the same."""
