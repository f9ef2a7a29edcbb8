"""Workers: threads that carry out one thing after the other, off the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Worker(Protocol[T_contra]):
    """Carries out items one at a time, in the order in which they are submitted."""

    def submit(self, item: T_contra) -> None:
        """Queue an item."""

    def stop(self) -> None:
        """Finish the queued items; nothing is submitted afterwards."""


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
    """Makers of workers and pools that work beside an event loop."""

    make: Callable[[Callable[[Any], None], str], Worker[Any]] = ThreadWorker
    """Makes a worker that calls a function, which must not raise, with each item; the name is for people."""
    pool: Executor | None = None
    """For reads, any number at once; None: threads of their own."""
