"""Conflating recovery point adapter: passes on only the newest recovery point of each subscription.

Invariant: the inner adapter never receives an older point after a newer one, and one thread at a time calls
it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import BadOption, Closed
from tickertape.base.units import parse_interval
from tickertape.client.bookmark_store.protocol import RecoveryPointAdapter
from tickertape.client.common import fork_safety as forks

Read = Callable[[str], Sequence[Bookmark]]
_SECONDS: Final = 1.0
_UPDATES: Final = 1000


class ConflatingRecoveryPointAdapter:
    """Recovery point adapter that passes only the newest point of each subscription to another adapter.

    A separate thread passes the points on. `flush` and `close` pass them on immediately. If the process ends
    before a point is passed on, the point is lost, and messages are redelivered.

    Args:
        inner: The other adapter.
        seconds: Longest time that a new point waits, in seconds or text such as `"500ms"`. Default 1 s.
        updates: Number of updates after which the adapter passes the points on, even before `seconds` have
            passed. Default 1000.
        on_error: Called as `on_error(exception)` for each exception of `inner.update`. The adapter continues
            with the next point. Default None: no call, but the attribute `error` has the last exception.
            Exceptions of the other methods of `inner` go to the caller.

    Raises:
        BadOption: `seconds` is invalid or 0, or `updates` is below 1.

    Example:
        >>> class Printing:
        ...     def load(self):
        ...         return []
        ...
        ...     def update(self, sub_id, bookmarks):
        ...         print(sub_id, bookmarks[0].sequence)
        ...
        ...     def purge(self, sub_id=None):
        ...         pass
        ...
        ...     def close(self):
        ...         pass
        >>> adapter = tt.ConflatingRecoveryPointAdapter(Printing(), seconds="10s")
        >>> for sequence in (1, 2, 3):
        ...     adapter.update("orders", [tt.Bookmark(7, sequence)])
        >>> adapter.flush()
        orders 3
        >>> store = tt.MemoryBookmarkStore(adapter)
        >>> store.close()
    """

    def __init__(
        self,
        inner: RecoveryPointAdapter,
        seconds: float | str = _SECONDS,
        updates: int = _UPDATES,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self._seconds = min(parse_interval(seconds), threading.TIMEOUT_MAX / 2)
        if self._seconds <= 0 or updates < 1:
            raise BadOption(
                f"Invalid seconds={seconds!r} or updates={updates!r}. Use seconds and updates above 0."
            )
        self.inner = inner
        """The other adapter."""
        self._updates = updates
        self._on_error = on_error
        self.error: Exception | None = None
        """Last exception of `inner.update`, or None."""
        self._changed = threading.Condition()
        self._passing = threading.Lock()
        self._moved: dict[str, Read] = {}
        self._count = 0
        self._closed = self._forked = False
        self._thread: threading.Thread | None = None
        forks.register(self, type(self)._refuse_in_child)

    def load(self) -> Iterable[tuple[str, Sequence[Bookmark]]]:
        """Return the recovery points of `inner`."""
        return self.inner.load()

    def update(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        """Keep `bookmarks` for the next update of the wrapped adapter. Raises `Closed`."""
        self.offer(sub_id, lambda _: bookmarks)

    def offer(self, sub_id: str, read: Read) -> None:
        """Record that a subscription has a new recovery point, without computing the point yet.

        `read(sub_id)` returns the bookmarks of the point. The adapter calls `read` right before
        `inner.update`, on the same thread, and only for the newest `offer` of a subscription. Stores call
        this method instead of `update` if an adapter has it. Raises `Closed`.
        """
        with self._changed:
            if self._closed:
                raise Closed("Cannot use the recovery point adapter: it is closed. Create a new one.")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="recovery-points", daemon=True)
                self._thread.start()
            self._moved[sub_id] = read
            self._count += 1
            if self._count == 1 or self._count == self._updates:
                self._changed.notify_all()

    def flush(self) -> None:
        """Pass all new points to `inner` now. Exceptions of `inner` go to `on_error`, not to the caller."""
        with self._passing:
            with self._changed:
                moved, self._moved = self._moved, {}
                self._count = 0
            for sub_id, read in moved.items():
                try:
                    self.inner.update(sub_id, read(sub_id))
                except Exception as error:  # noqa: BLE001 - code of the application may raise anything
                    self.error = error
                    if self._on_error is not None:
                        self._on_error(error)

    def purge(self, sub_id: str | None = None) -> None:
        """Drop pending points and call `purge` of `inner`: for one subscription, or for all (None)."""
        with self._passing:
            with self._changed:
                if sub_id is None:
                    self._moved.clear()
                else:
                    self._moved.pop(sub_id, None)
            self.inner.purge(sub_id)

    def close(self) -> None:
        """Pass on all new points, and close `inner`."""
        if self._forked:
            return
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        self.flush()
        self.inner.close()

    def _refuse_in_child(self) -> None:
        """Disable the adapter in a forked child, which does not have its thread."""
        self._forked = True
        refusing: Any = forks.ForkedLock()
        self._changed = self._passing = refusing

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._count or self._closed)
                if self._closed:
                    return
                self._changed.wait_for(
                    lambda: self._count >= self._updates or self._closed, timeout=self._seconds
                )
            self.flush()
