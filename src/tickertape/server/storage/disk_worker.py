"""Disk worker: threads that execute the journal's jobs, in order for each kind of job.

An error is returned as the answer to its job. The group commit handles it.
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
    """Threads for journal jobs: one for commits, one for preallocation, one for removals and checkpoints.

    Separate threads keep preallocation, removal and queue checkpoints from delaying commits.
    `answer(job, error, salt)` is called on a worker thread and must pass the answer to the event loop."""

    def __init__(
        self,
        executor: DiskJobExecutor,
        answer: Answer,
        workers: Workers = Workers(),  # noqa: B008 - a constant
    ) -> None:
        self.syncs = Histogram()
        """Durations of synced writes and separate syncs, in seconds."""
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
        """Execute a job on the calling thread (sync policy `never`: a write into the page cache)."""
        try:
            self._executor.run(job)
        except OSError as error:
            return error
        return None

    def stop(self) -> None:
        """Finish the queued jobs and end the threads."""
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
            error = OSError(errno.EIO, f"Internal error: {defect!r}")
        if isinstance(job, SyncSegment) or (isinstance(job, WriteCommit) and job.sync):
            seconds = time.perf_counter() - began
            self.syncs.add(seconds)
            if seconds > sync_slow_seconds:
                event("sync_slow", logging.WARNING, seconds=seconds)
        self._answer(job, error, salt)
