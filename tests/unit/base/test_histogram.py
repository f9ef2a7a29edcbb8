"""Histogram of durations: counts, sums, and percentiles as upper bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.base.histogram import SECONDS_BUCKETS, Histogram


def test_empty_histogram_has_no_percentile() -> None:
    assert Histogram().percentile(0.5) is None
    assert Histogram().count == 0


def test_histogram_buckets_rise_with_inclusive_bounds() -> None:
    assert list(SECONDS_BUCKETS) == sorted(set(SECONDS_BUCKETS))
    histogram = Histogram()
    histogram.add(SECONDS_BUCKETS[3])
    histogram.add(SECONDS_BUCKETS[-1] * 2)
    assert (histogram.counts[3], histogram.counts[-1]) == (1, 1)


@given(st.lists(st.floats(0, 100), min_size=1), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_percentile_is_an_upper_bound_of_the_requested_share(durations: list[float], share: float) -> None:
    histogram = Histogram()
    for seconds in durations:
        histogram.add(seconds)
    bound = histogram.percentile(share)
    assert bound is not None
    assert sum(seconds <= bound for seconds in durations) >= share * len(durations)
    assert bound <= histogram.highest == max(durations)
    assert histogram.count == len(durations)
    assert histogram.total == pytest.approx(sum(durations))
