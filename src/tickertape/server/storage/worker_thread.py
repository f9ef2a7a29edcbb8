"""Worker threads that process queued items one at a time, off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tickertape.base.interfaces import Disk, SyncStarter
from tickertape.server.storage.loop_syncs import loop_syncs

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Worker(Protocol[T_contra]):
    """Worker that processes items one at a time, in the order of submission."""

    def submit(self, item: T_contra) -> None:
        """Queue an item."""

    def stop(self) -> None:
        """Finish the queued items. Submit nothing afterwards."""


class ThreadWorker(Generic[T]):
    """A worker with a thread of its own."""

    def __init__(self, work: Callable[[T], None], name: str) -> None:
        self._work = work
        self._items: SimpleQueue[tuple[T] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: T) -> None:
        """Queue an item."""
        self._items.put((item,))

    def stop(self) -> None:
        """Finish the queued items and end the thread."""
        self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            self._work(item[0])


class Workers(NamedTuple):
    """Factories of the workers and pools for blocking operations."""

    make: Callable[[Callable[[Any], None], str], Worker[Any]] = ThreadWorker
    """Factory of a worker. Arguments: a function for each item, which must not raise, and a thread name."""
    pool: Executor | None = None
    """Pool for concurrent reads. None: a pool of their own."""
    syncs: Callable[[asyncio.AbstractEventLoop, Disk], SyncStarter | None] = loop_syncs
    """Factory of the background syncs of a disk. It returns None where a thread must sync."""
