"""Source of a link over a log of several origins, against a judgement of each row by itself."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.link_source_world import LinkSourceWorld
from tickertape.engine.replication import routes
from tickertape.engine.replication.source import link_source, named_rows, routed_log

SEEDS = 40
SEEDS_FULL = 2_000


@pytest.mark.parametrize("part", range(4))
def test_link_sends_names_and_leaves_out_the_rows_of_a_naive_judgement(
    part: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part % 2:  # a step has a few rows
        for module in (routed_log, named_rows):
            monkeypatch.setattr(module, "link_step_bytes", 500)
        monkeypatch.setattr(link_source, "link_step_frames_max", 2)
        monkeypatch.setattr(routes, "filter_piece_steps_max", 8)
    counts: Counter[str] = Counter()
    seeds = SEEDS_FULL if full else SEEDS
    for seed in range(part * seeds // 4, (part + 1) * seeds // 4):
        world = LinkSourceWorld(seed, counts)
        for _ in range(world.rng.choice((0, 200))):
            world.append()
            world.log.run_job()
            world.prune() if world.rng.random() < 0.1 else None
        world.connect()
        for _ in range(world.rng.choice((50, 400, 900))):
            world.step()
        world.finish()
        counts["seeds"] += 1
    for name in (
        "answered rows", "answers of several rows", "disconnects", "frames of ends", "frames of holes",
        "frames of names", "frames of runs", "links behind removed rows", "names of several messages",
        "oversized", "reads", "removals", "resynced", "steps without credit", "stored late",
        "windows of one byte",
    ):  # fmt: skip
        assert counts[name], (name, counts)
