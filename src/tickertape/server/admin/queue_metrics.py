"""Owns the metrics of queues, made from their part of one report.

Must never make a label of what is without bound: queues are as many as a configuration has, reasons few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tickertape.server.admin.snapshot_queues import QueueStats

_GAUGES: Final[tuple[tuple[str, str, Callable[[QueueStats], float | None]], ...]] = (
    ("depth", "Messages in a queue.", lambda q: q.depth),
    ("ready", "Of these, for the next consumer with room.", lambda q: q.ready),
    ("leased", "Of these, with a consumer.", lambda q: q.leased),
    ("inactive", "Of these, beyond the target depth.", lambda q: q.inactive),
    ("consumers", "Subscriptions that consume.", lambda q: q.consumers),
    ("backlog", "Delivered and not acknowledged.", lambda q: q.backlog),
    ("max_backlog", "How many that may be.", lambda q: q.max_backlog),
    ("oldest_seconds", "Age of the oldest message.", lambda q: q.oldest_seconds),
    ("oldest_lease_seconds", "Age of the oldest lease.", lambda q: q.oldest_lease_seconds),
    ("seconds_behind", "How far a queue is behind the log.", lambda q: q.seconds_behind),
    ("stopped", "1 when a queue cannot read what it needs.", lambda q: int(q.failure is not None)),
)
_COUNTERS: Final[tuple[tuple[str, str, Callable[[QueueStats], int]], ...]] = (
    ("entered", "Messages that entered a queue.", lambda q: q.entered),
    ("filtered", "Messages that its filter kept out.", lambda q: q.filtered),
    ("unrecorded", "Messages of its topics that the log does not record.", lambda q: q.unrecorded),
    ("deferred_acknowledgements", "Of messages that were not active yet.", lambda q: q.deferred),
)

_Sample = tuple[Sequence[str], float]
"""Labels of a metric, and its value."""


def _left(queue: QueueStats) -> Iterator[_Sample]:
    """How many messages left a queue, by reason."""
    yield (queue.name, "acknowledged"), queue.acknowledged
    yield (queue.name, "taken"), queue.taken
    for reason, count in sorted(queue.expired.items()):
        yield (queue.name, reason), count


def _returned(queue: QueueStats) -> Iterator[_Sample]:
    """How many messages went back to a queue, by reason."""
    for reason, count in sorted(queue.returned.items()):
        yield (queue.name, reason), count


_BY_REASON: Final = (
    ("left", "Messages that left a queue.", _left),
    ("returned", "Messages that went back to a queue.", _returned),
)


def queue_metrics(queues: Sequence[QueueStats], prefix: str) -> Iterator[Metric]:
    """All metrics of all queues; names begin with `prefix`."""
    for name, text, gauge_of in _GAUGES:
        gauge = GaugeMetricFamily(f"{prefix}queue_{name}", text, labels=["queue"])
        for queue in queues:
            value = gauge_of(queue)
            if value is not None:
                gauge.add_metric([queue.name], float(value))
        yield gauge
    for name, text, count_of in _COUNTERS:
        counter = CounterMetricFamily(f"{prefix}queue_{name}", text, labels=["queue"])
        for queue in queues:
            counter.add_metric([queue.name], count_of(queue))
        yield counter
    for name, text, samples_of in _BY_REASON:
        counter = CounterMetricFamily(f"{prefix}queue_{name}", text, labels=["queue", "reason"])
        for queue in queues:
            for labels, count in samples_of(queue):
                counter.add_metric(labels, count)
        yield counter
