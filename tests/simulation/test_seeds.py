"""Seeds of a simulation that has many parts: the first part shows that each event happens."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.helpers.tiers import seeds_of


def seeds_run(part: int, every: int) -> list[int]:
    """Return the seeds that part `part` of 10 runs with an event in every `every`-th seed."""
    counts: Counter[str] = Counter()
    seeds = []
    for seed in seeds_of(range(10 * part, 10 * part + 10), counts, {"rare": 2}):
        seeds.append(seed)
        counts["rare"] += (seed + 1) % every == 0
    return seeds


@pytest.mark.parametrize(("every", "last"), [(1, 9), (5, 9), (6, 11), (15, 29)])
def test_first_part_of_seeds_continues_until_each_event_has_happened(every: int, last: int) -> None:
    assert seeds_run(0, every) == list(range(last + 1))


def test_first_part_of_seeds_without_an_event_fails() -> None:
    with pytest.raises(AssertionError, match="too seldom"):
        seeds_run(0, 16)


def test_other_parts_of_seeds_may_miss_an_event() -> None:
    assert seeds_run(2, 100) == list(range(20, 30))
