"""Simulation of checkpoints: after each start the records are those of all persisted messages."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.sow_checkpoint_world import CheckpointWorld
from tickertape.engine.sow import checkpoint_writer
from tickertape.journal.commit.group_commit import SyncPolicy


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writer, "sow_piece_slots", 3)
    monkeypatch.setattr(checkpoint_writer, "sow_piece_bytes", 400)


def run(seed: int, counts: Counter[str]) -> None:
    policy = (SyncPolicy.ALWAYS, SyncPolicy.INTERVAL)[seed % 2]
    world = CheckpointWorld(seed, policy=policy)
    for _ in range(5):
        operations = world.rng.choice((40, 150, 400, 10**9))
        finished = world.live(world.rng.choice((30, 80)), operations)
        counts["crashes"] += not finished
        if finished and world.rng.random() < 0.5:
            counts["clean stops"] += world.stop(world.rng.choice((3, 8, 20, 10**9)))
        counts["removed segments"] += world.removed
        counts["checkpoints"] += world.broker.state_checkpoints.written
        world.restart(power=world.rng.random() < 0.6)
        for name, plan in world.plan.topics.items():
            if plan.manifest is not None:
                counts[f"{name} loaded"] += 1
                counts["deltas loaded"] += len(plan.files) - 1
                counts["moved manifests"] += plan.manifest.end != plan.manifest.files[-1].end


@pytest.mark.timeout(300)
def test_records_after_each_start_are_those_of_all_persisted_messages() -> None:
    counts: Counter[str] = Counter()
    for seed in range(20):
        run(seed, counts)
    assert min(counts[name] for name in ("crashes", "removed segments", "checkpoints")) > 20
    assert min(counts[name] for name in ("orders loaded", "rates loaded", "deltas loaded")) > 8
    assert counts["moved manifests"] > 1
    assert counts["clean stops"] > 1


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 1_000, 30))
def test_records_after_many_schedules_are_those_of_all_persisted_messages(seed: int) -> None:
    for one in range(seed, seed + 30):
        run(one, Counter())


def crash_at(operations: int, *, power: bool) -> bool:
    """Run one program up to a disk call, crash, and check two starts. Return whether it ended before."""
    world = CheckpointWorld(11)
    finished = world.live(70, operations)
    if finished:
        assert world.removed
        assert world.broker.state_checkpoints.written > 3
    world.restart(power=power)
    world.live(5, 10**9)
    world.restart(power=power)
    return finished


@pytest.mark.parametrize("part", range(2))
def test_crash_at_each_disk_call_of_a_program_loses_no_record(part: int) -> None:
    """Every run has each 24th call, and --full all of them."""
    operations = part
    while not crash_at(operations, power=bool(part)):
        operations += 24


@pytest.mark.full
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("part", range(8))
def test_crash_at_all_disk_calls_of_a_program_loses_no_record(part: int, power: bool) -> None:
    operations = part
    while not crash_at(operations, power=power):
        operations += 8


def crash_in_stop(operations: int, *, power: bool, accepted: bool) -> bool:
    """Stop cleanly up to a disk call, crash, and check two starts. Return whether the stop ended before.

    `accepted`: the last frame is accepted only when the stop starts."""
    world = CheckpointWorld(12)
    assert world.live(70, 10**9)
    peer = world.connect("q")
    world.settle()
    world.publish_some(peer)
    if not accepted:
        world.settle()
    finished = world.stop(operations)
    world.restart(power=power)
    if finished:
        for plan in world.plan.topics.values():
            assert plan.manifest is not None
            assert plan.manifest.start == world.broker.journal.commits.persisted_end
    world.live(5, 10**9)
    world.restart(power=power)
    return finished


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("power", [False, True])
def test_crash_at_each_disk_call_of_a_clean_stop_loses_no_record(power: bool, accepted: bool) -> None:
    operations = 0
    while not crash_in_stop(operations, power=power, accepted=accepted):
        operations += 1
    assert operations > 10
