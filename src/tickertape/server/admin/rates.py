"""Rates: counts of the last seconds, per second. It reads no clock."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from tickertape.engine.runtime.statistics import Statistics
from tickertape.server.admin.schema import Rates

WINDOW_SECONDS: Final = 10
"""Over how long rates are taken, at one sample a second."""
_SHORTEST_SECONDS: Final = 0.5


class _Sample(NamedTuple):
    at: float
    persisted_messages: int
    persisted_bytes: int
    sent_messages: int
    sent_bytes: int
    commits: int


class Sampler:
    """Samples counters once a second; may run on another thread than the one that counts."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._samples: deque[_Sample] = deque(maxlen=WINDOW_SECONDS + 1)

    def sample(self, now: float) -> None:
        """Take a sample at `now`, monotonic seconds."""
        self._samples.append(self._now(now))

    def rates(self, now: float) -> Rates | None:
        """Since the oldest sample; None when that is too short ago."""
        if not self._samples or now - self._samples[0].at < _SHORTEST_SECONDS:
            return None
        first, last = self._samples[0], self._now(now)
        seconds = last.at - first.at
        persisted, size, sent, sent_bytes, commits = (
            round((after - before) / seconds, 3) for before, after in zip(first[1:], last[1:], strict=True)
        )
        return Rates(
            window_seconds=round(seconds, 3),
            persisted_messages=persisted,
            persisted_bytes=size,
            sent_messages=sent,
            sent_bytes=sent_bytes,
            commits=commits,
        )

    def _now(self, now: float) -> _Sample:
        counts = self._statistics
        return _Sample(
            now,
            counts.persisted_messages,
            counts.persisted_bytes,
            counts.sent_messages,
            counts.sent_bytes,
            counts.commits,
        )
