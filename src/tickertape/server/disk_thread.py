"""Owns the thread that carries out the journal's jobs, in order, one at a time.

Must never decide anything: an error goes back to the journal's machine, which latches.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from tickertape.base.histogram import Histogram
from tickertape.base.limits import sync_slow_seconds
from tickertape.journal.jobs import Executor, Job, PrepareSegment, RetireSegments, SyncSegment, WriteCommit
from tickertape.server.events import event

Answer = Callable[[Job, OSError | None, int], None]


class DiskThread:
    """One thread for commits, one for preparing segments, one for removing old ones, so that neither
    reserving space nor giving it back ever delays a commit.

    `answer(job, error, salt)` is called on the thread: it must hand over to the event loop."""

    def __init__(self, executor: Executor, answer: Answer) -> None:
        self.syncs = Histogram()
        """Seconds of each commit that was written and synced, and of each sync by itself."""
        self._executor = executor
        self._answer = answer
        self._commits: SimpleQueue[Job | None] = SimpleQueue()
        self._prepares: SimpleQueue[Job | None] = SimpleQueue()
        self._removals: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(queue,), name=name, daemon=True)
            for queue, name in (
                (self._commits, "journal-commit"),
                (self._prepares, "journal-prepare"),
                (self._removals, "journal-remove"),
            )
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        if isinstance(job, PrepareSegment):
            self._prepares.put(job)
        elif isinstance(job, RetireSegments):
            self._removals.put(job)
        else:
            self._commits.put(job)

    def run_inline(self, job: Job) -> OSError | None:
        """Carry out a job on the calling thread (sync policy `never`: a write into the page cache)."""
        try:
            self._executor.run(job)
        except OSError as error:
            return error
        return None

    def stop(self) -> None:
        """Finish what is queued and end the threads."""
        for queue in (self._commits, self._prepares, self._removals):
            queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, queue: SimpleQueue[Job | None]) -> None:
        while (job := queue.get()) is not None:
            self._do(job)

    def _do(self, job: Job) -> None:
        salt, error = 0, None
        began = time.perf_counter()
        try:
            salt = self._executor.run(job)
        except OSError as failed:
            error = failed
        except Exception as defect:  # noqa: BLE001 - without an answer the journal would wait for ever
            error = OSError(errno.EIO, f"internal error: {defect!r}")
        if isinstance(job, SyncSegment) or (isinstance(job, WriteCommit) and job.sync):
            seconds = time.perf_counter() - began
            self.syncs.add(seconds)
            if seconds > sync_slow_seconds:
                event("sync_slow", logging.WARNING, seconds=seconds)
        self._answer(job, error, salt)
