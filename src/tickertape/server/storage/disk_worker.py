"""Disk worker: executes the journal's jobs, in order for each kind of job.

Small commits are written on the event loop and synced by the kernel in the background, where the disk can do
both without a wait. Threads run all other jobs. An error is returned as the answer to its job, and the group
commit handles it.

Invariant: a job that a thread runs after a refused background sync is run as a whole, because an
acknowledgement needs a sync that succeeded after the write.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Final

from tickertape.base.histogram import Histogram
from tickertape.base.interfaces import SyncStarter
from tickertape.journal.commit.jobs import (
    DiskJobExecutor,
    JournalJob,
    PrepareSegment,
    PublishState,
    RetireSegments,
    SyncSegment,
    WriteCommit,
    WriteQueues,
    WriteState,
)
from tickertape.server.events import event
from tickertape.server.limits import loop_commit_bytes_max, sync_slow_seconds
from tickertape.server.storage.checkpoint_pace import CheckpointPace
from tickertape.server.storage.loop_syncs import log_absent
from tickertape.server.storage.worker_thread import Worker, Workers

Answer = Callable[[JournalJob, OSError | None, int], None]
Post = Callable[..., object]

_ABSENT: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
"""Errors of systems without background syncs, or without writes that cannot wait. Nothing was lost."""

_ASIDE: Final = (PrepareSegment, RetireSegments, WriteQueues, WriteState, PublishState)
"""Jobs that run beside commits, on threads of their own."""


class DiskWorker:
    """Executor of journal jobs: the event loop or a thread for commits, threads for other jobs.

    Separate threads keep preallocation, removal and checkpoints from delaying commits.
    `answer(job, error, salt)` is called on the event loop. `post(function, *arguments)` schedules a call on
    the event loop from any thread."""

    def __init__(
        self,
        executor: DiskJobExecutor,
        answer: Answer,
        post: Post,
        workers: Workers = Workers(),  # noqa: B008 - a constant
        syncs: SyncStarter | None = None,
    ) -> None:
        self.syncs = Histogram()
        """Durations of synced writes and separate syncs, in seconds."""
        self._executor = executor
        self._answer = answer
        self._post = post
        self._background = syncs
        self._unused: SyncStarter | None = None
        """Refused background syncs. Their release takes 30 ms or more, so `stop` does it."""
        self._commits: Worker[JournalJob] = workers.make(self._do, "journal-commit")
        self._prepares: Worker[JournalJob] = workers.make(self._do, "journal-prepare")
        self._removals: Worker[JournalJob] = workers.make(self._do, "journal-remove")
        self._states: Worker[JournalJob] = workers.make(self._do, "journal-checkpoint")
        self._pace = CheckpointPace()
        self._stopping = Event()

    def submit(self, job: JournalJob) -> None:
        """Start a job. At most one job that writes the active segment is in progress at a time."""
        if isinstance(job, PrepareSegment):
            self._prepares.submit(job)
        elif isinstance(job, RetireSegments | WriteQueues):
            self._removals.submit(job)
        elif isinstance(job, WriteState | PublishState):
            self._states.submit(job)
        elif isinstance(job, WriteCommit | SyncSegment) and (syncs := self._background) is not None:
            if not self._begin(job, syncs):
                self._commits.submit(job)
        else:
            self._pace.commit_began(time.monotonic())
            self._commits.submit(job)

    def run_inline(self, job: JournalJob) -> OSError | None:
        """Execute a job on the calling thread (sync policy `never`: a write into the page cache)."""
        try:
            self._executor.run(job)
        except OSError as error:
            return error
        return None

    def stop(self) -> None:
        """Finish the jobs in progress and end the threads."""
        for syncs in (self._background, self._unused):
            if syncs is not None:
                syncs.stop()
        self._background = self._unused = None
        self._stopping.set()
        for worker in (self._commits, self._prepares, self._removals, self._states):
            worker.stop()

    # -- on the event loop ----------------------------------------------------------------------------

    def _begin(self, job: WriteCommit | SyncSegment, syncs: SyncStarter) -> bool:
        """Write a commit now and start its sync. Return False if a thread must run the job."""
        began = time.perf_counter()
        self._pace.commit_began(time.monotonic())
        try:
            if isinstance(job, WriteCommit):
                if job.bytes > loop_commit_bytes_max or not self._executor.write_nowait(job):
                    return False
                if not job.sync:
                    self._pace.commit_done()
                    self._post(self._answer, job, None, 0)
                    return True
        except OSError as error:
            if error.errno in _ABSENT:
                self._give_up(error)
                return False
            self._pace.commit_done()
            self._post(self._answer, job, error, 0)
            return True
        try:
            self._executor.begin_sync(job, syncs, partial(self._synced, job, began))
        except OSError as error:
            self._give_up(error)
            return False
        return True

    def _synced(self, job: WriteCommit | SyncSegment, began: float, error: OSError | None) -> None:
        if error is not None and error.errno in _ABSENT:
            self._give_up(error)
            self._commits.submit(job)
            return
        self._pace.commit_done()
        self._measure(began)
        self._answer(job, error, 0)

    def _give_up(self, error: OSError) -> None:
        """Use the thread from now on."""
        log_absent(error)
        if self._background is not None:
            self._unused, self._background = self._background, None

    # -- on the threads -------------------------------------------------------------------------------

    def _do(self, job: JournalJob) -> None:
        salt, error = 0, None
        if isinstance(job, WriteState):
            self._await_turn(job.bytes)
        began = time.perf_counter()
        try:
            salt = self._executor.run(job)
        except OSError as failed:
            error = failed
        except Exception as defect:  # noqa: BLE001 - without an answer the journal would wait for ever
            error = OSError(errno.EIO, f"Internal error: {defect!r}")
        if isinstance(job, SyncSegment) or (isinstance(job, WriteCommit) and job.sync):
            self._measure(began)
        if not isinstance(job, _ASIDE):
            self._pace.commit_done()
        self._post(self._answer, job, error, salt)

    def _await_turn(self, nbytes: int) -> None:
        """Wait until the pace allows the next piece of a checkpoint, or until the stop."""
        while seconds := self._pace.wait_seconds(time.monotonic()):
            if self._stopping.wait(seconds):
                return
        self._pace.written(nbytes, time.monotonic())

    def _measure(self, began: float) -> None:
        seconds = time.perf_counter() - began
        self.syncs.add(seconds)
        if seconds > sync_slow_seconds:
            event("sync_slow", logging.WARNING, seconds=seconds)
