"""Rates over a moving window."""

from __future__ import annotations

from tickertape.engine.runtime.statistics import Statistics
from tickertape.server.admin.routes import WINDOW_SECONDS, Sampler


def test_rates_are_none_without_two_distant_samples() -> None:
    sampler = Sampler(Statistics())
    assert sampler.rates(100.0) is None
    sampler.sample(100.0)
    assert sampler.rates(100.1) is None


def test_rates_cover_the_last_seconds() -> None:
    counts = Statistics()
    sampler = Sampler(counts)
    for second in range(60):
        sampler.sample(100.0 + second)
        counts.persisted_messages += 10 * second
        counts.sent_bytes += 7
    rates = sampler.rates(160.0)
    assert rates is not None
    assert rates.window_seconds == WINDOW_SECONDS + 1
    assert rates.persisted_messages == sum(10 * s for s in range(49, 60)) / 11
    assert (rates.sent_bytes, rates.commits) == (7.0, 0.0)
