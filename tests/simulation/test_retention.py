"""Retention and crashes: duplicates stay known, names stay bound, and readers miss no stored message."""

from __future__ import annotations

import contextlib
import errno
from collections import Counter
from random import Random

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.simulation.journal_world import FailingDisk, PowerLost, Trace, drive, read_log
from tickertape.base.names import publisher_id
from tickertape.engine.runtime.publisher_ids import load_publishers
from tickertape.journal.commit.jobs import DiskJobExecutor, RetireSegments
from tickertape.journal.format.identity import read_identity
from tickertape.journal.format.segment import JOURNAL_DIRECTORY
from tickertape.journal.journal import Journal
from tickertape.journal.recovery.recovery import RecoveredJournal, recover_journal
from tickertape.journal.retention import RetentionPolicy
from tickertape.testing.disk import StrictDisk

SEGMENT_BYTES = 8_192
FOUR_SEGMENTS = RetentionPolicy(size_bytes=4 * SEGMENT_BYTES)


def _fill(world: EngineWorld, peers: list[Peer], segments: int) -> None:
    """Publish until the log has `segments` segments, without any job of retention."""
    while world.broker.journal.view.segments[-1].number < segments:
        for peer in peers:
            peer.publish("t", [world.rng.randbytes(300)] * 3)
            while world.jobs and not isinstance(world.jobs[0], RetireSegments):
                world.run_job()


def _removal(seed: int) -> tuple[EngineWorld, RetireSegments]:
    """Return a simulation in which the disk is about to remove segments, and that job."""
    world = EngineWorld(seed, segment_bytes=SEGMENT_BYTES, retention=RetentionPolicy(age_seconds=3600))
    early, late = world.connect("early"), world.connect("late")
    early.publish("t", [b"only here"])
    _fill(world, [late], 6)
    late.publish("t", [b"last"])
    world.settle()
    world.wake(3_700)
    while world.broker.has_work or world.reads:
        world.run_read() if world.reads else world.work()
    while not isinstance(world.jobs[0], RetireSegments):
        world.run_job()
    job = world.jobs[0]
    assert isinstance(job, RetireSegments)
    return world, job


def _opened(disk: StrictDisk) -> tuple[RecoveredJournal, Journal]:
    recovered = recover_journal(disk, read_identity(disk).journal_id)
    world = EngineWorld(0)
    return recovered, Journal(recovered, world.now(), segment_bytes=SEGMENT_BYTES)


def _check_opened(disk: StrictDisk, highest: dict[int, int], positions: dict[int, tuple[int, int]]) -> bool:
    """Open the remains of a crash, and return whether the removal took effect."""
    recovered, journal = _opened(disk)
    assert recovered.publishers == highest
    registry = drive(disk, load_publishers(journal))
    assert all(registry.is_bound(publisher_id(name)) for name in ("early", "late"))
    first = journal.view.first_position
    found = {
        position + i: (batch.publisher(i), batch.sequence(i))
        for position, batch in read_log(journal, disk)
        for i in range(batch.count)
    }
    assert found == {position: key for position, key in positions.items() if position >= first}
    return recovered.retired is not None


def _operations(world: EngineWorld, job: RetireSegments) -> int:
    counted = FailingDisk(world.disk.kill_clone(), operations := 10**9, Trace())
    DiskJobExecutor(counted, lambda: 0).run(job)
    assert counted.left is not None
    return operations - counted.left


def _all_positions(world: EngineWorld) -> dict[int, tuple[int, int]]:
    """By position, read past the view: from the files, before any is removed."""
    disk = world.disk.kill_clone()
    recovered = recover_journal(disk, read_identity(disk).journal_id)
    journal = Journal(recovered, world.now(), segment_bytes=SEGMENT_BYTES)
    return {
        position + i: (batch.publisher(i), batch.sequence(i))
        for position, batch in read_log(journal, disk)
        for i in range(batch.count)
    }


def test_segment_removal_with_a_crash_before_any_operation_loses_nothing() -> None:
    world, job = _removal(1)
    positions = _all_positions(world)
    highest = dict(world.broker.journal.persisted_highest)
    assert len(job.numbers) == 5
    operations = _operations(world, job)
    assert operations == 7 + len(job.numbers)
    outcomes: Counter[bool] = Counter()
    leftovers = 0
    for operation in range(operations + 1):
        for chance in range(6):
            disk = world.disk.kill_clone()
            try:
                DiskJobExecutor(FailingDisk(disk, operation, Trace()), lambda: 0).run(job)
                assert operation == operations
            except PowerLost:
                pass
            rng = Random(100 * operation + chance)
            disk = disk.crash_clone(rng) if chance else disk.kill_clone(rng)
            counts = _check_opened(disk, highest, positions)
            outcomes[counts] += 1
            recovered = recover_journal(disk, read_identity(disk).journal_id)
            leftovers += bool(recovered.leftovers)
            # The next run removes the leftovers, and the run after it opens too.
            if recovered.leftovers:
                assert recovered.retired is not None
                DiskJobExecutor(disk, lambda: 0).run(
                    RetireSegments(retired=recovered.retired, numbers=recovered.leftovers)
                )
                disk = disk.crash_clone(rng)
                assert _check_opened(disk, highest, positions)
                assert not recover_journal(disk, read_identity(disk).journal_id).leftovers
    assert outcomes[True] > 5
    assert outcomes[False] > 5
    assert leftovers > 5
    assert world.counts["removal_kept"] > 5
    assert world.counts["removal_lost"] > 5


