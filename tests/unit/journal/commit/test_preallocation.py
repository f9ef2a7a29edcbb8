"""Preallocation on a disk that runs full: smaller segments, then refusal, then recovery."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.simulation.journal_log import JOURNAL_ID
from tests.simulation.journal_world import read_log
from tests.unit.journal.written import Written
from tickertape.base.interfaces import Now
from tickertape.base.limits import MIB
from tickertape.batch import Stamp, batch_from_bodies
from tickertape.journal.commit import preallocation as reserve_module
from tickertape.journal.commit.group_commit import GroupCommit
from tickertape.journal.commit.jobs import DiskFull, DiskJobExecutor, PrepareSegment
from tickertape.journal.commit.preallocation import SegmentPreallocation
from tickertape.journal.format.identity import open_identity
from tickertape.journal.journal import Journal
from tickertape.journal.limits import segment_bytes_min
from tickertape.journal.recovery.recovery import recover_journal
from tickertape.testing.disk import StrictDisk

NO_SPACE = DiskFull(errno.ENOSPC, "no space")


def now(mono: float) -> Now:
    return Now(mono, round(mono * 1e6))


def is_full(machine: SegmentPreallocation | GroupCommit) -> bool:
    return machine.full


def test_segment_size_doubles_and_is_halved_on_a_full_disk() -> None:
    reserve = SegmentPreallocation(256 * MIB)
    job = reserve.request(1, 0)
    sizes = []
    for number in range(2, 9):
        sizes.append(job.bytes // MIB)
        assert reserve.done(job, None, 7, now(0)) is None
        assert reserve.take() == (number - 1, job.bytes, 7)
        job = reserve.request(number, 0)
    assert sizes == [4, 8, 16, 32, 64, 128, 256]
    tried = []
    smaller: PrepareSegment | None = job
    while smaller is not None:
        assert not is_full(reserve)
        assert not reserve.may_request(now(0)), "one at a time"
        tried.append(smaller.bytes)
        smaller = reserve.done(smaller, NO_SPACE, 0, now(5))
    assert tried == [size * MIB for size in (256, 128, 64, 32, 16, 8, 4, 2, 1)]
    assert tried[-1] == segment_bytes_min
    assert is_full(reserve)
    assert (reserve.may_request(now(5.9)), reserve.may_request(now(6.1))) == (False, True)
    job = reserve.request(9, 0)
    assert job.bytes == segment_bytes_min, "no repeated search from the largest size"
    assert reserve.done(job, None, 8, now(7)) is None
    assert not is_full(reserve)
    assert reserve.request(10, 0).bytes == 2 * MIB, "the size grows after a success"


def test_segment_size_is_never_below_the_size_of_the_next_commit() -> None:
    reserve = SegmentPreallocation(256 * MIB)
    needed = 5 * MIB + 1
    job = reserve.request(1, needed)
    assert job.bytes == 5 * MIB + 4096
    assert reserve.done(job, NO_SPACE, 0, now(0)) is None
    assert is_full(reserve)
    assert reserve.full_reason == "no space. Free disk space"


def test_full_disk_is_used_to_the_last_segment_without_losing_messages() -> None:
    capacity = 11 * MIB
    disk = StrictDisk(Random(1), space_bytes=capacity)
    open_identity(disk, owner="test", create=True, new_id=JOURNAL_ID)
    journal = Journal(recover_journal(disk, JOURNAL_ID), now(0))
    executor = DiskJobExecutor(disk, lambda: 5)
    mono, sent, refused = 0.0, 0, 0

    def work() -> None:
        while jobs := journal.commits.jobs():
            for job in jobs:
                error: OSError | None = None
                salt = 0
                try:
                    salt = executor.run(job)
                except OSError as failed:
                    error = failed
                journal.commits.done(job, error, salt, now(mono))
        journal.take_persisted()

    def publish(body: bytes) -> bool:
        nonlocal sent
        if not journal.commits.can_accept(len(body) + 200):
            return False
        batch = batch_from_bodies("orders", [body], first_sequence=sent + 1)
        journal.append(batch, Stamp(7, sent + 1, 1), sent + 1, now(mono))
        sent += 1
        work()
        return True

    work()
    while not refused:
        mono += 0.1
        refused += not publish(sent.to_bytes(8, "big") * 2000)
        assert journal.commits.failure is None
        assert sent < 1000
    assert is_full(journal.commits)
    assert sent * 16_000 > capacity - 3 * MIB, "only the space of a smallest segment is left"
    assert journal.commits.persisted_end == sent, "every accepted message is persisted"
    before = sent
    disk.space_bytes = 2 * capacity
    mono += 1.1
    journal.commits.wake(now(mono))
    work()
    assert not is_full(journal.commits)
    for _ in range(100):
        mono += 0.1
        assert publish(sent.to_bytes(8, "big") * 2000)
    assert sent == before + 100
    again = Journal(recover_journal(disk.kill_clone(), JOURNAL_ID), now(mono))
    bodies = [bytes(b) for _, batch in read_log(again, disk) for b in batch.bodies_list()]
    assert bodies == [number.to_bytes(8, "big") * 2000 for number in range(sent)]


@pytest.mark.parametrize("clean", [False, True])
def test_journal_size_counts_adopted_preallocated_files_at_full_size(
    clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve_module, "segment_bytes_first", 8_192)
    written = Written(segment_bytes=1 << 16)
    while len(written.disk.names("journal")) < 4:
        written.publish(size=1_000)
    if clean:
        written.stop()
    written.start()
    sizes = {name: len(data) for name, data in written.disk.contents().items() if name.startswith("journal/")}
    assert len(sizes) == 4, "the preallocated segment is adopted"
    assert written.journal.file_bytes == sum(sizes.values())
    assert written.journal.commits.active is not None
    assert written.journal.commits.active.capacity == sizes["journal/0000000004.segment"] == 1 << 16
