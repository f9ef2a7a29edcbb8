"""The disk worker: commits on the event loop with background syncs, and jobs on threads."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from random import Random
from threading import Event, current_thread
from typing import cast

import pytest

from tickertape.base.interfaces import SyncDone
from tickertape.journal.commit.jobs import (
    DiskJobExecutor,
    JournalJob,
    PrepareSegment,
    SyncSegment,
    WriteCommit,
    WriteQueues,
    WriteState,
)
from tickertape.journal.format.segment import segment_path
from tickertape.server.events import logging_to
from tickertape.server.storage import disk_worker
from tickertape.server.storage.disk_worker import DiskWorker
from tickertape.testing.disk import StrictDisk

ANSWER_SECONDS_MAX = 10
WRITE = WriteCommit(segment=1, offset=0, buffers=[b"a"], bytes=1, sync=False, number=1)
SYNCED = WriteCommit(segment=1, offset=1, buffers=[b"b"], bytes=1, sync=True, number=2)
LARGE = WriteCommit(segment=1, offset=0, buffers=[bytes(200_000)], bytes=200_000, sync=True, number=1)
SYNC = SyncSegment(segment=1, number=2)
Answered = tuple[JournalJob, "OSError | None", str]


def run_at_once(function: Callable[..., object], *arguments: object) -> None:
    """Call a function on the thread that asks for it, as no event loop runs."""
    function(*arguments)


class IdleExecutor:
    """Executor that does nothing."""

    def run(self, job: JournalJob) -> int:
        return 0


class HeldSyncs:
    """Background syncs that complete when the test says so."""

    def __init__(self, refusal: int | None = None) -> None:
        self.held: list[SyncDone] = []
        self.stopped = False
        self._refusal = refusal

    def begin(self, handle: int, done: SyncDone) -> None:
        if self._refusal is not None:
            raise OSError(self._refusal, "refused")
        self.held.append(done)

    def stop(self) -> None:
        self.stopped = True


class WaitingDisk(StrictDisk):
    """A disk that accepts every write without a wait, or none."""

    waits = False

    def write_nowait(self, handle: int, offset: int, buffers: object) -> bool:
        if self.waits:
            return False
        self.write(handle, offset, cast("list[bytes]", buffers))
        return True


class Bench:
    """A disk worker on a strict disk, with the answers and the threads that gave them."""

    def __init__(self, refusal: int | None = None) -> None:
        self.disk = WaitingDisk(Random(1))
        self.disk.make_directory("journal")
        self.disk.open(segment_path(1), create=True)
        self.syncs = HeldSyncs(refusal)
        self.answers: SimpleQueue[Answered] = SimpleQueue()
        executor = DiskJobExecutor(self.disk, lambda: 1)
        self.worker = DiskWorker(executor, self._answer, run_at_once, syncs=self.syncs)

    def _answer(self, job: JournalJob, error: OSError | None, _salt: int) -> None:
        self.answers.put((job, error, current_thread().name))

    def answer(self) -> Answered:
        return self.answers.get(timeout=ANSWER_SECONDS_MAX)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.worker.stop()


# -- background syncs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [SYNCED, SYNC])
def test_small_commit_is_answered_after_the_background_sync(bench: Bench, job: JournalJob) -> None:
    bench.worker.submit(job)
    assert bench.answers.empty(), "the sync is in progress"
    assert bench.disk.calls["sync"] == 0
    assert bench.disk.calls["write"] == isinstance(job, WriteCommit)
    assert bench.worker.syncs.count == 0
    bench.syncs.held.pop()(None)
    assert bench.answer() == (job, None, current_thread().name)
    assert bench.worker.syncs.count == 1


def test_commit_without_sync_is_answered_after_the_write(bench: Bench) -> None:
    bench.worker.submit(WRITE)
    assert bench.answer() == (WRITE, None, current_thread().name)
    assert bench.disk.calls["write"] == 1
    assert not bench.syncs.held


def test_failed_background_sync_is_the_answer_of_the_job(bench: Bench) -> None:
    failed = OSError(errno.EIO, "bad disk")
    bench.worker.submit(SYNCED)
    bench.syncs.held.pop()(failed)
    assert bench.answer()[:2] == (SYNCED, failed)
    assert not bench.syncs.stopped, "a failed disk is not an absent feature"


def test_failed_write_on_the_event_loop_is_the_answer_of_the_job(bench: Bench) -> None:
    bench.disk.fail("write", 1, errno.ENOSPC)
    bench.worker.submit(SYNCED)
    job, error, _ = bench.answer()
    assert job is SYNCED
    assert error is not None
    assert error.errno == errno.ENOSPC
    assert not bench.syncs.held, "nothing is synced after a failed write"


@pytest.mark.parametrize("refusal", [errno.ENOSYS, errno.EPERM, errno.EAGAIN])
def test_thread_runs_the_jobs_when_the_system_refuses_background_syncs(refusal: int) -> None:
    bench = Bench(refusal)
    stream = io.StringIO()
    with logging_to(stream, "text", "info"):
        for job in (SYNCED, SYNC, SYNCED):
            bench.worker.submit(job)
            assert bench.answer() == (job, None, "journal-commit")
    assert bench.disk.calls["sync"] == 3
    on_the_loop = bench.syncs.stopped
    bench.worker.stop()
    assert (on_the_loop, bench.syncs.stopped) == (False, True), (
        "a stop takes 30 ms, so the loop must not wait"
    )
    assert stream.getvalue().count(" sync_thread ") == 1


@pytest.mark.parametrize("absent", [errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_thread_repeats_a_commit_if_background_syncs_are_not_supported(bench: Bench, absent: int) -> None:
    bench.worker.submit(SYNCED)
    bench.syncs.held.pop()(OSError(absent, "absent"))
    assert bench.answer() == (SYNCED, None, "journal-commit")
    assert (bench.disk.calls["write"], bench.disk.calls["sync"]) == (2, 1)
    bench.worker.submit(SYNCED)
    assert bench.answer() == (SYNCED, None, "journal-commit")


@pytest.mark.parametrize("error", [None, errno.EIO])
def test_thread_writes_and_syncs_a_large_commit(bench: Bench, error: int | None) -> None:
    if error is not None:
        bench.disk.fail("sync", 1, error)
    bench.worker.submit(LARGE)
    job, failed, thread = bench.answer()
    assert (job, thread) == (LARGE, "journal-commit")
    assert (failed.errno if failed is not None else None) == error
    assert bench.disk.calls["sync"] == 1
    assert not bench.syncs.held


def test_thread_writes_a_commit_for_which_the_disk_might_wait(bench: Bench) -> None:
    bench.disk.waits = True
    bench.worker.submit(SYNCED)
    assert bench.answer() == (SYNCED, None, "journal-commit")
    assert (bench.disk.calls["write"], bench.disk.calls["sync"]) == (1, 1)


# -- threads ------------------------------------------------------------------------------------------


def syncs_of(*jobs: JournalJob) -> int:
    """Return how many of the jobs were measured as syncs."""
    answers: SimpleQueue[JournalJob] = SimpleQueue()
    worker = DiskWorker(
        cast("DiskJobExecutor", IdleExecutor()), lambda job, _error, _salt: answers.put(job), run_at_once
    )
    for job in jobs:
        worker.submit(job)
    for _ in jobs:
        answers.get(timeout=ANSWER_SECONDS_MAX)
    worker.stop()
    return worker.syncs.count


def test_histogram_has_the_synced_jobs_only() -> None:
    assert syncs_of(WRITE, SYNCED, PrepareSegment(number=2, bytes=1), SYNC, SYNCED) == 3


def test_slow_sync_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with logging_to(stream, "text", "info"):
        syncs_of(SYNCED)
        monkeypatch.setattr(disk_worker, "sync_slow_seconds", -1.0)
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
        in_time.append(committed.wait(timeout=ANSWER_SECONDS_MAX))
        return b""

    worker = DiskWorker(cast("DiskJobExecutor", Executing()), lambda _job, _error, _salt: None, run_at_once)
    worker.submit(WriteQueues(journal_id=bytes(16), encode=encode))
    worker.submit(SYNCED)
    worker.stop()
    assert in_time == [True]


def test_commit_while_a_checkpoint_of_records_is_written_is_not_delayed() -> None:
    committed = Event()
    in_time: list[bool] = []

    class Executing:
        def run(self, job: JournalJob) -> int:
            if isinstance(job, WriteState):
                in_time.append(committed.wait(timeout=ANSWER_SECONDS_MAX))
            else:
                committed.set()
            return 0

    worker = DiskWorker(cast("DiskJobExecutor", Executing()), lambda _job, _error, _salt: None, run_at_once)
    worker.submit(WriteState(topic="t", path="sow/x/y", offset=0, buffers=[], bytes=0, durable=True))
    worker.submit(SYNCED)
    worker.stop()
    assert in_time == [True]


@pytest.mark.parametrize("job", [WRITE, SYNC, SYNCED])
@pytest.mark.parametrize("background", [False, True])
def test_answered_commit_no_longer_delays_checkpoints(job: JournalJob, background: bool) -> None:
    disk = WaitingDisk(Random(1))
    disk.make_directory("journal")
    executor = DiskJobExecutor(disk, lambda: 1)
    executor.run(PrepareSegment(number=1, bytes=4096))
    syncs = HeldSyncs() if background else None
    answered = Event()
    worker = DiskWorker(executor, lambda *_: answered.set(), run_at_once, syncs=syncs)
    worker.submit(job)
    if syncs is not None:
        for done in syncs.held:
            assert worker._pace.commit_owed
            done(None)
    assert answered.wait(ANSWER_SECONDS_MAX)
    assert not worker._pace.commit_owed
    worker.stop()
