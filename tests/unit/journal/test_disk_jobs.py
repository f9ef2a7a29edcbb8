"""Disk job executor: calls of each job in order, and failures that only lack disk space."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import msgspec
import pytest

from tests.helpers.tiers import parts
from tests.simulation.journal_log import JOURNAL_ID
from tests.simulation.journal_world import FailingDisk, PowerLost, Trace
from tickertape.journal.commit.jobs import (
    DiskFull,
    DiskJobExecutor,
    JournalJob,
    PrepareSegment,
    PublishState,
    RollSegment,
    SealSegment,
    StartSegment,
    SyncSegment,
    WriteCommit,
    WriteState,
)
from tickertape.journal.disk import SystemDisk
from tickertape.journal.format.log_end import read_last_segment
from tickertape.journal.format.segment import (
    JOURNAL_DIRECTORY,
    SegmentHeader,
    encode_segment_header,
    segment_path,
)
from tickertape.testing.disk import StrictDisk


class Calls(Trace):
    """A trace that records the names of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def note(self, *call: object) -> None:
        self.made.append(str(call[0]))


PREPARE = PrepareSegment(number=1, bytes=4096)
START = StartSegment(number=1, header=b"h" * 512)
WRITE = WriteCommit(segment=1, offset=512, buffers=[b"a", b"b"], bytes=2, sync=True, number=1)
LAZY = WriteCommit(segment=1, offset=514, buffers=[b"c"], bytes=1, sync=False, number=2)
SYNC = SyncSegment(segment=1, number=2)
SEAL = SealSegment(segment=1, seal_offset=515, seal=[b"s"], end=516)
ROLL = RollSegment(old=1, seal_offset=515, seal=[b"s"], old_end=516, new=2, header=b"i" * 512)

NEW = "sow/ab/file.new"
PIECE = WriteState(topic="t", path=NEW, offset=0, buffers=[b"a", b"b"], bytes=2, durable=False)
LAST_PIECE = WriteState(topic="t", path=NEW, offset=2, buffers=[b"c"], bytes=1, durable=True)
MANIFEST = "sow/ab/manifest"
PUBLISH = PublishState(
    topic="t",
    written=NEW,
    named="sow/ab/base-1.sow",
    path=MANIFEST,
    manifest=b"m",
    drop=("sow/ab/base-0.sow", "sow/ab/gone.sow"),
)
ADVANCE = PublishState(topic="t", written="", named="", path=MANIFEST, manifest=b"n", drop=())
REPLACED = ["create", "truncate", "write", "sync", "rename", "sync_directory"]

NOTED = ["create", "preallocate", "write"]
"""Creation of the file that names the last started segment, once for each directory."""
NAMED = ["sync", "rename", "sync_directory"]


def bench() -> tuple[StrictDisk, DiskJobExecutor, Calls]:
    disk, calls = StrictDisk(Random(1)), Calls()
    disk.make_directory("journal")
    return disk, DiskJobExecutor(FailingDisk(disk, 10**9, calls), lambda: 42), calls


