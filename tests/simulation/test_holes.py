"""Holes of publishers through fills, removals, restarts and power losses, against sets of integers."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.hole_world import HoleWorld
from tickertape.journal.commit import accumulator

SEEDS = 16
SEEDS_FULL = 1_000


@pytest.mark.parametrize("part", range(4))
def test_holes_equal_sets_of_integers_through_removals_and_power_losses(
    part: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part % 2:  # commits end because of their size, while the disk is busy
        monkeypatch.setattr(accumulator, "commit_bytes_max", 8_000)
    counts: Counter[str] = Counter()
    seeds = SEEDS_FULL if full else SEEDS
    for seed in range(part * seeds // 4, (part + 1) * seeds // 4):
        world = HoleWorld(seed, counts)
        for _ in range(4):
            for _ in range(world.rng.randrange(5, 60)):
                world.step()
            world.stop() if world.rng.random() < 0.3 else world.crash()
        world.check_log()
        counts["seeds"] += 1
    for name in (
        "late",
        "duplicates",
        "records of holes",
        "commits with records of several",
        "removals",
        "expired",
        "not expired in a hole",
        "open holes at a check",
        "rows lost",
        "clean stops",
        "claims opened",
        "chains",
        "begun runs",
        "commits of several batches with records",
    ):
        assert counts[name], (name, counts)
