"""Group commit, job by job: disk requests, their order, and persisted commits after each answer."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tickertape.base.errors import JournalFailed
from tickertape.base.interfaces import Now
from tickertape.batch import BatchBuilder, MessageBatch, Stamp, batch_from_bodies
from tickertape.journal.commit.active_segment import ActiveSegment, LogEnd
from tickertape.journal.commit.group_commit import GroupCommit, PersistedCommit, SyncPolicy
from tickertape.journal.commit.jobs import (
    DiskFull,
    JournalJob,
    PrepareSegment,
    RollSegment,
    SealSegment,
    StartSegment,
    SyncSegment,
    WriteCommit,
)
from tickertape.journal.format.segment import CommitKind, decode_commit, decode_segment_header
from tickertape.journal.limits import commit_bytes_max, mark_idle_seconds, segment_header_bytes

CAPACITY = 64 * 1024


class Bench:
    """A `GroupCommit` whose disk jobs complete when the test says so."""

    def __init__(
        self, policy: SyncPolicy = SyncPolicy.ALWAYS, *, interval: float = 1.0, started: bool = True
    ) -> None:
        self.mono = 100.0
        end = LogEnd(bytes(16), epoch=3, segment=4, chain=5, used=6, position=70, commit=8, timestamp=9)
        self.machine = GroupCommit(
            end, policy=policy, interval_seconds=interval, segment_bytes=CAPACITY, now=self.now
        )
        self.waiting: list[JournalJob] = []
        self.persisted: list[PersistedCommit] = []
        self.sequence = 0
        self.collect()
        if started:
            self.ok(PrepareSegment)
            self.ok(StartSegment)

    @property
    def now(self) -> Now:
        return Now(self.mono, 1_000_000)

    def collect(self) -> None:
        self.waiting += self.machine.jobs()
        self.persisted += self.machine.take_persisted()
        flying = [job for job in self.waiting if not isinstance(job, PrepareSegment)]
        assert len(flying) <= 1, "one commit in flight"
        assert len(self.waiting) - len(flying) <= 1, "one preallocation at a time"

    def is_ready(self) -> bool:
        return self.machine.ready

    def is_closed(self) -> bool:
        return self.machine.closed

    def is_full(self) -> bool:
        return self.machine.full

    def asked(self) -> list[str]:
        """Return the names of the jobs in progress."""
        return [type(job).__name__ for job in self.waiting]

    def answer(self, kind: type[JournalJob], error: OSError | None) -> JournalJob:
        job = next(job for job in self.waiting if isinstance(job, kind))
        self.waiting.remove(job)
        self.machine.done(job, error, 0xABC, self.now)
        self.collect()
        return job

    def ok(self, kind: type[JournalJob]) -> JournalJob:
        return self.answer(kind, None)

    def fails(self, kind: type[JournalJob], number: int = errno.EIO) -> JournalJob:
        return self.answer(kind, OSError(number, "it failed"))

    def full(self) -> JournalJob:
        return self.answer(PrepareSegment, DiskFull(errno.ENOSPC, "no space"))

    def append(self, size: int = 10, count: int = 1, topic: str = "t") -> None:
        batch = batch_from_bodies(topic, [bytes(size)] * count, first_sequence=self.sequence + 1)
        self.put(batch)

    def put(self, batch: MessageBatch) -> None:
        self.machine.append(batch, Stamp(1, self.sequence + 1, 1000 + self.sequence), self.now)
        self.sequence += batch.count
        self.collect()

    def wait(self, seconds: float) -> None:
        self.mono += seconds
        self.machine.wake(self.now)
        self.collect()

    def close(self) -> None:
        self.machine.close(self.now)
        self.collect()

    def kind_in_flight(self) -> CommitKind:
        job = next(job for job in self.waiting if isinstance(job, WriteCommit))
        header = decode_commit(bytes(job.buffers[0]))
        assert header is not None
        return header.kind

    @property
    def active(self) -> ActiveSegment:
        assert self.machine.active is not None
        return self.machine.active


def test_start_preallocates_a_segment_and_writes_the_header() -> None:
    bench = Bench(started=False)
    assert bench.asked() == ["PrepareSegment"]
    assert not bench.is_ready()
    prepared = bench.ok(PrepareSegment)
    assert isinstance(prepared, PrepareSegment)
    assert (prepared.number, prepared.bytes) == (5, CAPACITY)
    started = bench.ok(StartSegment)
    assert isinstance(started, StartSegment)
    header, _ = decode_segment_header(started.header)
    assert (header.number, header.epoch, header.salt, header.first_position) == (5, 3, 0xABC, 70)
    assert (header.previous_chain, header.previous_end, header.first_commit) == (5, 6, 8)
    assert bench.is_ready()
    assert bench.asked() == []


def test_batches_accumulate_while_one_commit_is_in_flight() -> None:
    bench = Bench()
    for _ in range(5):
        bench.append()
    assert bench.asked() == ["WriteCommit"]
    assert bench.persisted == []
    assert bench.machine.persisted_end == 70
    bench.ok(WriteCommit)
    assert [(p.first_position, p.batch.count) for p in bench.persisted] == [(70, 1)]
    bench.ok(WriteCommit)
    assert [(p.first_position, p.batch.count) for p in bench.persisted] == [(70, 1), (71, 4)]
    assert bench.machine.persisted_end == bench.machine.accepted_end == 75
    assert bench.machine.pending_bytes == 0


def test_commit_header_has_the_synced_commit_number_and_the_chain_checksum() -> None:
    bench = Bench()
    chain = bench.active.chain
    for number in range(8, 12):
        bench.append()
        job = bench.ok(WriteCommit)
        assert isinstance(job, WriteCommit)
        header = decode_commit(bytes(job.buffers[0]))
        assert header is not None
        assert (header.number, header.synced_through, header.chain) == (number, number - 1, chain)
        assert job.sync
        chain = header.crc


def test_mark_is_written_once_after_the_idle_time() -> None:
    bench = Bench()
    bench.append()
    assert bench.machine.next_deadline() is None, "nothing to wait for while a job is in flight"
    bench.ok(WriteCommit)
    assert bench.machine.next_deadline() == pytest.approx(bench.mono + mark_idle_seconds)
    bench.wait(mark_idle_seconds / 2)
    bench.append()
    bench.ok(WriteCommit)
    bench.wait(mark_idle_seconds * 0.9)
    assert bench.asked() == [], "idle since the last commit, not the first"
    bench.wait(mark_idle_seconds)
    assert bench.kind_in_flight() is CommitKind.MARK
    bench.ok(WriteCommit)
    bench.wait(60)
    assert bench.asked() == []
    assert bench.machine.next_deadline() is None
    assert len(bench.persisted) == 2, "a mark contains no message"


def test_next_segment_is_preallocated_at_half_and_used_when_the_segment_is_full() -> None:
    bench = Bench()
    while bench.active.offset <= CAPACITY // 2:
        assert "PrepareSegment" not in bench.asked()
        bench.append(3000)
        bench.ok(WriteCommit)
    assert bench.asked() == ["PrepareSegment"]
    bench.append(3000)
    assert "WriteCommit" in bench.asked(), "a preallocation does not block commits"
    bench.ok(PrepareSegment)
    while "RollSegment" not in bench.asked():
        bench.ok(WriteCommit)
        bench.append(3000)
    roll = bench.ok(RollSegment)
    assert isinstance(roll, RollSegment)
    seal = decode_commit(bytes(roll.seal[0]))
    header, crc = decode_segment_header(roll.header)
    assert seal is not None
    assert seal.synced_through == seal.number - 1
    assert roll.old_end == seal.end <= CAPACITY, "the seal fits the preallocated size"
    assert (header.previous_chain, header.previous_end) == (seal.crc, roll.old_end)
    assert (header.first_commit, header.first_position) == (seal.number + 1, seal.first_position)
    write = bench.ok(WriteCommit)
    assert isinstance(write, WriteCommit)
    assert (write.segment, write.offset) == (6, segment_header_bytes)
    first = decode_commit(bytes(write.buffers[0]))
    assert first is not None
    assert first.chain == crc


@pytest.mark.parametrize("size", [CAPACITY - 1500, CAPACITY - 1100, CAPACITY, 3 * CAPACITY, 16 * 1024 * 1024])
def test_message_larger_than_a_segment_gets_a_segment_of_sufficient_size(size: int) -> None:
    bench = Bench()
    bench.append(size)
    for _ in range(3):  # at most: enlarge a preallocated segment that is too small, roll, write
        if "PrepareSegment" in bench.asked():
            bench.ok(PrepareSegment)
        if "RollSegment" in bench.asked():
            bench.ok(RollSegment)
    bench.ok(WriteCommit)
    assert bench.machine.persisted_end == 71
    assert bench.active.header.number <= 6, "no empty segment was rolled through"
    assert bench.active.room >= 0
    bench.append()
    assert bench.asked()


def test_preallocated_segment_that_is_too_small_is_enlarged_before_the_start() -> None:
    bench = Bench(started=False)
    bench.append(CAPACITY)
    bench.ok(PrepareSegment)
    assert bench.asked() == ["PrepareSegment"]
    again = bench.ok(PrepareSegment)
    assert isinstance(again, PrepareSegment)
    assert again.number == 5
    assert again.bytes > CAPACITY
    assert bench.asked() == ["StartSegment"]


@pytest.mark.parametrize("seed", range(6))
def test_random_commits_marks_and_seals_fit_the_preallocated_size(seed: int) -> None:
    rng = Random(seed)
    bench = Bench()
    ends: dict[int, int] = {5: CAPACITY}
    for step in range(250):
        builder = BatchBuilder()
        for _ in range(rng.choice((1, 1, 3, 200))):
            topic = f"{rng.randrange(40)}" * rng.choice((1, 300))
            key = "k" * rng.choice((0, 0, 9))
            builder.add(topic, bytes(rng.choice((0, 10, 2000))), key=key, expiration_ms=rng.choice((0, 0, 5)))
        bench.put(builder.build(publisher=step, first_sequence=bench.sequence + 1))
        while bench.waiting and rng.random() < 0.6:
            job = bench.ok(type(rng.choice(bench.waiting)))
            if isinstance(job, PrepareSegment):
                ends[job.number] = job.bytes
            elif isinstance(job, WriteCommit):
                written = sum(len(buffer) for buffer in job.buffers)
                assert job.offset + written <= ends[job.segment]
            elif isinstance(job, RollSegment):
                assert job.old_end <= ends[job.old]
        if rng.random() < 0.2:
            bench.wait(0.05)
    assert len(ends) > 2


def test_many_small_batches_are_merged_into_commits_of_bounded_size() -> None:
    bench = Bench()
    bench.append()
    plain = batch_from_bodies("a", [b""] * 3000, first_sequence=1)
    builder = BatchBuilder()
    builder.add("b", b"", key="k", correlation_id="c", expiration_ms=1, kind=1)
    rich = builder.build(first_sequence=1)
    for _ in range(150):
        bench.put(plain)
        bench.put(rich)
    while "WriteCommit" in bench.asked() or "PrepareSegment" in bench.asked():
        bench.ok(PrepareSegment if "PrepareSegment" in bench.asked() else WriteCommit)
        if "RollSegment" in bench.asked():
            bench.ok(RollSegment)
    assert bench.machine.persisted_end == bench.machine.accepted_end
    assert max(p.batch.nbytes for p in bench.persisted) <= commit_bytes_max
    assert len(bench.persisted) < 12


def test_full_disk_refuses_large_batches_until_a_retry_succeeds() -> None:
    bench = Bench()
    while "PrepareSegment" not in bench.asked():
        bench.append(3000)
        bench.ok(WriteCommit)
    assert bench.machine.can_accept(10**6), "nothing is known yet"
    bench.full()
    assert bench.is_full()
    assert bench.machine.failure is None
    assert bench.machine.can_accept(1000), "the preallocated space remains usable"
    assert not bench.machine.can_accept(CAPACITY)
    bench.append(1000)
    bench.ok(WriteCommit)
    assert bench.asked() == []
    assert bench.machine.next_deadline() is not None
    bench.wait(1.1)
    bench.full()
    bench.wait(1.1)
    bench.ok(PrepareSegment)
    assert not bench.is_full()
    assert bench.machine.can_accept(CAPACITY)


def test_full_disk_with_pending_batches_wakes_at_most_a_few_times() -> None:
    bench = Bench()
    bench.append()
    bench.ok(WriteCommit)
    bench.append(CAPACITY)
    bench.full()
    wakes = 0
    end = bench.mono + 5
    while bench.mono < end:
        deadline = bench.machine.next_deadline()
        assert deadline is not None
        bench.wait(max(deadline - bench.mono, 0))
        wakes += 1
        if "WriteCommit" in bench.asked():
            assert bench.kind_in_flight() is CommitKind.MARK
            bench.ok(WriteCommit)
        if "PrepareSegment" in bench.asked():
            bench.full()
    assert wakes < 12


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(
    "kind", [WriteCommit, RollSegment, SealSegment, SyncSegment, StartSegment, PrepareSegment]
)
def test_first_disk_failure_stops_the_group_commit_permanently(kind: type[JournalJob], number: int) -> None:
    policy = SyncPolicy.INTERVAL if kind is SyncSegment else SyncPolicy.ALWAYS
    bench = Bench(policy, started=kind not in (StartSegment, PrepareSegment))
    if kind is StartSegment:
        bench.ok(PrepareSegment)
    elif kind is not PrepareSegment:
        bench.append()
        if kind is not WriteCommit:
            bench.ok(WriteCommit)
    if kind is RollSegment:
        bench.append(CAPACITY)
        bench.ok(PrepareSegment)
    elif kind is SealSegment:
        bench.close()
    elif kind is SyncSegment:
        bench.wait(1.1)
    before = len(bench.persisted)
    bench.fails(kind, number)
    assert isinstance(bench.machine.failure, JournalFailed)
    assert kind.__name__ in str(bench.machine.failure)
    with pytest.raises(JournalFailed):
        bench.append()
    while bench.waiting:
        bench.ok(type(bench.waiting[0]))
    bench.wait(60)
    bench.close()
    assert bench.asked() == []
    assert len(bench.persisted) == before
    assert bench.machine.next_deadline() is None
    assert not bench.is_closed()
    assert not bench.is_ready()


def test_interval_policy_acknowledges_written_commits_and_syncs_under_load() -> None:
    bench = Bench(SyncPolicy.INTERVAL, interval=0.5)
    syncs = []
    for _ in range(100):
        bench.append(1, topic="x")
        bench.append(1, topic="x")
        assert bench.waiting, "a job is always pending"
        bench.mono += 0.02
        job = bench.ok(type(bench.waiting[0]))
        if isinstance(job, WriteCommit):
            assert not job.sync
        elif isinstance(job, SyncSegment):
            syncs.append(bench.mono)
    assert len(syncs) in (3, 4), "two seconds of commits without a pause"
    assert len(bench.persisted) > 90


def test_interval_policy_syncs_after_the_last_commit_and_then_idles() -> None:
    bench = Bench(SyncPolicy.INTERVAL, interval=0.5)
    bench.append()
    bench.ok(WriteCommit)
    assert len(bench.persisted) == 1
    bench.wait(0.4)
    assert bench.asked() == []
    bench.wait(0.2)
    sync = bench.ok(SyncSegment)
    assert isinstance(sync, SyncSegment)
    assert sync.number == 8
    bench.wait(1)
    assert bench.kind_in_flight() is CommitKind.MARK
    bench.ok(WriteCommit)
    bench.wait(60)
    assert bench.asked() == []
    bench.append()
    bench.ok(WriteCommit)
    bench.wait(0.6)
    assert bench.asked() == ["SyncSegment"], "idleness did not stop the clock for good"


def test_never_policy_syncs_only_before_a_seal() -> None:
    bench = Bench(SyncPolicy.NEVER)
    for _ in range(3):
        bench.append()
        job = bench.ok(WriteCommit)
        assert isinstance(job, WriteCommit)
        assert not job.sync
        header = decode_commit(bytes(job.buffers[0]))
        assert header is not None
        assert header.synced_through == 7
    assert bench.machine.next_deadline() is None
    bench.close()
    assert bench.asked() == ["SyncSegment"]
    bench.ok(SyncSegment)
    seal = bench.ok(SealSegment)
    assert isinstance(seal, SealSegment)
    header = decode_commit(bytes(seal.seal[0]))
    assert header is not None
    assert header.synced_through == header.number - 1
    assert bench.is_closed()


def test_close_writes_pending_commits_and_seals() -> None:
    bench = Bench()
    bench.append()
    bench.append()
    bench.close()
    assert not bench.is_ready()
    bench.ok(WriteCommit)
    bench.ok(WriteCommit)
    assert bench.asked() == ["SealSegment"]
    assert not bench.is_closed()
    bench.ok(SealSegment)
    assert bench.is_closed()
    assert bench.machine.persisted_end == 72
    assert bench.machine.next_deadline() is None


def test_close_before_the_first_segment_closes_immediately() -> None:
    bench = Bench(started=False)
    bench.close()
    assert bench.is_closed()
    bench.fails(PrepareSegment)
    assert bench.is_closed()
    assert bench.machine.failure is None


def test_close_on_a_full_disk_drops_pending_batches_that_do_not_fit() -> None:
    bench = Bench()
    bench.append()
    bench.ok(WriteCommit)
    bench.append(CAPACITY)
    bench.full()
    bench.close()
    assert bench.asked() == ["PrepareSegment"], "requested once more"
    bench.full()
    assert bench.asked() == ["SealSegment"]
    bench.ok(SealSegment)
    assert bench.is_closed()
    assert bench.machine.persisted_end == 71 < bench.machine.accepted_end
    assert bench.machine.pending_bytes == 0


def test_close_on_a_full_disk_without_a_segment_persists_nothing() -> None:
    bench = Bench(started=False)
    bench.full()
    bench.append()
    bench.close()
    bench.full()
    assert bench.is_closed()
    assert bench.persisted == []


def test_persisted_commit_names_the_header_on_disk() -> None:
    bench = Bench()
    for _ in range(3):
        bench.append()
        job = bench.ok(WriteCommit)
        assert isinstance(job, WriteCommit)
        header = decode_commit(bytes(job.buffers[0]))
        assert header is not None
        commit = bench.persisted[-1]
        assert (commit.number, commit.epoch, commit.checksum) == (header.number, 3, header.crc)
    assert bench.persisted[0].number == 8
