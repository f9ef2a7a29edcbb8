"""Memory bookmark store, and the base of all: one `Progress` for each subscription, under one lock.

A change is made in memory first. Stores with a file override the steps that keep it; a step that fails or is
interrupted leaves a file that knows less, never more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import BookmarkStoreFull, Closed, TickertapeError
from tickertape.base.limits import bookmark_subscriptions_max
from tickertape.client.bookmark_store.progress import (
    Mask,
    Progress,
    Publishers,
    Ranges,
    UInt64s,
    one_for_each,
)
from tickertape.client.bookmark_store.protocol import RecoveryPointAdapter
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.closing import ClosesItself


class ProgressStore(ClosesItself):
    """A bookmark store in memory, with steps that others fill in. Safe to use from several threads. It is the
    parent's alone: in a forked child everything but `close` raises `Forked`."""

    def __init__(self, adapter: RecoveryPointAdapter | None = None) -> None:
        self.adapter = adapter
        """What keeps recovery points beside it, if anything."""
        self._offer: Callable[..., None] | None = getattr(adapter, "offer", None)
        self._lock = threading.RLock()
        self._progress: dict[str, Progress] = {}
        self._purging = False
        """A purge is under way, or was interrupted: what it was to forget may come back with the power."""
        self._closed = False
        self._refusal: TickertapeError = Closed("this bookmark store is closed")
        forks.register(self)

    def __repr__(self) -> str:
        where = "" if self.path is None else f" {self.path!r}"
        return f"<{type(self).__name__}{where}, {len(self._progress)} subscription(s)>"

    @property
    def path(self) -> str | None:
        """The file; None in memory."""
        return None

    # -- what a client asks -------------------------------------------------------------------------------

    def started(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        """See `BookmarkStore.started`."""
        with self._lock:
            progress = self._of(sub_id)
            point = progress.point
            if not progress.delivered and not point.base and bookmarks:
                point.start(one_for_each(bookmarks))
                self._keep_point(progress)
                self._has_moved(sub_id)

    def resumed(self, sub_id: str, *, forget_beyond: bool = False) -> None:
        """See `BookmarkStore.resumed`."""
        with self._lock:
            progress = self._of(sub_id)
            progress.resume(forget_beyond)
            if forget_beyond:
                self._keep_forgetting(progress)

    def log(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """See `BookmarkStore.log`."""
        with self._lock:
            progress = self._of(sub_id)
            base = progress.delivered
            keep, new = progress.accept(publishers, sequences)
            if new is not None:
                sequences = sequences[new]
                if not isinstance(publishers, int):
                    publishers = publishers[new]
            if len(sequences):
                self._keep_delivery(progress, base, publishers, sequences)
            return keep

    def is_discarded(self, sub_id: str, publisher: int, sequence: int) -> bool:
        """See `BookmarkStore.is_discarded`."""
        with self._lock:
            progress = self._get(sub_id)
            return progress is not None and progress.is_discarded(publisher, sequence)

    def discard(self, sub_id: str, publisher: int, sequence: int) -> bool:
        """See `BookmarkStore.discard`."""
        with self._lock:
            progress = self._progress.get(sub_id)
            if progress is None:
                self._check()
                return False
            if progress.discard(publisher, sequence) < 0:
                return False
            if self.adapter is not None:
                self._has_moved(sub_id)
            return True

    def discard_all(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> int:
        """See `BookmarkStore.discard_all`."""
        with self._lock:
            progress = self._get(sub_id)
            if progress is None or not len(sequences):
                return 0
            done = progress.discard_rows(publishers, sequences)
            if done:
                self._keep_discards(progress, done)
                self._has_moved(sub_id)
            return sum(end - low for low, end in done)

    def persisted(self, sub_id: str, bookmark: Bookmark) -> None:
        """See `BookmarkStore.persisted`."""
        with self._lock:
            progress = self._of(sub_id)
            if progress.is_past(bookmark):
                return
            progress.point.notice(bookmark, progress.delivered, progress.head)
            self._keep_notice(progress, bookmark)
            self._has_moved(sub_id)

    def most_recent(self, sub_id: str) -> list[Bookmark]:
        """See `BookmarkStore.most_recent`."""
        with self._lock:
            progress = self._get(sub_id)
            return [] if progress is None else progress.most_recent()

    def undiscarded_count(self, sub_id: str) -> int:
        """See `BookmarkStore.undiscarded_count`."""
        with self._lock:
            progress = self._get(sub_id)
            return 0 if progress is None else progress.undiscarded

    def subscriptions(self) -> list[str]:
        """See `BookmarkStore.subscriptions`."""
        with self._lock:
            self._check()
            return list(self._progress)

    def purge(self, sub_id: str | None = None) -> None:
        """See `BookmarkStore.purge`."""
        with self._lock:
            self._check()
            names = list(self._progress) if sub_id is None else [sub_id] if sub_id in self._progress else []
            if names or self._purging:
                self._purging = True
                self._keep_purge({name: self._progress.pop(name) for name in names})
                self._purging = False
            if self.adapter is not None and self._offer is None:
                self.adapter.purge(sub_id)
        if self.adapter is not None and self._offer is not None:
            self.adapter.purge(sub_id)  # not under the lock: it may be waiting to read a point

    def close(self) -> None:
        """See `BookmarkStore.close`. The adapter is closed too."""
        if self._closed:
            return
        if self.adapter is not None:
            self.adapter.close()
        with self._lock:
            self._closed = True
            self._progress = {}

    def forked(self) -> None:
        """Internal: this is a forked child; the parent goes on, and a thread of it may hold the lock."""
        self._refusal = forks.forked_error()
        self._closed = True
        refusing: Any = forks.ForkedLock()
        self._lock = refusing

    # -- steps of stores with a file --------------------------------------------------------------------

    def _keep_new(self, sub_id: str, progress: Progress) -> None:
        """A subscription is known from now on."""

    def _keep_point(self, progress: Progress) -> None:
        """It has a start."""

    def _keep_delivery(
        self, progress: Progress, base: int, publishers: Publishers, sequences: UInt64s
    ) -> None:
        """Messages were delivered that never were before; `base` is the ordinal of the first."""

    def _keep_discards(self, progress: Progress, done: Ranges) -> None:
        """These ordinals are discarded."""

    def _keep_notice(self, progress: Progress, bookmark: Bookmark) -> None:
        """A notice came."""

    def _keep_forgetting(self, progress: Progress) -> None:
        """What was behind the prefix is forgotten."""

    def _keep_purge(self, gone: Mapping[str, Progress]) -> None:
        """These subscriptions are forgotten, and what an earlier purge that failed was to forget: durably,
        whatever else is."""

    # -- inside -----------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise self._refusal.with_traceback(None)  # else it grows with each call

    def _get(self, sub_id: str) -> Progress | None:
        self._check()
        return self._progress.get(sub_id)

    def _of(self, sub_id: str) -> Progress:
        progress = self._get(sub_id)
        if progress is None:
            if len(self._progress) >= bookmark_subscriptions_max:
                raise BookmarkStoreFull(
                    f"{len(self._progress):,} subscriptions in one bookmark store are the limit; purge some"
                )
            progress = Progress()
            self._progress[sub_id] = progress
            self._keep_new(sub_id, progress)
        return progress

    def _has_moved(self, sub_id: str) -> None:
        """Tell the adapter. Called under the lock."""
        if self._offer is not None:
            self._offer(sub_id, self.most_recent)
        elif self.adapter is not None:
            self.adapter.update(sub_id, self._progress[sub_id].most_recent())

    def _load_adapter(self) -> None:
        """Begin with what the adapter has."""
        if self.adapter is not None:
            for sub_id, bookmarks in self.adapter.load():
                self._restore(sub_id, bookmarks)

    def _restore(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        progress = self._progress[sub_id] = restored(bookmarks)
        self._keep_new(sub_id, progress)


class MemoryBookmarkStore(ProgressStore):
    """Remembers in memory what was delivered and discarded; see `BookmarkStore`.

    With an `adapter` it begins with the recovery points kept there, and keeps them up to date. Undiscarded
    messages take 1 to 17 bytes each, at most `bookmark_window_messages_max` a subscription.
    """

    def __init__(self, adapter: RecoveryPointAdapter | None = None) -> None:
        super().__init__(adapter)
        self._load_adapter()


def restored(bookmarks: Sequence[Bookmark]) -> Progress:
    """The progress of a subscription of which only its recovery point is known."""
    points = one_for_each(bookmarks)
    progress = Progress(len(points))
    for moved, (publisher, sequence) in enumerate(points):
        progress.restore(publisher, sequence, moved)
    return progress
