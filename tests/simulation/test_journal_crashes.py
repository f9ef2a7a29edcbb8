"""Simulated crashes of one journal: acknowledged messages are stored once, in order, for good."""

from __future__ import annotations

import errno
from collections import Counter
from random import Random

import pytest

from tests.simulation.journal_world import World
from tickertape.journal.commit.group_commit import SyncPolicy

CRASHES = 400
CRASHES_FULL = 20_000
SHARE = {SyncPolicy.ALWAYS: 0.4, SyncPolicy.INTERVAL: 0.3, SyncPolicy.NEVER: 0.3}
ALWAYS_HAPPENS = (
    "sector_kept",
    "sector_lost",
    "sector_zeroed",
    "name_lost",
    "torn tails",
    "chains",
    "chains lost as a whole",
    "chains kept as a whole",
    "chains cut off",
    "a segment begun for a chain",
    "no space for a chain",
    "rolls",
    "no space",
    "refused while full",
    "clean stops",
    "kills",
    "power lost at work",
    "power lost while opening",
    "fault_sync",
    "fault_write",
    "sectors_dropped",
    "dropped_sector_lost",
    "failures latched",
    "start ended by a disk error",
)
HAPPENS_UNDER = {
    SyncPolicy.ALWAYS: ("marks", "unacknowledged messages kept"),
    SyncPolicy.INTERVAL: ("marks", "syncs by interval"),
    SyncPolicy.NEVER: (),
}


def run_simulation(seed: int, policy: SyncPolicy, counts: Counter[str]) -> World:
    """Simulate several runs of one journal, most with a power loss at the end."""
    world = World(
        seed, policy=policy, segment_bytes=Random(seed).choice((8_192, 16_384, 65_536)), counts=counts
    )
    rng = Random(-seed)
    for _ in range(rng.randrange(2, 6)):
        if rng.random() < 0.15:
            world.fail(
                rng.choice(("sync", "write")), rng.randrange(1, 25), rng.choice((errno.EIO, errno.ENOSPC))
            )
        inside = rng.random() < 0.5
        world.live(rng.randrange(5, 90), rng.randrange(1, 80) if inside else 10**9)
        if rng.random() < 0.3:
            world.kill()
            if rng.random() < 0.3:
                world.live(rng.randrange(10), 10**9)
        if rng.random() < 0.9:
            world.crash()
        while rng.random() < 0.3:
            world.live(0, rng.randrange(1, 20))
            (world.crash if rng.random() < 0.8 else world.kill)()
    world.check()
    return world


def run_crashes(policy: SyncPolicy, crashes: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    seed = 1
    while counts["power losses"] < crashes:
        try:
            run_simulation(seed, policy, counts)
        except BaseException as error:
            error.add_note(f"seed {seed}, policy {policy.value}, after {counts['power losses']} power losses")
            raise
        seed += 1
    return counts


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", list(SyncPolicy), ids=lambda policy: policy.value)
def test_acknowledged_messages_after_every_crash_are_in_the_log(policy: SyncPolicy, full: bool) -> None:
    counts = run_crashes(policy, round((CRASHES_FULL if full else CRASHES) * SHARE[policy]))
    silent = [event for event in ALWAYS_HAPPENS + HAPPENS_UNDER[policy] if not counts[event]]
    assert not silent, f"the runs do not cover these events: {silent}"


def test_journal_simulation_with_equal_seeds_makes_equal_calls() -> None:
    digests = [run_simulation(seed, SyncPolicy.ALWAYS, Counter()).trace.digest() for seed in (5, 5, 6)]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]
