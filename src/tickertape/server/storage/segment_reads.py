"""Segment reads: directly from the page cache, or on a small thread pool.

Invariants:
- The event loop never waits for a disk.
- No file is closed while a thread reads it.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol

from tickertape.base.interfaces import Buffer, Disk
from tickertape.journal.format.segment import segment_path
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.server.storage.worker_thread import Workers

_THREADS: Final = 2
_OPEN_FILES_MAX: Final = 128

Answer = Callable[[int, Buffer | OSError], None]


class CachingDisk(Disk, Protocol):
    """A disk that can read from the page cache without blocking."""

    def close_all(self) -> None:
        """Close all files and release the lock."""

    def read_nowait(self, handle: int, offset: int, size: int) -> Buffer | None:
        """Read as `read`, or return None if that would block."""


class SegmentReads:
    """Read-only files of the segments and the threads that read them.

    `answer(token, data or error)` may be called on a pool thread and must pass the answer to the event
    loop."""

    def __init__(
        self,
        disk: CachingDisk,
        answer: Answer,
        workers: Workers = Workers(),  # noqa: B008 - a constant
    ) -> None:
        self._disk = disk
        self._answer = answer
        self._pool = workers.pool or ThreadPoolExecutor(_THREADS, thread_name_prefix="journal-read")
        self._handles: OrderedDict[int, int] = OrderedDict()
        self._busy: dict[int, int] = {}
        self._gone: set[int] = set()
        """Removed segments that are still open."""

    def try_now(self, request: ReadRequest) -> Buffer | None:
        """Return the bytes if they are in the page cache, else None. Raises `OSError`."""
        handle = self._handle(request.segment)
        if not request.pieces:
            return self._disk.read_nowait(handle, request.offset, request.size)
        found = []
        for offset, size in request.pieces:
            data = self._disk.read_nowait(handle, offset, size)
            if data is None:
                return None
            found.append(data)
        return b"".join(found)

    def submit(self, token: int, request: ReadRequest) -> None:
        """Read on a thread."""
        handle = self._handle(request.segment)
        self._busy[request.segment] = self._busy.get(request.segment, 0) + 1
        future = self._pool.submit(request.read, partial(self._disk.read, handle))
        future.add_done_callback(partial(self._done, token))

    def finished(self, request: ReadRequest) -> None:
        """Release a submitted request, after the event loop has its answer."""
        left = self._busy.get(request.segment, 1) - 1
        if left:
            self._busy[request.segment] = left
        else:
            self._busy.pop(request.segment, None)
            self._close_gone()

    def removed(self, numbers: Iterable[int]) -> None:
        """Close the files of removed segments when no read uses them, to free their disk space."""
        self._gone.update(number for number in numbers if number in self._handles)
        self._close_gone()

    def _close_gone(self) -> None:
        for number in [number for number in self._gone if number not in self._busy]:
            self._gone.remove(number)
            handle = self._handles.pop(number, None)
            if handle is not None:
                self._disk.close(handle)

    def stop(self) -> None:
        """Wait for reads in progress and close the files."""
        self._pool.shutdown(wait=True)
        for handle in self._handles.values():
            self._disk.close(handle)
        self._handles.clear()

    def _done(self, token: int, future: Future[Buffer]) -> None:
        error = future.exception()
        if error is None:
            self._answer(token, future.result())
        elif isinstance(error, OSError):
            self._answer(token, error)
        else:  # without an answer the reader would wait for ever
            self._answer(token, OSError(errno.EIO, f"Internal error: {error!r}"))

    def _handle(self, number: int) -> int:
        handle = self._handles.get(number)
        if handle is None:
            handle = self._handles[number] = self._disk.open(segment_path(number), write=False)
            idle = next((n for n in self._handles if n not in self._busy and n != number), None)
            if len(self._handles) > _OPEN_FILES_MAX and idle is not None:
                self._disk.close(self._handles.pop(idle))
        else:
            self._handles.move_to_end(number)
        return handle
