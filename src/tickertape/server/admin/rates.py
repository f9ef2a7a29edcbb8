"""Rates: counts of the last seconds, per second. It reads no clock."""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import Final

from tickertape.engine.runtime.statistics import Statistics
from tickertape.server.admin.schema import Rates

WINDOW_SECONDS: Final = 10
"""Over how long rates are taken, at one sample a second."""
_SHORTEST_SECONDS: Final = 0.5


_COUNTED: Final = ("persisted_messages", "persisted_bytes", "sent_messages", "sent_bytes", "commits")
"""The counters of the engine whose rates are taken, by their names there and in `Rates`."""
_counts: Final = attrgetter(*_COUNTED)


class Sampler:
    """Samples counters once a second; may run on another thread than the one that counts."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=WINDOW_SECONDS + 1)

    def sample(self, now: float) -> None:
        """Take a sample at `now`, monotonic seconds."""
        self._samples.append((now, _counts(self._statistics)))

    def rates(self, now: float) -> Rates | None:
        """Since the oldest sample; None when that is too short ago."""
        if not self._samples or now - self._samples[0][0] < _SHORTEST_SECONDS:
            return None
        since, first = self._samples[0]
        seconds = now - since
        rates = {
            name: round((after - before) / seconds, 3)
            for name, before, after in zip(_COUNTED, first, _counts(self._statistics), strict=True)
        }
        return Rates(window_seconds=round(seconds, 3), **rates)