@pytest.mark.parametrize(
    ("before", "job", "calls"),
    [
        ([], PREPARE, ["create", "preallocate", *NOTED, "sync", "sync_directory", *NAMED]),
        ([PREPARE], PrepareSegment(number=1, bytes=9000), ["preallocate", "sync", "sync_directory"]),
        ([PREPARE], START, ["write", "sync"] * 2),
        ([PREPARE, START], WRITE, ["write", "sync"]),
        ([PREPARE, START], LAZY, ["write"]),
        ([PREPARE, START], SYNC, ["sync"]),
        ([PREPARE, START], SEAL, ["write", "truncate", "sync"]),
        (
            [PREPARE, START, PrepareSegment(number=2, bytes=4096)],
            ROLL,
            ["write", "truncate", "sync", *["write", "sync"] * 2],
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, JournalJob) else "",
)
def test_disk_job_makes_the_expected_calls_in_order(
    before: list[JournalJob], job: JournalJob, calls: list[str]
) -> None:
    _, executor, trace = bench()
    for earlier in before:
        executor.run(earlier)
    trace.made.clear()
    assert executor.run(job) == (42 if isinstance(job, PrepareSegment) else 0)
    assert trace.made == calls


def test_disk_jobs_write_the_expected_segment_files() -> None:
    disk, executor, _ = bench()
    for job in (PREPARE, START, WRITE, LAZY, PrepareSegment(number=2, bytes=4096), ROLL):
        executor.run(job)
    executor.close()
    contents = disk.contents()
    assert contents[segment_path(1)] == b"h" * 512 + b"abcs"
    assert contents[segment_path(2)] == b"i" * 512 + bytes(4096 - 512)


def test_preallocated_segment_of_an_earlier_run_is_reused() -> None:
    disk, executor, _ = bench()
    executor.run(PREPARE)
    assert DiskJobExecutor(disk, lambda: 43).run(PREPARE) == 43


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "disk space"),
        (errno.EDQUOT, "the quota"),
        (errno.EMFILE, "server's limit of open files"),
    ],
)
@pytest.mark.parametrize("operation", ["open", "preallocate"])
def test_preallocation_without_space_reports_the_cause_and_can_be_retried(
    operation: str, number: int, remedy: str
) -> None:
    disk, executor, _ = bench()
    disk.fail(operation, 1, number)
    with pytest.raises(DiskFull) as caught:
        executor.run(PREPARE)
    assert caught.value.errno == number
    assert remedy in caught.value.reason
    assert executor.run(PREPARE) == 42


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_directory_sync_without_descriptors_can_be_retried(number: int) -> None:
    """The sync never started, so no data is lost."""
    disk, executor, _ = bench()
    disk.sync_directory(".")
    disk.fail("sync_directory", 1, number)
    with pytest.raises(DiskFull) as caught:
        executor.run(PREPARE)
    assert "limit of open files" in caught.value.reason
    assert executor.run(PREPARE) == 42
    for seed in range(20):
        assert segment_path(PREPARE.number) in disk.crash_clone(Random(seed)).contents()


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """Limit the process to `left` more open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(left + 1)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(opened), before[1]))
        taken = []
        with suppress(OSError):
            while True:  # uses up lower free descriptors
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for fd in opened[:-1]:
            os.close(fd)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in (opened[-1], *taken):
            os.close(fd)


@pytest.mark.parametrize("left", range(6))
def test_preallocation_with_few_descriptors_does_not_fail_the_executor(tmp_path: Path, left: int) -> None:
    disk = SystemDisk(tmp_path)
    disk.make_directory(JOURNAL_DIRECTORY)
    executor = DiskJobExecutor(disk, lambda: 42)
    with descriptors(left), suppress(DiskFull):
        assert executor.run(PREPARE) == 42
    assert executor.run(PREPARE) == 42
    executor.close()
    disk.close_all()


@pytest.mark.parametrize(
    ("job", "operation"),
    [(PREPARE, "sync"), (PREPARE, "sync_directory"), (START, "write"), (START, "sync"), (SEAL, "truncate")],
)
def test_lack_of_space_in_other_operations_is_not_retryable(job: JournalJob, operation: str) -> None:
    """A failed sync may have dropped dirty pages, so a retry would only look like success."""
    disk, executor, _ = bench()
    for earlier in [] if job is PREPARE else [PREPARE, START]:
        executor.run(earlier)
    disk.fail(operation, 1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space") as caught:
        executor.run(job)
    assert not isinstance(caught.value, DiskFull)


def test_other_preallocation_errors_are_not_reported_as_disk_full() -> None:
    disk, executor, _ = bench()
    disk.fail("preallocate", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output") as caught:
        executor.run(PREPARE)
    assert not isinstance(caught.value, DiskFull)


def test_number_of_the_last_started_segment_is_durable_with_the_segment() -> None:
    disk, executor, _ = bench()
    disk.sync_directory(".")
    header = SegmentHeader(JOURNAL_ID, 1, 1, 0, 1, 7, 0, 0, 0)
    assert read_last_segment(disk, JOURNAL_ID) == 0
    executor.run(PREPARE)
    assert read_last_segment(disk, JOURNAL_ID) == 0
    executor.run(StartSegment(number=1, header=encode_segment_header(header)[0]))
    executor.run(PrepareSegment(number=2, bytes=4096))
    second = encode_segment_header(header._replace(number=2))[0]
    for seed in range(20):
        assert read_last_segment(disk.crash_clone(Random(seed)), JOURNAL_ID) == 1
    disk.fail("write", 3, errno.EIO)  # seal, header, and then the note
    with pytest.raises(OSError, match="Input/output"):
        executor.run(msgspec.structs.replace(ROLL, header=second))
    for seed in range(20):
        crashed = disk.crash_clone(Random(seed))
        with suppress(ValueError):  # a half-written note raises
            assert read_last_segment(crashed, JOURNAL_ID) in (1, 2)
        assert crashed.contents()[segment_path(2)].startswith(second), "the header is durable before it"
    with pytest.raises(ValueError, match="belongs to another journal"):
        read_last_segment(disk.crash_clone(Random(1)), bytes(16))


def test_last_segment_file_is_readable_after_any_crash_during_creation() -> None:
    for operations in range(12):
        disk = StrictDisk(Random(operations))
        disk.make_directory("journal")
        disk.sync_directory(".")
        with suppress(PowerLost):
            DiskJobExecutor(FailingDisk(disk, operations), lambda: 1).run(PREPARE)
        for seed in range(10):
            crashed = disk.crash_clone(Random(seed))
            assert read_last_segment(crashed, JOURNAL_ID) == 0, "never unreadable"
            assert DiskJobExecutor(crashed, lambda: 2).run(PREPARE) == 2


def test_prepared_segment_with_an_unsynced_name_is_synced_after_a_restart() -> None:
    disk = StrictDisk(Random(1))
    disk.make_directory(JOURNAL_DIRECTORY)
    disk.sync_directory(".")
    disk.fail("sync_directory", 1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        DiskJobExecutor(disk, lambda: 1).run(PREPARE)
    restarted = disk.kill_clone()
    DiskJobExecutor(restarted, lambda: 2).run(PREPARE)
    for seed in range(40):
        assert segment_path(PREPARE.number) in restarted.crash_clone(Random(seed)).contents()


def test_state_jobs_make_files_and_directories_durable_before_the_manifest() -> None:
    _, executor, trace = bench()
    executor.run(PIECE)
    assert trace.made == ["make_directory", "make_directory", "remove", "create", "write"]
    trace.made.clear()
    executor.run(LAST_PIECE)
    assert trace.made == ["write", "sync"]
    trace.made.clear()
    executor.run(PUBLISH)
    assert trace.made == ["rename", *["sync_directory"] * 3, *REPLACED, "remove", "remove"]
    trace.made.clear()
    executor.run(ADVANCE)
    assert trace.made == [*["sync_directory"] * 3, *REPLACED]


def test_first_piece_of_a_state_file_replaces_the_file_of_an_earlier_attempt() -> None:
    disk, executor, _ = bench()
    for job in (PIECE, LAST_PIECE, PIECE, ADVANCE):
        executor.run(job)
    assert disk.contents() == {NEW: b"ab", MANIFEST: b"n"}


@pytest.mark.parametrize("seed", parts(10, 3))
def test_power_loss_at_each_call_leaves_the_earlier_or_the_new_checkpoint(seed: int) -> None:
    """The manifest never names a file that power loss may take."""
    operations = 0
    while True:
        disk, executor, _ = bench()
        for job in (PIECE, LAST_PIECE, PUBLISH):
            executor.run(job)
        failing = FailingDisk(disk, operations)
        later = DiskJobExecutor(failing, lambda: 1)
        finished = False
        with suppress(PowerLost):
            later.run(msgspec.structs.replace(PIECE, buffers=[b"x", b"y"]))
            later.run(msgspec.structs.replace(LAST_PIECE, buffers=[b"z"]))
            named, drop = "sow/ab/base-2.sow", ("sow/ab/base-1.sow",)
            later.run(msgspec.structs.replace(PUBLISH, named=named, manifest=b"2", drop=drop))
            finished = True
        left = disk.crash_clone(Random(seed)).contents()
        if left[MANIFEST] == b"m":
            assert left["sow/ab/base-1.sow"] == b"abc"
            assert not finished
        else:
            assert (left[MANIFEST], left["sow/ab/base-2.sow"]) == (b"2", b"xyz")
        if finished:
            return
        operations += 1
