"""Product subscribers that fail over between linked engines, against sets of messages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.simulation.linked_subscribers import LinkedSubscribers

SEEDS = 24
SEEDS_FULL = 1_500


def test_subscribers_that_fail_over_miss_nothing_and_get_nothing_twice(full: bool, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS_FULL if full else SEEDS):
        directory = tmp_path / str(seed)
        directory.mkdir()
        world = LinkedSubscribers(seed, counts, directory)
        world.run(world.rng.choice((100, 200)))
        world.heal()
        world.close()
    for name in (
        "pair", "chain", "mesh", "one way", "moved subscribers", "restarted subscribers",
        "redelivered to subscribers", "late to subscribers", "expired subscribers", "delivered messages",
        "power losses", "kills", "cuts", "history_lost",
    ):  # fmt: skip
        assert counts[name], (name, counts)
