"""Conflating adapter: passes on only the last of many moves of a recovery point.

Invariant: the other adapter gets no point older than an earlier one, and is called by one thread at a time.
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
    """Passes on to `inner` only the newest recovery point of each subscription, from a thread of its own.

    That is `seconds` (default 1; seconds or text such as `"500ms"`) after the first move that was not passed
    on, or after `updates` of them (default 1000), whichever comes first; `flush` and `close` do it at once.
    What is not passed on yet is lost with the process: messages then come again. Whatever `inner` raises goes
    to `on_error`; it is asked again with the next point. Raises `BadOption`.
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
            raise BadOption(f"seconds={seconds!r}, updates={updates!r}: both are above 0")
        self.inner = inner
        self._updates = updates
        self._on_error = on_error
        self.error: Exception | None = None
        """What `inner` raised last."""
        self._changed = threading.Condition()
        self._passing = threading.Lock()
        self._moved: dict[str, Read] = {}
        self._count = 0
        self._closed = self._forked = False
        self._thread: threading.Thread | None = None
        forks.register(self)

    def load(self) -> Iterable[tuple[str, Sequence[Bookmark]]]:
        """What `inner` has."""
        return self.inner.load()

    def update(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        """Pass `bookmarks` on later, unless newer ones come."""
        self.offer(sub_id, lambda _: bookmarks)

    def offer(self, sub_id: str, read: Read) -> None:
        """The point has moved; `read` tells it when it is passed on. Stores prefer this to `update`."""
        with self._changed:
            if self._closed:
                raise Closed("this recovery point adapter is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="recovery-points", daemon=True)
                self._thread.start()
            self._moved[sub_id] = read
            self._count += 1
            if self._count == 1 or self._count == self._updates:
                self._changed.notify_all()

    def flush(self) -> None:
        """Pass on what has moved."""
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
        """Forget a subscription, or all, here and there."""
        with self._passing:
            with self._changed:
                if sub_id is None:
                    self._moved.clear()
                else:
                    self._moved.pop(sub_id, None)
            self.inner.purge(sub_id)

    def close(self) -> None:
        """Pass on what has moved, and close `inner`."""
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

    def forked(self) -> None:
        """Internal: this is a forked child, which has neither the thread nor the newest points."""
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
