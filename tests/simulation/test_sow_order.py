"""The state of the world on instances with different logs: each equals the oracle after each commit."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from tests.helpers.tiers import parts, seeds_of
from tests.simulation.sow_order_model import OrderWorld

SCHEDULES_A_PART: Final = 400
PARTS: Final = 20
MUST_HAPPEN: Final = {
    1: {
        "Published: record": 5_000,
        "Deleted: removed": 1_500,
        "Expired: removed": 300,
        "deletes without candidates": 500,
        "expiries after the record changed": 30,
    },
    3: {
        "Published: record": 10_000,
        "Published: none": 3_000,
        "Published: restated": 40,
        "Published: removed": 10,
        "Deleted: none": 3_000,
        "Deleted: removed": 3_000,
        "Deleted: restated": 10,
        "Expired: removed": 1_000,
        "copies": 500,
        "deletes without candidates": 500,
        "expiries after the record changed": 100,
        "forgotten keys": 4_000,
        "late rows": 800,
    },
}
"""Events by number of instances, and how often each must happen in the schedules of every run."""


@pytest.mark.parametrize("part", parts(PARTS))
@pytest.mark.parametrize("instances", MUST_HAPPEN)
def test_records_equal_the_oracle_after_each_commit(instances: int, part: int) -> None:
    counts: Counter[str] = Counter()
    seeds = range(SCHEDULES_A_PART * part, SCHEDULES_A_PART * (part + 1))
    for seed in seeds_of(seeds, counts, MUST_HAPPEN[instances]):
        try:
            OrderWorld(seed, instances, counts).run()
        except AssertionError as error:
            raise AssertionError(f"schedule {seed} with {instances} instances: {error}") from error
