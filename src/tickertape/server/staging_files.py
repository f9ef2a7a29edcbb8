"""Owns carrying out, on threads, what the engine wants done with the files of what is staged.

Must never block the event loop, or do two things to one file at once: writing, preparing and dropping are
done in order on one thread, whole files are read and checked on another.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from tickertape.base.errors import StagingFailed, StagingFull, TickertapeError
from tickertape.base.ports import Disk
from tickertape.engine.effects import StagingJob
from tickertape.journal.staging import Damaged, StageOpen, Staging

Result = list[memoryview] | TickertapeError
Answer = Callable[[int, Result], None]

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class StagingFiles:
    """The files below one data directory. `answer` is called on a thread: it hands over to the event loop."""

    def __init__(self, disk: Disk, answer: Answer) -> None:
        self._staging = Staging(disk)
        self._answer = answer
        self._writes: SimpleQueue[StagingJob | None] = SimpleQueue()
        self._opens: SimpleQueue[StagingJob | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def submit(self, job: StagingJob) -> None:
        """Queue a job. A file is opened only after it was prepared, and dropped when nobody opens it."""
        if self._stopped:
            return  # what is left of unprepared parts goes at the next start
        if not self._threads:
            for queue, name in ((self._writes, "staging-write"), (self._opens, "staging-open")):
                thread = threading.Thread(target=self._run, args=(queue,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        (self._opens if isinstance(job.task, StageOpen) else self._writes).put(job)

    def stop(self) -> None:
        """Finish what is queued, end the threads and close the files."""
        self._stopped = True
        for queue in (self._writes, self._opens):
            queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._staging.close()

    def _run(self, queue: SimpleQueue[StagingJob | None]) -> None:
        while (job := queue.get()) is not None:
            result: Result
            try:
                result = self._staging.run(job.task)
            except OSError as error:
                kind = StagingFull if error.errno in _NO_ROOM else StagingFailed
                result = kind(f"what is staged for a transaction could not be kept: {error}")
            except Damaged as error:
                result = StagingFailed(f"what was staged for a transaction is damaged: {error}")
            except Exception as defect:  # noqa: BLE001 - without an answer somebody would wait for ever
                result = StagingFailed(f"internal error: {defect!r}")
            self._answer(job.token, result)
