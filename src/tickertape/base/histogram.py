"""Histogram of durations with fixed buckets: counts and percentiles."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SECONDS_BUCKETS: Final = (
    *(0.000_05, 0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.000_75),
    *(0.001, 0.002, 0.003, 0.005, 0.007_5, 0.01, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0),
)  # fmt: skip
"""Upper bounds, inclusive; above the last there is one bucket more."""


class Histogram:
    """Counts of durations in seconds. One thread adds; readers in other threads miss at most one duration."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS_BUCKETS) + 1)
        """Durations in each bucket; the last one counts those above all bounds."""
        self.total = 0.0
        """Sum of all durations."""
        self.highest = 0.0
        """The longest one."""

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1
        self.total += seconds
        if seconds > self.highest:
            self.highest = seconds

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def percentile(self, share: float) -> float | None:
        """Return an upper bound of what `share` (0 to 1) of the durations took: the end of the bucket in
        which that one lies, and never more than the longest; None when there was none."""
        counts = self.counts[:]
        wanted = share * sum(counts)
        reached = 0
        for bound, count in zip((*SECONDS_BUCKETS, self.highest), counts, strict=True):
            reached += count
            if count and reached >= wanted:
                return min(bound, self.highest)
        return None
