"""Owns the threads on which things are done one after the other, off the event loop.

Must never know what is done, or do two things of one lane at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Worker(Protocol[T_contra]):
    """Where things are done in the order in which they are submitted."""

    def submit(self, item: T_contra) -> None:
        """Queue one."""

    def stop(self) -> None:
        """Finish what is queued; nothing is submitted afterwards."""


MakeLane = Callable[[Callable[[Any], None], str], Worker[Any]]
"""Makes a lane that calls a function, which must not raise, with each item; the name is for people."""


class ThreadWorker(Generic[T]):
    """A lane with a thread of its own."""

    def __init__(self, work: Callable[[T], None], name: str) -> None:
        self._work = work
        self._items: SimpleQueue[tuple[T] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: T) -> None:
        """Queue one."""
        self._items.put((item,))

    def stop(self) -> None:
        """Finish what is queued and end the thread."""
        self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            self._work(item[0])
