"""Staging files: threads that write, prepare, drop and read the files of staged transaction parts.

Invariant: no two things are done to one file at once. Files are written, prepared and dropped in order on one
thread; whole files are read and checked on another.
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
    """The files below one data directory. `answer` is called on a thread: it hands over to the event loop."""

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
        """For writing, and for opening; made with the first job."""
        self._stopped = False

    def submit(self, job: StagingJob) -> None:
        """Queue a job. A file is opened only once prepared, and dropped only while no job opens it."""
        if self._stopped:
            return  # what is left of unprepared parts goes at the next start
        if self._threads is None:
            self._threads = (
                self._workers.make(self._do, "staging-write"),
                self._workers.make(self._do, "staging-open"),
            )
        self._threads[isinstance(job.task, StageOpen)].submit(job)

    def stop(self) -> None:
        """Finish queued jobs, end the threads and close the files."""
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
            result = kind(f"what is staged for a transaction could not be kept: {error}")
        except StagedFileDamaged as error:
            result = StagingFailed(f"what was staged for a transaction is damaged: {error}")
        except Exception as defect:  # noqa: BLE001 - every job needs an answer
            result = StagingFailed(f"internal error: {defect!r}")
        self._answer(job.token, result)
