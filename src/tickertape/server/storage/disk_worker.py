"""Disk worker: threads that carry out the journal's jobs, each kind in order, one at a time.

An error is the answer to its job; the group commit decides about it.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable

from tickertape.base.histogram import Histogram
from tickertape.journal.commit.jobs import (
    DiskJobExecutor,
    JournalJob,
    PrepareSegment,
    RetireSegments,
    SyncSegment,
    WriteCommit,
    WriteQueues,
)
from tickertape.server.events import event
from tickertape.server.limits import sync_slow_seconds
from tickertape.server.storage.worker_thread import Worker, Workers

Answer = Callable[[JournalJob, OSError | None, int], None]


class DiskWorker:
    """One thread for commits, one for preparing segments, and one for removing old segments and writing
    checkpoints of queues: neither reserving space, nor freeing it, nor a checkpoint ever delays a commit.

    `answer(job, error, salt)` is called on the thread: it must hand over to the event loop."""

    def __init__(
        self,
        executor: DiskJobExecutor,
        answer: Answer,
        workers: Workers = Workers(),  # noqa: B008 - a constant
    ) -> None:
        self.syncs = Histogram()
        """Seconds of each synced write, and of each sync by itself."""
        self._executor = executor
        self._answer = answer
        self._commits: Worker[JournalJob] = workers.make(self._do, "journal-commit")
        self._prepares: Worker[JournalJob] = workers.make(self._do, "journal-prepare")
        self._removals: Worker[JournalJob] = workers.make(self._do, "journal-remove")

    def submit(self, job: JournalJob) -> None:
        """Queue a job."""
        if isinstance(job, PrepareSegment):
            self._prepares.submit(job)
        elif isinstance(job, RetireSegments | WriteQueues):
            self._removals.submit(job)
        else:
            self._commits.submit(job)

    def run_inline(self, job: JournalJob) -> OSError | None:
        """Carry out a job on the calling thread (sync policy `never`: a write into the page cache)."""
        try:
            self._executor.run(job)
        except OSError as error:
            return error
        return None

    def stop(self) -> None:
        """Finish queued jobs and end the threads."""
        for worker in (self._commits, self._prepares, self._removals):
            worker.stop()

    def _do(self, job: JournalJob) -> None:
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
