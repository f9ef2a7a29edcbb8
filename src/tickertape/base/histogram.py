"""Histogram of durations with fixed buckets: counts and percentiles."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SECONDS_BUCKETS: Final = (
    *(0.000_05, 0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.000_75),
    *(0.001, 0.002, 0.003, 0.005, 0.007_5, 0.01, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0),
)  # fmt: skip
"""Inclusive upper bounds in seconds. One more bucket counts longer durations."""


class Histogram:
    """Histogram of durations in seconds, for one writer thread. Other threads may miss one duration."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS_BUCKETS) + 1)
        """Durations per bucket. The last bucket counts those above all bounds."""
        self.total = 0.0
        """Sum of all durations, in seconds."""
        self.highest = 0.0
        """Longest duration, in seconds."""

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1
        self.total += seconds
        if seconds > self.highest:
            self.highest = seconds

    @property
    def count(self) -> int:
        """Return the number of durations."""
        return sum(self.counts)

    def percentile(self, share: float) -> float | None:
        """Return an upper bound for the `share` quantile (0 to 1), or None for an empty histogram.

        The bound is the upper end of its bucket, but never above the longest duration.
        """
        counts = self.counts[:]
        wanted = share * sum(counts)
        reached = 0
        for bound, count in zip((*SECONDS_BUCKETS, self.highest), counts, strict=True):
            reached += count
            if count and reached >= wanted:
                return min(bound, self.highest)
        return None
