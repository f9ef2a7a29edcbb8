"""Memory bookmark store, and the base class of all stores: one `Progress` per subscription, one lock.

A change is made in memory first. Stores with a file override the steps that write it. After a failed or
interrupted step the file records less progress than memory, never more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tickertape.base.bookmarks import Bookmark, is_place
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
from tickertape.client.bookmark_store.protocol import RecoveryPointAdapter, publishing_adapters
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.closing import ClosesItself
from tickertape.client.limits import adapter_notices

if TYPE_CHECKING:
    from tickertape.wire.link_rows import OpenHoles


class ProgressStore(ClosesItself):
    """Bookmark store in memory, with steps that subclasses override.

    Safe to use from several threads. In a forked child every call except `close` raises `Forked`.
    """

    def __init__(self, adapter: RecoveryPointAdapter | None = None) -> None:
        self.adapter = adapter
        """Recovery point adapter of the store, or None."""
        self._offer: Callable[..., None] | None = getattr(adapter, "offer", None)
        self._notices = adapter_notices if any(publishing_adapters(adapter)) else 1
        """Notices for each update of the adapter."""
        self._lock = threading.RLock()
        self._progress: dict[str, Progress] = {}
        self._purging = False
        """A purge is in progress, or was interrupted: power loss may restore purged subscriptions."""
        self._closed = False
        self._refusal: TickertapeError = Closed(
            "Cannot use the bookmark store: it is closed. Create a new one."
        )
        forks.register(self, type(self)._refuse_in_child)

    def __repr__(self) -> str:
        where = "" if self.path is None else f" {self.path!r}"
        return f"<{type(self).__name__}{where}, {len(self._progress)} subscription(s)>"

    @property
    def path(self) -> str | None:
        """Path of the file of the store. A `MemoryBookmarkStore` has None."""
        return None

    # -- calls of the client ------------------------------------------------------------------------------

    def started(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        """Record the bookmarks of a start point (see `BookmarkStore.started`)."""
        with self._lock:
            progress = self._of(sub_id)
            point, placed = progress.point, progress.has_places
            progress.mark_exact(bookmarks)
            if not progress.delivered and not point.base and not point.places and bookmarks:
                progress.start(bookmarks)
                self._keep_point(progress)
                self._has_moved(sub_id)
            elif progress.has_places and not placed:  # a file knows it by the places of a notice
                self._keep_notice(progress, None, [one for one in bookmarks if is_place(one)], None)

    def resumed(self, sub_id: str, *, forget_beyond: bool = False) -> None:
        """Prepare for a subscribe or resubscribe (see `BookmarkStore.resumed`)."""
        with self._lock:
            progress = self._of(sub_id)
            progress.resume(forget_beyond)
            if forget_beyond:
                self._keep_forgetting(progress)

    def log(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """Record a received batch. Return a mask of the messages to deliver, or None for all.

        See `BookmarkStore.log`. Raises `BookmarkStoreFull`, `StoreFailed`, `Closed`.
        """
        with self._lock:
            progress = self._of(sub_id)
            base = progress.delivered
            keep, new, late = progress.accept(publishers, sequences)
            if new is not None:
                sequences = sequences[new]
                if not isinstance(publishers, int):
                    publishers = publishers[new]
            if len(sequences):
                self._keep_delivery(progress, base, publishers, sequences)
            if late is not None:
                self._keep_late(progress, base + len(sequences), *late)
            return keep

    def is_discarded(self, sub_id: str, publisher: int, sequence: int) -> bool:
        """Return whether the message was discarded or is too old (see `BookmarkStore.is_discarded`)."""
        with self._lock:
            progress = self._get(sub_id)
            return progress is not None and progress.is_discarded(publisher, sequence)

    def discard(self, sub_id: str, publisher: int, sequence: int) -> bool:
        """Discard a processed message. Return False if it was already discarded or never delivered."""
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
        """Discard processed messages. Return the number of messages that this call has discarded."""
        with self._lock:
            progress = self._get(sub_id)
            if progress is None or not len(sequences):
                return 0
            done = progress.discard_rows(publishers, sequences)
            if done:
                self._keep_discards(progress, done)
                self._has_moved(sub_id)
            return sum(end - low for low, end in done)

    def persisted(
        self,
        sub_id: str,
        bookmark: Bookmark,
        places: Sequence[Bookmark] = (),
        holes: Sequence[OpenHoles] | None = None,
    ) -> None:
        """Record the bookmark of a `persisted` notice (see `BookmarkStore.persisted`)."""
        with self._lock:
            progress = self._of(sub_id)
            may_move = progress.notice(bookmark, places, holes)
            if not may_move and holes is None:
                return
            self._keep_notice(progress, bookmark if may_move else None, places, holes)
            progress.notices += 1
            if progress.notices >= self._notices:
                self._has_moved(sub_id)

    def most_recent(self, sub_id: str) -> list[Bookmark]:
        """Return the bookmarks that the start point MOST_RECENT means. An empty list means EPOCH."""
        with self._lock:
            progress = self._get(sub_id)
            return [] if progress is None else progress.most_recent()

    def undiscarded_count(self, sub_id: str) -> int:
        """Return the number of delivered messages that are not discarded."""
        with self._lock:
            progress = self._get(sub_id)
            return 0 if progress is None else progress.undiscarded

    def subscriptions(self) -> list[str]:
        """Return the known subscription ids."""
        with self._lock:
            self._check()
            return list(self._progress)

    def purge(self, sub_id: str | None = None) -> None:
        """Forget a subscription, or all subscriptions (None). MOST_RECENT then means EPOCH."""
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
            self.adapter.purge(sub_id)  # without the lock, because the adapter may wait to read a point

    def close(self) -> None:
        """Close the store and its adapter. Later calls except `close` raise `Closed`."""
        if self._closed:
            return
        if self.adapter is not None:
            self._report_notices()
        if self.adapter is not None and self._offer is not None:
            self.adapter.close()  # without the lock, because the adapter may wait to read a point
        with self._lock:
            if not self._closed:  # another thread may have closed it meanwhile
                if self.adapter is not None and self._offer is None:
                    self.adapter.close()
                self._closed = True
                self._progress = {}
                self._release()

    def _refuse_in_child(self) -> None:
        """Disable the store in a forked child. A thread of the parent may hold the lock."""
        self._refusal = forks.forked_error()
        self._closed = True
        refusing: Any = forks.ForkedLock()
        self._lock = refusing

    # -- steps of stores with a file --------------------------------------------------------------------

    def _keep_new(self, sub_id: str, progress: Progress) -> None:
        """Write a new subscription."""

    def _keep_point(self, progress: Progress) -> None:
        """Write the start of a subscription."""

    def _keep_delivery(
        self, progress: Progress, base: int, publishers: Publishers, sequences: UInt64s
    ) -> None:
        """Write the first delivery of messages. `base` is the ordinal of the first message."""

    def _keep_late(self, progress: Progress, base: int, publishers: UInt64s, sequences: UInt64s) -> None:
        """Write the delivery of late messages. `base` is the ordinal of the first one."""

    def _keep_discards(self, progress: Progress, done: Ranges) -> None:
        """Write discarded ordinals."""

    def _keep_notice(
        self,
        progress: Progress,
        bookmark: Bookmark | None,
        places: Sequence[Bookmark],
        holes: Sequence[OpenHoles] | None,
    ) -> None:
        """Write a notice. `bookmark` None: the recovery point does not move."""

    def _keep_forgetting(self, progress: Progress) -> None:
        """Write that everything behind the discarded prefix is forgotten."""

    def _keep_purge(self, gone: Mapping[str, Progress]) -> None:
        """Write the purge of subscriptions, and of earlier failed purges, always durably."""

    def _release(self) -> None:
        """Release the file, once."""

    # -- inside -----------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._closed:
            raise self._refusal.with_traceback(None)  # otherwise the traceback grows with each call

    def _get(self, sub_id: str) -> Progress | None:
        self._check()
        return self._progress.get(sub_id)

    def _of(self, sub_id: str) -> Progress:
        progress = self._get(sub_id)
        if progress is None:
            if len(self._progress) >= bookmark_subscriptions_max:
                raise BookmarkStoreFull(
                    f"Cannot add subscription {sub_id!r}: the bookmark store has its maximum of "
                    f"{len(self._progress):,} subscriptions. Remove some with purge(sub_id)."
                )
            progress = Progress()
            self._progress[sub_id] = progress
            self._keep_new(sub_id, progress)
        return progress

    def _has_moved(self, sub_id: str) -> None:
        """Notify the adapter. The caller holds the lock."""
        self._progress[sub_id].notices = 0
        if self._offer is not None:
            self._offer(sub_id, self.most_recent)
        elif self.adapter is not None:
            self.adapter.update(sub_id, self._progress[sub_id].most_recent())

    def _report_notices(self) -> None:
        """Update the adapter for the notices since its last update."""
        with self._lock:
            for sub_id, progress in self._progress.items():
                if progress.notices:
                    try:
                        self._has_moved(sub_id)
                    except Exception:  # noqa: BLE001 - code of the application may raise anything
                        return  # such as a closed client. The server examines the messages since then again.

    def _load_adapter(self) -> None:
        """Start with the recovery points of the adapter."""
        if self.adapter is not None:
            for sub_id, bookmarks in self.adapter.load():
                self._restore(sub_id, bookmarks)

    def _restore(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        progress = self._progress[sub_id] = restored(bookmarks)
        self._keep_new(sub_id, progress)


class MemoryBookmarkStore(ProgressStore):
    """Bookmark store that tracks delivered and discarded messages in memory (see `BookmarkStore`).

    Each tracked message takes 1 to 17 bytes. The store tracks all messages of a subscription from the first
    undiscarded one. With more than 4,194,304 of them (`bookmark_window_messages_max`), the subscription
    ends with `BookmarkStoreFull`.

    Args:
        adapter: Recovery point adapter. The store starts with its recovery points and updates them. Default
            None.

    Example:
        >>> with tt.Client("desk", uri, bookmark_store=tt.MemoryBookmarkStore()) as client:
        ...     client.publish("orders", {"id": 1})
        ...     for message in client.bookmark_subscribe("orders", tt.MOST_RECENT, sub_id="orders"):
        ...         print(message.json(), message.discard())
        ...         break
        {'id': 1} True
    """

    def __init__(self, adapter: RecoveryPointAdapter | None = None) -> None:
        super().__init__(adapter)
        self._load_adapter()


def restored(bookmarks: Sequence[Bookmark]) -> Progress:
    """Return the progress of a subscription with only its recovery point."""
    places = [one for one in bookmarks if is_place(one)]
    messages = [one for one in bookmarks if not is_place(one)]
    if not places:
        messages = one_for_each(messages)
    if not places:
        progress = Progress(len(messages))
        lasts = dict(messages)
    else:
        progress = Progress(len({one.publisher for one in messages}))
        lasts = progress.missing.restore(messages)
    for moved, (publisher, sequence) in enumerate(lasts.items()):
        progress.restore(publisher, sequence, moved)
    if places:
        progress.point.start(places)
        progress.mark_exact(places)
    return progress
