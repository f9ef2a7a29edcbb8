"""Disk worker: measured and slow syncs."""

from __future__ import annotations

import io
from queue import SimpleQueue
from threading import Event
from typing import cast

import pytest

from tickertape.journal.commit.jobs import (
    DiskJobExecutor,
    JournalJob,
    PrepareSegment,
    SyncSegment,
    WriteCommit,
    WriteQueues,
)
from tickertape.server.events import logging_to
from tickertape.server.storage import disk_worker as disk_thread
from tickertape.server.storage.disk_worker import DiskWorker


class IdleExecutor:
    """Executor that does nothing."""

    def run(self, job: JournalJob) -> int:
        return 0


def syncs_of(*jobs: JournalJob) -> int:
    """Return the number of jobs measured as syncs."""
    answers: SimpleQueue[JournalJob] = SimpleQueue()
    disk = DiskWorker(cast("DiskJobExecutor", IdleExecutor()), lambda job, _error, _salt: answers.put(job))
    for job in jobs:
        disk.submit(job)
    for _ in jobs:
        answers.get(timeout=10)
    disk.stop()
    return disk.syncs.count


WRITE = WriteCommit(segment=1, offset=0, buffers=[], sync=False, number=1)
SYNCED = WriteCommit(segment=1, offset=0, buffers=[], sync=True, number=1)
SYNC = SyncSegment(segment=1, number=1)


def test_disk_worker_measures_only_syncs() -> None:
    assert syncs_of(WRITE, SYNCED, PrepareSegment(number=2, bytes=1), SYNC, SYNCED) == 3


def test_slow_sync_is_logged_as_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with logging_to(stream, "text", "info"):
        syncs_of(SYNCED)
        monkeypatch.setattr(disk_thread, "sync_slow_seconds", -1.0)
        syncs_of(WRITE, SYNCED)
    (line,) = [line for line in stream.getvalue().splitlines() if " sync_slow " in line]
    assert " WARNING sync_slow seconds=" in line


def test_commit_while_a_checkpoint_is_encoded_is_not_delayed() -> None:
    committed = Event()
    in_time: list[bool] = []

    class Executing:
        def run(self, job: JournalJob) -> int:
            if isinstance(job, WriteQueues):
                job.encode()
            else:
                committed.set()
            return 0

    def encode() -> bytes:
        in_time.append(committed.wait(timeout=10))
        return b""

    disk = DiskWorker(cast("DiskJobExecutor", Executing()), lambda _job, _error, _salt: None)
    disk.submit(WriteQueues(journal_id=bytes(16), encode=encode))
    disk.submit(SYNCED)
    disk.stop()
    assert in_time == [True]