@pytest.mark.parametrize("operation", ["sync", "write", "rename", "sync_directory", "remove", "truncate"])
def test_segment_removal_that_fails_is_reported_and_retried(operation: str) -> None:
    world, job = _removal(2)
    highest = dict(world.broker.journal.persisted_highest)
    positions = _all_positions(world)
    world.disk.fail(operation, 1, errno.EIO)
    world.run_job()
    assert world.told[-1].name == "retention_failed"
    assert world.broker.journal.commits.failure is None, "the log goes on"
    again = world.connect("late")
    again.publish("t", [b"more"])
    world.settle()
    assert again.acked_sequence == again.next_sequence - 1
    world.wake(61)
    world.settle()
    assert world.told[-1].name == "segments_removed"
    names = world.disk.names(JOURNAL_DIRECTORY)
    assert not {f"{number:010d}.segment" for number in job.numbers} & set(names)
    highest[publisher_id("late")] += 1
    positions[max(positions) + 1] = publisher_id("late"), highest[publisher_id("late")]
    assert _check_opened(world.disk.crash_clone(Random(3)), highest, positions)


def _consecutive(sequences: list[int]) -> bool:
    return sequences == list(range(sequences[0], sequences[0] + len(sequences))) if sequences else True


def _live(world: EngineWorld, names: list[str], steps: int) -> None:
    rng = world.rng
    publishers = {name: world.connect(name) for name in names}
    readers = [world.connect(f"reader{number}") for number in range(2)]
    for number in range(steps):
        choice = rng.random()
        if choice < 0.3:
            name = rng.choice(names)
            if publishers[name].logged_on is not None:
                publishers[name].publish(f"of {name}", [rng.randbytes(rng.choice((9, 400)))] * 3)
        elif choice < 0.36:
            reader = rng.choice(readers)
            reader.subscribe(
                f"s{number}", f"of {rng.choice(names)}", bookmark="0", credit=rng.choice((500, 9_000))
            )
        elif choice < 0.45:
            reader = rng.choice(readers)
            for sub_id in list(reader.owed_credit):
                reader.give_credit(sub_id)
        elif choice < 0.5:
            world.wake(rng.choice((0.05, 61.0)))
        else:
            world.step()
    for reader in readers:
        for sub_id, heard in reader.heard.items():
            assert _consecutive([h.sequence for h in heard]), f"{sub_id} has a gap"
            assert not any("ended" in mark for mark in reader.marks[sub_id])


REGRESSIONS = ((134,), (), ())
"""134: the directory with retired.bin is not synced, and the next run removes the segments."""


def _cut_short(world: EngineWorld) -> None:
    """Disconnect all readers, then lose power during a removal of segments, if one is due."""
    for conn in list(world.broker.sessions):
        world.broker.disconnected(conn)
    world.wake(61.0)
    while world.broker.has_work or world.reads:
        world.run_read() if world.reads else world.work()
    for job in world.jobs:
        if isinstance(job, RetireSegments):
            world.counts["cut short"] += 1
            with contextlib.suppress(PowerLost, OSError):
                disk = FailingDisk(world.disk, world.rng.choice((3, 6, 7, 8, 9)), Trace())
                DiskJobExecutor(disk, lambda: 0).run(job)


def _reopened(world: EngineWorld) -> None:
    journal = world.broker.journal
    retired = journal.view.retired
    gone = {} if retired is None else retired.highest.as_dict()
    expected = journal.view.first_position
    sequences: dict[int, list[int]] = {}
    for position, batch in read_log(journal, world.disk):
        assert position == expected
        expected += batch.count
        for i in range(batch.count):
            sequences.setdefault(batch.publisher(i), []).append(batch.sequence(i))
    for publisher, sequence in world.promised:
        assert journal.highest[publisher] >= sequence, "a duplicate would be stored again"
        if sequence > gone.get(publisher, 0):
            assert sequence in set(sequences.get(publisher, ())), "acknowledged messages are in the log"
    for name in ("p0", "p1", "p2"):
        publisher = publisher_id(name)
        mine = sequences.get(publisher, [])
        assert _consecutive(mine)
        assert not mine or mine[0] == gone.get(publisher, 0) + 1, "the log starts where the removed part ends"
        if publisher in journal.highest:
            assert world.broker._writer._registry.is_bound(publisher)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_retention_through_crashes_and_failures_keeps_names_and_sequences(part: int, full: bool) -> None:
    counts: Counter[str] = Counter()
    seeds = 400 if full else 12
    for seed in (*range(part * seeds // 3, (part + 1) * seeds // 3), *REGRESSIONS[part]):
        policies = FOUR_SEGMENTS, RetentionPolicy(age_seconds=30), RetentionPolicy(age_seconds=1)
        world = EngineWorld(
            seed,
            counts=counts,
            segment_bytes=SEGMENT_BYTES,
            retention=policies[seed % 3],
        )
        try:
            for _ in range(4):
                world.small_tail()
                _live(world, ["p0", "p1", "p2"], world.rng.randrange(40, 250))
                if world.rng.random() < 0.3:
                    operation = world.rng.choice(("sync", "write", "rename", "remove", "sync_directory"))
                    world.disk.fail(operation, world.rng.randrange(1, 4), errno.EIO)
                    for _ in range(10):
                        world.step()
                _cut_short(world)
                crash = world.rng.random() < 0.7
                world.disk = world.disk.crash_clone(world.rng) if crash else world.disk.kill_clone()
                world.fatal = None
                world.open()
                counts["left over"] += bool(world.broker.journal.leftovers)
                _reopened(world)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    for event in ("segments_removed", "retention_held", "left over", "cut short", "crash", "kill"):
        assert counts[event], f"the runs do not cover {event}"
