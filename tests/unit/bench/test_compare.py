"""Comparison of two checkouts: ratios, and the interval of their median."""

from __future__ import annotations

import pytest

from tests.bench.compare import interval, ratio
from tests.bench.registry import Bench


def a_bench(unit: str) -> Bench:
    return Bench("m.run", "group", "a title", unit, lambda _: pytest.fail("nothing runs"), repeat=1)


@pytest.mark.parametrize(("unit", "expected"), [("msg/s", 2.0), ("us", 0.5)])
def test_ratio_of_twice_the_value_depends_on_the_unit(unit: str, expected: float) -> None:
    assert ratio(a_bench(unit), new=20.0, old=10.0) == expected


def test_interval_holds_the_median_and_narrows_with_more_rounds() -> None:
    ratios = [0.9, 1.1, 0.95, 1.05, 1.0, 1.02, 0.98]
    low, high = interval(ratios)
    assert 0.9 <= low <= 1.0 <= high <= 1.1
    narrow_low, narrow_high = interval(ratios * 10)
    assert narrow_high - narrow_low < high - low


def test_interval_of_a_slower_checkout_does_not_reach_the_bound() -> None:
    assert interval([0.9] * 20 + [0.91] * 20)[1] < 0.98
