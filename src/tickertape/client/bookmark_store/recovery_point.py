"""Recovery point of one subscription: the bookmarks to resume from, as MOST_RECENT sends them.

Invariant: no bookmark lies past a message that is not discarded. The server resumes after the earliest of
them in its log, so one for each publisher is safe where servers order publishers differently, but a publisher
that fell silent would pull the start back for ever. Hence notices: what was discarded before the last notice
but one is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tickertape.base.bookmarks import Bookmark
from tickertape.client.limits import recovery_bookmarks_max

Moved = tuple[int, int, int]
"""Of a publisher: the ordinal of its last message in the discarded prefix, the publisher, the sequence."""
Pending = tuple[int, Bookmark]
"""A notice, and how many messages had been delivered when it came."""


class RecoveryPoint:
    """Where a subscription resumes. Ordinals count its delivered messages; `head` of them are a discarded
    prefix."""

    __slots__ = ("at", "base", "floor", "newest", "pending")

    def __init__(self) -> None:
        self.base: tuple[Bookmark, ...] = ()
        """The start, or the last notice that counts."""
        self.at = 0
        """Delivered messages before `base`."""
        self.floor = 0
        """Delivered messages before the notice before it."""
        self.pending: Pending | None = None
        """A notice that counts once everything delivered before it is discarded."""
        self.newest: Pending | None = None

    def start(self, bookmarks: Iterable[Bookmark]) -> None:
        """The subscription begins after these."""
        self.base = tuple(bookmarks)

    def notice(self, bookmark: Bookmark, delivered: int, head: int) -> None:
        """Everything up to `bookmark` was delivered."""
        if self.pending is None:
            self.pending = (delivered, bookmark)
        else:
            self.newest = (delivered, bookmark)
        self.reached(head)

    def reached(self, head: int) -> None:
        """`head` messages are a discarded prefix now."""
        while self.pending is not None and self.pending[0] <= head:
            self.floor = self.at
            self.at = self.pending[0]
            self.base = (self.pending[1],)
            self.pending, self.newest = self.newest, None

    def again(self, head: int) -> None:
        """All behind the prefix comes again: what notices said of it is no longer so."""
        self.pending = self.newest = None
        self.at = min(self.at, head)

    def bookmarks(self, head: int, moved: Iterable[Moved]) -> list[Bookmark]:
        """The bookmarks to resume from, at most `recovery_bookmarks_max`, one for each publisher; none for
        the beginning of the log."""
        self.reached(head)
        floor = self.floor
        recent = sorted(entry for entry in moved if entry[0] >= floor)[-recovery_bookmarks_max:]
        found = {publisher: sequence for _, publisher, sequence in recent}
        if head == self.at or not found:
            for publisher, sequence in self.base:
                found[publisher] = max(sequence, found.pop(publisher, 0))
        return [Bookmark(*entry) for entry in list(found.items())[-recovery_bookmarks_max:]]


def one_for_each(bookmarks: Sequence[Bookmark]) -> list[Bookmark]:
    """The highest of each publisher."""
    highest: dict[int, int] = {}
    for publisher, sequence in bookmarks:
        highest[publisher] = max(sequence, highest.get(publisher, 0))
    return [Bookmark(*entry) for entry in highest.items()]
