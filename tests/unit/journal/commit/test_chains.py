"""Chains (the commits of one transaction): atomic in group commit, recovery, snapshots and `verify`."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from tests.unit.journal.commit.test_group_commit import CAPACITY, Bench
from tests.unit.journal.written import Written, next_offset
from tickertape.base.errors import JournalFailed
from tickertape.base.interfaces import Now
from tickertape.batch import MessageBatch, Stamp, batch_from_bodies
from tickertape.journal.commit.active_segment import commit_bytes_of
from tickertape.journal.commit.group_commit import SyncPolicy
from tickertape.journal.commit.jobs import PrepareSegment, RollSegment, StartSegment, SyncSegment, WriteCommit
from tickertape.journal.format.segment import (
    FLAG_CONTINUES,
    FLAG_ENDS,
    QUARANTINE_DIRECTORY,
    CommitHeader,
    decode_commit,
    segment_path,
)
from tickertape.journal.offline.snapshot import take_snapshot
from tickertape.journal.offline.verify import verify


class ChainBench(Bench):
    """A group commit bench that appends chains."""

    def batches(self, sizes: Iterable[int]) -> list[MessageBatch]:
        return [batch_from_bodies("t", [bytes(size)]) for size in sizes]

    def chain(self, *sizes: int) -> None:
        parts = []
        for batch in self.batches(sizes):
            parts.append((batch, Stamp(2, self.sequence + 1, 1000)))
            self.sequence += 1
        self.machine.append_chain(parts, self.now)
        self.collect()

    def room_of(self, *sizes: int) -> int:
        return sum(commit_bytes_of(batch) for batch in self.batches(sizes))

    def reserve(self, room: int) -> None:
        self.machine.reserve_segment(room, self.now)
        self.collect()

    def header(self) -> tuple[CommitHeader, bool]:
        """Return the commit in flight and whether its write is synced."""
        (job,) = [job for job in self.waiting if isinstance(job, WriteCommit)]
        header = decode_commit(bytes(job.buffers[0]))
        assert header is not None
        return header, job.sync


@pytest.mark.parametrize("policy", list(SyncPolicy))
def test_chain_is_persisted_and_synced_only_with_the_final_commit(policy: SyncPolicy) -> None:
    bench = ChainBench(policy)
    bench.chain(10, 20, 30)
    bench.append()
    expected = [(FLAG_CONTINUES, 0), (FLAG_CONTINUES, 0), (FLAG_ENDS, 3), (0, 4)]
    for flags, persisted in expected:
        header, sync = bench.header()
        assert (header.flags, header.messages) == (flags, 1)
        assert sync is (policy is SyncPolicy.ALWAYS and flags != FLAG_CONTINUES)
        assert header.synced_through == 7 + (3 if policy is SyncPolicy.ALWAYS and flags == 0 else 0)
        bench.ok(WriteCommit)
        assert len(bench.persisted) == persisted
        assert bench.machine.persisted_end == 70 + persisted
    assert [p.first_position for p in bench.persisted] == [70, 71, 72, 73]


def test_chain_of_one_commit_has_no_chain_flags() -> None:
    bench = ChainBench()
    bench.chain(10)
    header, sync = bench.header()
    assert (header.flags, sync) == (0, True)


def test_batches_before_and_after_a_chain_are_not_merged_into_the_chain() -> None:
    bench = ChainBench()
    bench.append()
    bench.append()
    bench.append()
    bench.chain(10, 10)
    bench.append()
    bench.append()
    found = []
    while bench.asked():
        header, _ = bench.header()
        found.append((header.first_position, header.messages, header.flags))
        bench.ok(WriteCommit)
    assert found == [(70, 1, 0), (71, 2, 0), (73, 1, FLAG_CONTINUES), (74, 1, FLAG_ENDS), (75, 2, 0)]


def test_due_sync_waits_for_the_end_of_a_chain() -> None:
    bench = ChainBench(SyncPolicy.INTERVAL, interval=0.5)
    bench.append()
    bench.ok(WriteCommit)
    bench.chain(10, 10, 10)
    bench.wait(0.6)
    assert bench.header()[0].flags == FLAG_CONTINUES
    bench.ok(WriteCommit)
    bench.ok(WriteCommit)
    assert bench.header()[0].flags == FLAG_ENDS
    bench.ok(WriteCommit)
    assert bench.asked() == ["SyncSegment"]
    bench.ok(SyncSegment)
    assert len(bench.persisted) == 4


def test_larger_segment_is_started_for_a_chain_that_needs_more_space() -> None:
    bench = ChainBench()
    sizes = [30_000] * 8
    room = bench.room_of(*sizes)
    assert not bench.machine.has_room(room)
    bench.reserve(room)
    prepared = bench.ok(PrepareSegment)
    assert isinstance(prepared, PrepareSegment)
    assert prepared.bytes > room > CAPACITY
    bench.ok(RollSegment)
    assert bench.machine.has_room(room)
    bench.chain(*sizes)
    while bench.asked():
        assert "RollSegment" not in bench.asked()
        bench.ok(WriteCommit)
    assert len(bench.persisted) == 8
    segments = {p.segment for p in bench.persisted}
    assert len(segments) == 1


def test_other_commits_are_written_while_space_for_a_chain_is_reserved() -> None:
    bench = ChainBench()
    room = bench.room_of(*[30_000] * 4)
    bench.reserve(room)
    assert bench.asked() == ["PrepareSegment"]
    bench.append()
    bench.ok(WriteCommit)
    assert len(bench.persisted) == 1
    bench.ok(PrepareSegment)
    bench.append()
    bench.ok(RollSegment)
    assert bench.machine.has_room(room), "in addition to the accepted batch"
    bench.ok(WriteCommit)
    assert len(bench.persisted) == 2


def test_disk_too_full_for_a_chain_still_accepts_small_commits() -> None:
    bench = ChainBench()
    room = bench.room_of(*[30_000] * 8)
    bench.reserve(room)
    bench.full()
    while "PrepareSegment" in bench.asked():
        bench.full()
    assert bench.is_full()
    assert not bench.machine.has_room(room)
    bench.reserve(0)
    bench.append()
    bench.ok(WriteCommit)
    assert len(bench.persisted) == 1
    assert bench.machine.failure is None


def test_cancelled_chain_reservation_clears_the_full_state_and_the_due_deadline() -> None:
    bench = ChainBench()
    room = bench.room_of(*[30_000] * 8)
    bench.reserve(room)
    bench.full()
    assert bench.is_full()
    bench.reserve(0)
    assert not bench.is_full(), "other commits fit"
    bench.wait(5.0)
    deadline = bench.machine.next_deadline()
    assert deadline is None or deadline > bench.mono, "a due deadline would keep the server busy"
    bench.reserve(room)
    bench.ok(PrepareSegment)
    bench.ok(RollSegment)
    assert bench.machine.has_room(room), "the disk has space"


def test_preallocation_dropped_for_a_failed_chain_is_repeated_immediately() -> None:
    bench = ChainBench()
    bench.append(CAPACITY * 5 // 8)
    bench.ok(WriteCommit)
    bench.ok(PrepareSegment)
    bench.reserve(bench.room_of(*[30_000] * 8))
    bench.full()
    bench.reserve(0)
    bench.ok(PrepareSegment)
    bench.append(CAPACITY // 2)
    bench.ok(RollSegment)
    bench.ok(WriteCommit)
    assert len(bench.persisted) == 2


def test_segment_roll_for_a_reservation_waits_for_the_end_of_a_chain() -> None:
    bench = ChainBench()
    bench.chain(10, 10, 10)
    bench.reserve(bench.room_of(*[30_000] * 8))
    bench.ok(PrepareSegment)
    for _ in range(2):
        assert bench.header()[0].flags == FLAG_CONTINUES
        bench.ok(WriteCommit)
    assert bench.header()[0].flags == FLAG_ENDS
    bench.ok(WriteCommit)
    bench.ok(RollSegment)


def test_chain_with_a_failed_final_commit_is_never_persisted() -> None:
    bench = ChainBench()
    bench.chain(10, 10)
    bench.ok(WriteCommit)
    bench.fails(WriteCommit)
    assert isinstance(bench.machine.failure, JournalFailed)
    assert (bench.persisted, bench.machine.persisted_end) == ([], 70)
    with pytest.raises(JournalFailed):
        bench.chain(10, 10)


def test_close_writes_the_whole_chain_before_the_seal() -> None:
    bench = ChainBench()
    bench.chain(10, 10, 10)
    bench.close()
    for _ in range(3):
        bench.ok(WriteCommit)
    assert bench.asked() == ["SealSegment"]
    assert len(bench.persisted) == 3


def test_group_commit_without_a_started_segment_has_no_space() -> None:
    bench = ChainBench(started=False)
    assert not bench.machine.has_room(1)
    bench.ok(PrepareSegment)
    bench.ok(StartSegment)
    assert bench.machine.has_room(1)


def test_persisted_chain_releases_the_source_buffers() -> None:
    written = Written(segment_bytes=1 << 16)
    written.publish()
    encoded = batch_from_bodies("orders", [bytes(100)] * 3).encode()
    places = [bytearray(encoded) for _ in range(3)]
    parts = [
        (MessageBatch.parse(memoryview(place)), Stamp(9, 1 + 3 * number, 1))
        for number, place in enumerate(places)
    ]
    written.journal.append_chain(parts, Now(9.0, 1))
    parts.clear()
    written.work()
    assert written.journal.commits.persisted_end == 12
    assert [part.first_position for part in written.journal.view.tail] == [0, 3, 6, 9]
    assert [part.batch.body(0) for part in written.journal.view.tail[1:]] == [bytes(100)] * 3
    for place in places:
        place.append(0)  # fails while a view exists, as closing a mapped file does


TORN = b"some bytes of the next one"


# -- incomplete chains ----------------------------------------------------------------------------------


def unfinished(seed: int = 1, *, jobs: int = 2) -> Written:
    """Three commits, a chain, a commit, and `jobs` commits of a chain of four."""
    written = Written(seed, segment_bytes=1 << 16)
    for _ in range(3):
        written.publish()
    written.transact(2, 3)
    written.publish()
    written.transact(4, 5, 6, 1, jobs=jobs)
    return written


@pytest.mark.parametrize("jobs", [1, 2, 3])
@pytest.mark.parametrize("torn", [False, True])
def test_recovery_removes_an_incomplete_chain_and_quarantines_only_unstaged_bytes(
    jobs: int, torn: bool
) -> None:
    written = unfinished(jobs=jobs)
    end = next_offset(written)
    if torn:
        handle = written.disk.open(segment_path(1))
        written.disk.write(handle, end, [TORN])
        written.disk.close(handle)
    messages = written.messages
    disk = written.disk.kill_clone()
    before = verify(disk)
    assert before.damage == []
    assert [note.what for note in before.notes if "without an end" in note.what] == [
        f"{sum((4, 5, 6)[:jobs])} messages of a transaction without an end. The next start cuts them off."
    ]
    assert sum(segment.messages for segment in before.segments) == messages
    written.start()
    assert written.journal.commits.accepted_end == written.journal.commits.persisted_end == messages
    after = verify(written.disk)
    assert after.damage == []
    if torn:
        name = f"{QUARANTINE_DIRECTORY}/0000000001-{end}.tail"
        assert written.disk.contents()[name] == TORN
        assert [note.file for note in after.notes] == [name]
    else:
        assert QUARANTINE_DIRECTORY not in written.disk.names(".")
        assert after.notes == []
    assert sum(segment.messages for segment in after.segments) == messages
    written.transact(2, 2)
    written.publish()
    assert written.journal.commits.persisted_end == written.messages == messages + 7
    assert verify(written.disk).damage == []


def test_complete_chain_survives_a_process_kill() -> None:
    written = Written(segment_bytes=1 << 16)
    written.publish()
    written.transact(4, 5, 6)
    written.start()
    assert written.journal.commits.persisted_end == written.messages == 18


@pytest.mark.parametrize("unsynced", [False, True])
def test_snapshot_does_not_show_an_incomplete_chain(unsynced: bool) -> None:
    for jobs in (1, 2, 3):
        written = unfinished(jobs=jobs)
        snapshot = take_snapshot(written.disk, unsynced=unsynced)
        assert snapshot.damage is None
        shown = snapshot.view.segments[-1].end_position
        assert shown == written.messages if unsynced else shown <= written.messages
        assert shown + snapshot.unproven == written.messages


def test_snapshots_during_writes_see_each_chain_completely_or_not_at_all() -> None:
    written = Written(segment_bytes=1 << 16)
    whole = {0}
    for _ in range(6):
        written.publish()
        whole.add(written.messages)
        counts = [2, 3, 1]
        written.transact(*counts, jobs=0)
        for _ in counts:
            for job in written.journal.commits.jobs():
                written.journal.commits.done(job, None, written._executor.run(job), written._now())
            for unsynced in (False, True):
                snapshot = take_snapshot(written.disk, unsynced=unsynced)
                end = snapshot.view.segments[-1].end_position if snapshot.view.segments else 0
                assert end in whole | {written.messages + sum(counts)}
            assert verify(written.disk).damage == []
        written.messages += sum(counts)
        whole.add(written.messages)
        written.work()


def test_power_loss_leaves_each_chain_complete_or_absent() -> None:
    seen = set()
    for seed in range(60):
        written = unfinished(seed, jobs=2)
        rest = written.journal.commits.jobs()
        rng = Random(seed)
        if rng.random() < 0.7:
            for job in rest:
                written.journal.commits.done(job, None, written._executor.run(job), written._now())
            rest = written.journal.commits.jobs()
            if rng.random() < 0.6:
                for job in rest:
                    written.journal.commits.done(job, None, written._executor.run(job), written._now())
        persisted = written.journal.commits.persisted_end
        written.disk = written.disk.crash_clone(rng)
        assert verify(written.disk).damage == []
        written.start()
        end = written.journal.commits.persisted_end
        assert end in (written.messages, written.messages + 16)
        assert end >= persisted
        seen.add(end - written.messages)
    assert seen == {0, 16}
