"""Publishers with stores against an engine whose machine loses power: acknowledged is kept, everything is
there once.
"""

from __future__ import annotations

import errno
from collections import Counter

import pytest

from tests.simulation.engine_world import EngineWorld
from tests.simulation.stores import Store, everything_once

SEEDS = 60
SEEDS_FULL = 1_500


def _live(world: EngineWorld, stores: list[Store]) -> None:
    rng = world.rng
    for _ in range(rng.randrange(10, 80)):
        if rng.random() < 0.4:
            store = rng.choice(stores)
            store.publish(
                rng.choice("ab"), [rng.randbytes(rng.choice((0, 9, 400))) for _ in range(rng.choice((1, 4)))]
            )
        else:
            world.step()
        for store in stores:
            store.hear()


@pytest.mark.behaviour(9)
@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_acknowledged_means_retained_through_power_losses(part: int, full: bool) -> None:
    counts: Counter[str] = Counter()
    seeds = SEEDS_FULL if full else SEEDS
    for seed in range(part * seeds // 5, (part + 1) * seeds // 5):
        world = EngineWorld(seed, counts=counts, segment_bytes=16_384)
        stores = [Store(f"p{i}") for i in range(3)]
        for store in stores:
            store.connect(world)
        for _ in range(3):
            _live(world, stores)
            if world.jobs and world.rng.random() < 0.5:
                # Power fails during the job: a part of its data is written, none of it is synced.
                world.disk.fail(world.rng.choice(("sync", "write")), 1, errno.EIO)
                world.run_job()
                counts["power lost inside a job"] += world.fatal is not None
                for store in stores:
                    store.hear()
            world.disk = (
                world.disk.crash_clone(world.rng) if world.rng.random() < 0.8 else world.disk.kill_clone()
            )
            world.fatal = None
            world.open()
            counts["unacknowledged at the crash"] += sum(len(store.kept) for store in stores)
            for store in stores:
                store.connect(world)
        world.settle()
        everything_once(world, stores, f"seed {seed}")
    assert counts["crash"] > 8
    assert counts["kill"] > 1
    assert counts["power lost inside a job"] > 3
    assert counts["persisted messages sent again"] > 0
    assert counts["sector_lost"] > 8
    assert counts["unacknowledged at the crash"] > 20
