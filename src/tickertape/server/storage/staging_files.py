"""Staging files: threads that write, prepare, drop and read the files of staged transaction parts.

Invariant: at most one operation runs on a file. One thread writes, prepares and drops files in order. Another
thread reads and verifies complete files.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from tickertape.base.errors import StagingFailed, StagingFull, TickertapeError
from tickertape.base.interfaces import Disk
from tickertape.engine.runtime.effects import StagingJob
from tickertape.journal.format.staging_file import StagedFileDamaged, StagedFiles, StageOpen
from tickertape.server.storage.worker_thread import Worker, Workers

Result = list[memoryview] | TickertapeError
Answer = Callable[[int, Result], None]

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class StagingFiles:
    """The staging files of one data directory.

    `answer` is called on a worker thread and must pass the answer to the event loop."""

    def __init__(
        self,
        disk: Disk,
        answer: Answer,
        workers: Workers = Workers(),  # noqa: B008 - a constant
    ) -> None:
        self._staging = StagedFiles(disk)
        self._answer = answer
        self._workers = workers
        self._threads: tuple[Worker[StagingJob], Worker[StagingJob]] | None = None
        """One worker for writes, one for reads. Created with the first job."""
        self._stopped = False

    def submit(self, job: StagingJob) -> None:
        """Queue a job. Open a file only after it is prepared, and drop it only while no job opens it."""
        if self._stopped:
            return  # the next start deletes files of unprepared parts
        if self._threads is None:
            self._threads = (
                self._workers.make(self._do, "staging-write"),
                self._workers.make(self._do, "staging-open"),
            )
        self._threads[isinstance(job.task, StageOpen)].submit(job)

    def stop(self) -> None:
        """Finish the queued jobs, end the threads and close the files."""
        self._stopped = True
        for thread in self._threads or ():
            thread.stop()
        self._staging.close()

    def _do(self, job: StagingJob) -> None:
        result: Result
        try:
            result = self._staging.run(job.task)
        except OSError as error:
            kind = StagingFull if error.errno in _NO_ROOM else StagingFailed
            result = kind(f"Cannot stage a transaction part: {error}. Stage the transaction again.")
        except StagedFileDamaged as error:
            result = StagingFailed(
                f"Cannot read a staged transaction part: corrupt file: {error}. Stage the transaction again."
            )
        except Exception as defect:  # noqa: BLE001 - every job needs an answer
            result = StagingFailed(
                f"Cannot stage a transaction: internal error {defect!r}. Report this defect."
            )
        self._answer(job.token, result)
