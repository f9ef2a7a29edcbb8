"""Bookmark tracker: the delivered bookmarks of a subscription, with or without a bookmark store.

Exceptions of an application's store become a `TickertapeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import Closed, StoreFailed, TickertapeError
from tickertape.client.bookmark_store.progress import Mask, Publishers, RecoveryPoint, UInt64s, one_for_each
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.client.limits import bookmark_publishers_max

T = TypeVar("T")


class StoredBookmarkTracker:
    """A subscription that a bookmark store remembers. Every call may raise a `TickertapeError`."""

    comes_again = True
    """Whether messages that were not discarded are redelivered after a resumption."""

    def __init__(self, store: BookmarkStore, sub_id: str) -> None:
        self._store = store
        self._sub_id = sub_id

    def resumed(self, *, conflated: bool) -> None:
        """The subscription is about to be placed (again)."""
        asked(lambda: self._store.resumed(self._sub_id, forget_beyond=conflated))

    def started(self, bookmarks: Sequence[Bookmark]) -> None:
        """The server says after which message it begins; none: at the beginning of the log."""
        asked(lambda: self._store.started(self._sub_id, bookmarks))

    def new_rows(self, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """A batch came: which rows are for the application; None = all."""
        return asked(lambda: self._store.log(self._sub_id, publishers, sequences))

    def noticed(self, bookmark: Bookmark) -> None:
        """Everything up to there was delivered."""
        asked(lambda: self._store.persisted(self._sub_id, bookmark))

    def most_recent(self) -> list[Bookmark]:
        """Where to resume; none: at the beginning of the log."""
        return asked(lambda: list(self._store.most_recent(self._sub_id)))


class MemoryBookmarkTracker:
    """A subscription that nobody discards messages of: what was delivered is done with.

    Its memory: `bookmark_publishers_max` publishers, and no message.
    """

    comes_again = False

    def __init__(self) -> None:
        self._point = RecoveryPoint()
        self._delivered = 0
        self._seen: dict[int, tuple[int, int]] = {}
        """Of each publisher the ordinal of its last message, and the sequence; the latest is the last."""

    def resumed(self, *, conflated: bool) -> None:
        """See `StoredBookmarkTracker`."""
        if conflated:
            self._point.again(self._delivered)

    def started(self, bookmarks: Sequence[Bookmark]) -> None:
        """See `StoredBookmarkTracker`."""
        if not self._delivered and not self._point.base:
            self._point.start(one_for_each(bookmarks))

    def new_rows(self, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """See `StoredBookmarkTracker`."""
        if isinstance(publishers, int):
            keep = self._new(publishers, sequences)
            kept = sequences if keep is None else sequences[keep]
            self._delivered += len(kept)
            if len(kept):
                self._saw(publishers, int(kept[-1]), self._delivered - 1)
            return keep
        keep = np.ones(len(sequences), np.bool_)
        lasts = []
        for publisher in np.unique(publishers).tolist():
            rows = (publishers == publisher).nonzero()[0]
            new = self._new(publisher, sequences[rows])
            if new is not None:
                keep[rows] = new
                rows = rows[new]
            if len(rows):
                lasts.append((int(rows[-1]), publisher))
        ordinals = self._delivered - 1 + keep.cumsum()
        for row, publisher in sorted(lasts):  # the latest comes last
            self._saw(publisher, int(sequences[row]), int(ordinals[row]))
        self._delivered += int(keep.sum())
        return None if keep.all() else keep

    def _new(self, publisher: int, sequences: UInt64s) -> Mask | None:
        """Of messages of one publisher those above what was seen of it; None = all."""
        _, high = self._seen.get(publisher, (0, -1))
        rising = len(sequences) == 1 or bool((sequences[1:] > sequences[:-1]).all())
        if rising and int(sequences[0]) > high:
            return None
        new = np.ones(len(sequences), np.bool_) if high < 0 else sequences > np.uint64(high)
        new[1:] &= sequences[1:] > np.maximum.accumulate(sequences)[:-1]
        return new

    def _saw(self, publisher: int, sequence: int, ordinal: int) -> None:
        self._seen.pop(publisher, None)
        self._seen[publisher] = ordinal, sequence
        if len(self._seen) > bookmark_publishers_max:
            for old in list(self._seen)[: bookmark_publishers_max // 2]:
                del self._seen[old]

    def noticed(self, bookmark: Bookmark) -> None:
        """See `StoredBookmarkTracker`."""
        ordinal, high = self._seen.get(bookmark.publisher, (0, -1))
        past = bookmark.sequence < high or (bookmark.sequence == high and ordinal < self._delivered - 1)
        if not past:  # else it tells of messages that came again, and would move the recovery point back
            self._point.notice(bookmark, self._delivered, self._delivered)

    def most_recent(self) -> list[Bookmark]:
        """See `StoredBookmarkTracker`."""
        moved = ((at, publisher, sequence) for publisher, (at, sequence) in self._seen.items())
        return self._point.bookmarks(self._delivered, moved)


BookmarkTracker: TypeAlias = StoredBookmarkTracker | MemoryBookmarkTracker
"""Tracks the deliveries of one subscription."""


def tracker_of(
    store: BookmarkStore | None, sub_id: str, *, made_up: bool, kept: bool
) -> BookmarkTracker | None:
    """Who keeps account of a bookmark subscription: the store, or memory where it is `kept` beyond its
    connection. A store forgets what an id was before that is `made_up`, and may raise."""
    if store is None:
        return MemoryBookmarkTracker() if kept else None
    if made_up:
        asked(lambda: store.purge(sub_id))
    return StoredBookmarkTracker(store, sub_id)


def forget(store: BookmarkStore | None, sub_id: str) -> TickertapeError | None:
    """Forget a made-up id, and return the error of the store, if any."""
    try:
        if store is not None:
            asked(lambda: store.purge(sub_id))
    except Closed:
        return None  # what it still knows is purged when the id is made up again
    except TickertapeError as error:
        return error
    return None


def asked(call: Callable[[], T]) -> T:
    """The outcome of a call of a store. What it raises is a `TickertapeError`."""
    try:
        return call()
    except TickertapeError:
        raise
    except Exception as error:  # a store of the application may raise anything
        raise StoreFailed(f"the bookmark store failed: {type(error).__name__}: {error}") from error
