"""Bookmark tracker: the delivered bookmarks of a subscription, with or without a bookmark store.

Exceptions of a custom store become a `TickertapeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from tickertape.base.bookmarks import Bookmark, is_place
from tickertape.base.errors import Closed, StoreFailed, TickertapeError
from tickertape.base.text_format import described
from tickertape.client.bookmark_store.progress import (
    Mask,
    Publishers,
    RecoveryPoint,
    UInt64s,
    numbers_of,
    one_for_each,
)
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.client.limits import bookmark_publishers_max

if TYPE_CHECKING:
    from tickertape.client.bookmark_store.missing import MissingSequences
    from tickertape.wire.link_rows import OpenHoles

T = TypeVar("T")


class StoredBookmarkTracker:
    """Tracker that uses a bookmark store. Every call may raise a `TickertapeError`."""

    comes_again = True
    """Whether undiscarded messages are redelivered after a resumption."""

    def __init__(self, store: BookmarkStore, sub_id: str) -> None:
        self._store = store
        self._sub_id = sub_id

    def resumed(self, *, conflated: bool) -> None:
        """Prepare for a subscribe or resubscribe."""
        asked(lambda: self._store.resumed(self._sub_id, forget_beyond=conflated))

    def started(self, bookmarks: Sequence[Bookmark]) -> None:
        """Record the start reported by the server. No bookmark means the start of the log."""
        asked(lambda: self._store.started(self._sub_id, bookmarks))

    def restart(self) -> None:
        """Forget all progress, because the subscription starts again with the result of a query."""
        asked(lambda: self._store.purge(self._sub_id))

    def new_rows(self, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """Record a batch. Return the mask of rows for the application, or None for all."""
        return asked(lambda: self._store.log(self._sub_id, publishers, sequences))

    def noticed(
        self,
        bookmark: Bookmark,
        places: Sequence[Bookmark] = (),
        holes: Sequence[OpenHoles] | None = None,
    ) -> None:
        """Record that everything up to the bookmark was delivered (see `BookmarkStore.persisted`)."""
        if places:
            asked(lambda: self._store.persisted(self._sub_id, bookmark, places, holes))
        else:
            asked(lambda: self._store.persisted(self._sub_id, bookmark))

    def most_recent(self) -> list[Bookmark]:
        """Return the recovery point. No bookmark means the start of the log."""
        return asked(lambda: list(self._store.most_recent(self._sub_id)))


class MemoryBookmarkTracker:
    """Tracker without a bookmark store. Delivered messages count as processed.

    It remembers at most `bookmark_publishers_max` publishers, and messages since the last notice of a server
    that replicates.
    """

    comes_again = False

    def __init__(self) -> None:
        self._point = RecoveryPoint()
        self._missing: MissingSequences | None = None
        self._delivered = 0
        self._seen: dict[int, tuple[int, int]] = {}
        """Ordinal and sequence of the last message of each publisher, the latest publisher last."""

    def resumed(self, *, conflated: bool) -> None:
        """Implement `StoredBookmarkTracker.resumed`."""
        if conflated:
            self._point.again(self._delivered)
            if self._missing is not None:
                self._missing.forget_recent()

    def started(self, bookmarks: Sequence[Bookmark]) -> None:
        """Implement `StoredBookmarkTracker.started`."""
        self._mark_exact(bookmarks)
        if not self._delivered and not self._point.base and not self._point.places:
            self._point.start(one_for_each(bookmarks))

    def _mark_exact(self, bookmarks: Sequence[Bookmark]) -> None:
        if self._missing is None and any(map(is_place, bookmarks)):
            from tickertape.client.bookmark_store.missing import MissingSequences

            self._missing = MissingSequences()
            self._missing.begin()

    def restart(self) -> None:
        """Implement `StoredBookmarkTracker.restart`."""
        self._point, self._missing = RecoveryPoint(), None
        self._delivered, self._seen = 0, {}

    def new_rows(self, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """Implement `StoredBookmarkTracker.new_rows`."""
        if isinstance(publishers, int):
            keep = self._new(publishers, sequences)
            kept = sequences if keep is None else sequences[keep]
            self._delivered += len(kept)
            if len(kept):
                self._saw(publishers, int(kept.max()), self._delivered - 1)
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
                lasts.append((int(rows[sequences[rows].argmax()]), publisher))
        ordinals = self._delivered - 1 + keep.cumsum()
        for row, publisher in sorted(lasts):  # the latest publisher last
            self._saw(publisher, int(sequences[row]), int(ordinals[row]))
        self._delivered += int(keep.sum())
        return None if keep.all() else keep

    def _new(self, publisher: int, sequences: UInt64s) -> Mask | None:
        """Return the mask of messages of one publisher above its last known sequence, or None for all."""
        _, high = self._seen.get(publisher, (0, -1))
        rising = len(sequences) == 1 or bool((sequences[1:] > sequences[:-1]).all())
        missing = self._missing
        if rising and int(sequences[0]) > high:
            if missing is not None:
                missing.delivered(publisher, high, numbers_of(sequences))
            return None
        new = np.ones(len(sequences), np.bool_) if high < 0 else sequences > np.uint64(high)
        new[1:] &= sequences[1:] > np.maximum.accumulate(sequences)[:-1]
        if missing is not None:
            if new.any():
                missing.delivered(publisher, high, numbers_of(sequences[new]))
            for row in (~new).nonzero()[0].tolist():
                late = int(sequences[row])
                if missing.is_missing(publisher, late, high):
                    missing.delivered(publisher, high, range(late, late + 1))
                    new[row] = True
        return new

    def _saw(self, publisher: int, sequence: int, ordinal: int) -> None:
        _, high = self._seen.pop(publisher, (0, -1))
        self._seen[publisher] = ordinal, max(sequence, high)
        if len(self._seen) > bookmark_publishers_max:
            for old in list(self._seen)[: bookmark_publishers_max // 2]:
                del self._seen[old]

    def noticed(
        self,
        bookmark: Bookmark,
        places: Sequence[Bookmark] = (),
        holes: Sequence[OpenHoles] | None = None,
    ) -> None:
        """Implement `StoredBookmarkTracker.noticed`."""
        self._mark_exact(places)
        if holes is not None and self._missing is not None:
            self._missing.noticed(holes, self._high)
        ordinal, high = self._seen.get(bookmark.publisher, (0, -1))
        past = bookmark.sequence < high or (bookmark.sequence == high and ordinal < self._delivered - 1)
        if not past:  # a notice about redelivered messages would move the recovery point back
            self._point.notice(bookmark, self._delivered, self._delivered, places)

    def _high(self, publisher: int) -> int:
        return self._seen.get(publisher, (0, -1))[1]

    def most_recent(self) -> list[Bookmark]:
        """Implement `StoredBookmarkTracker.most_recent`."""
        moved = ((at, publisher, sequence) for publisher, (at, sequence) in self._seen.items())
        return self._point.bookmarks(self._delivered, moved, self._missing)


BookmarkTracker: TypeAlias = StoredBookmarkTracker | MemoryBookmarkTracker
"""Tracker of the deliveries of one subscription."""


def tracker_of(
    store: BookmarkStore | None, sub_id: str, *, made_up: bool, kept: bool
) -> BookmarkTracker | None:
    """Return the tracker of a bookmark subscription.

    It uses the store, or memory if the subscription is `kept` beyond its connection. A store first forgets a
    generated (`made_up`) id, and may raise.
    """
    if store is None:
        return MemoryBookmarkTracker() if kept else None
    if made_up:
        asked(lambda: store.purge(sub_id))
    return StoredBookmarkTracker(store, sub_id)


def forget(store: BookmarkStore | None, sub_id: str) -> TickertapeError | None:
    """Purge a generated id, and return the error of the store, or None."""
    try:
        if store is not None:
            asked(lambda: store.purge(sub_id))
    except Closed:
        return None  # remaining entries are purged when the id is generated again
    except TickertapeError as error:
        return error
    return None


def asked(call: Callable[[], T]) -> T:
    """Return the result of a store call. Its exceptions become a `TickertapeError`."""
    try:
        return call()
    except TickertapeError:
        raise
    except Exception as error:  # a custom store may raise any exception
        raise StoreFailed(
            f"Cannot use the bookmark store: it raised {described(error)}. Correct the store."
        ) from error
