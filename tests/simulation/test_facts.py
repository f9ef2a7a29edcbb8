"""Facts of a log through removals, restarts and power losses, against a fold over all rows."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.facts_world import PLACES_MAX, SNAPSHOT_RECORDS, STARTS_MAX, FactsWorld
from tickertape.engine.replication import log_facts, places
from tickertape.journal.format import link_records, replication_records

SEEDS = 12
SEEDS_FULL = 2_000


@pytest.mark.parametrize("part", range(2))
def test_facts_equal_a_fold_over_all_rows_through_removals_and_power_losses(
    part: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "link_places_max", PLACES_MAX)
    monkeypatch.setattr(link_records, "link_places_max", PLACES_MAX)
    monkeypatch.setattr(places, "link_starts_max", STARTS_MAX)
    monkeypatch.setattr(replication_records, "link_starts_max", STARTS_MAX)
    monkeypatch.setattr(log_facts, "link_snapshot_records", SNAPSHOT_RECORDS)
    counts: Counter[str] = Counter()
    seeds = SEEDS_FULL if full else SEEDS
    for seed in range(part * seeds // 2, (part + 1) * seeds // 2):
        world = FactsWorld(seed, counts)
        for _ in range(7):
            for _ in range(world.rng.randrange(5, 40)):
                world.step()
            world.stop() if world.rng.random() < 0.3 else world.crash()
        counts["seeds"] += 1
    for name in (
        "removals",
        "records lost",
        "records with all places",
        "places of removed rows",
        "starts after removals",
        "reporters",
        "reports",
        "checks with reporters",
        "checks with origins",
        "checks with dropped starts",
        "clean stops",
        "crashes",
    ):
        assert counts[name], (name, counts)
