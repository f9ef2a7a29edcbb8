"""Owns what a client does with the bookmarks of a subscription: in a bookmark store, or without one.

Must never let a message pass that the store holds back, or decide where to begin: it says what is known. What
a store of the application raises is told as an error of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import StoreFailed, TickertapeError
from tickertape.client.bookmark_store.progress import Mask, Progress, Publishers, UInt64s
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.client.bookmark_store.recovery import one_for_each

T = TypeVar("T")


class Trail(Protocol):
    """What was delivered of one subscription. Every call may raise a `TickertapeError`."""

    comes_again: bool
    """Whether what was delivered and not discarded is to be delivered again after a resumption."""

    def resumed(self, *, conflated: bool) -> None:
        """It is about to be placed (again)."""

    def started(self, bookmarks: Sequence[Bookmark]) -> None:
        """The server says after which message it begins; none: at the beginning of the log."""

    def sift(self, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """A batch came: which rows are for the application; None = all."""

    def noticed(self, bookmark: Bookmark) -> None:
        """Everything up to there was delivered."""

    def most_recent(self) -> list[Bookmark]:
        """Where to resume; none: at the beginning of the log."""


class StoredTrail:
    """A subscription that a bookmark store remembers."""

    comes_again = True

    def __init__(self, store: BookmarkStore, sub_id: str) -> None:
        self._store = store
        self._sub_id = sub_id

    def resumed(self, *, conflated: bool) -> None:
        """See `Trail`."""
        asked(lambda: self._store.resumed(self._sub_id, forget_beyond=conflated))

    def started(self, bookmarks: Sequence[Bookmark]) -> None:
        """See `Trail`."""
        asked(lambda: self._store.started(self._sub_id, bookmarks))

    def sift(self, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """See `Trail`."""
        return asked(lambda: self._store.log(self._sub_id, publishers, sequences))

    def noticed(self, bookmark: Bookmark) -> None:
        """See `Trail`."""
        asked(lambda: self._store.persisted(self._sub_id, bookmark))

    def most_recent(self) -> list[Bookmark]:
        """See `Trail`."""
        return asked(lambda: list(self._store.most_recent(self._sub_id)))


class MemoryTrail:
    """A subscription that nobody discards messages of: what was delivered is done with.

    Its memory: `bookmark_publishers_max` publishers, and no message.
    """

    comes_again = False

    def __init__(self) -> None:
        self._progress = Progress()

    def resumed(self, *, conflated: bool) -> None:
        """See `Trail`."""
        self._progress.resume(conflated)

    def started(self, bookmarks: Sequence[Bookmark]) -> None:
        """See `Trail`."""
        progress = self._progress
        if not progress.delivered and not progress.point.base:
            progress.point.start(one_for_each(bookmarks))

    def sift(self, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """See `Trail`."""
        progress = self._progress
        keep, new = progress.accept(publishers, sequences)
        if new is not None:
            sequences = sequences[new]
            if not isinstance(publishers, int):
                publishers = publishers[new]
        if len(sequences):
            progress.discard_rows(publishers, sequences)
        return keep

    def noticed(self, bookmark: Bookmark) -> None:
        """See `Trail`."""
        progress = self._progress
        progress.point.notice(bookmark, progress.delivered, progress.head)

    def most_recent(self) -> list[Bookmark]:
        """See `Trail`."""
        return self._progress.most_recent()


def asked(call: Callable[[], T]) -> T:
    """The outcome of a call of a store. What it raises is a `TickertapeError`."""
    try:
        return call()
    except TickertapeError:
        raise
    except Exception as error:  # a store of the application may raise anything
        raise StoreFailed(f"the bookmark store failed: {type(error).__name__}: {error}") from error
