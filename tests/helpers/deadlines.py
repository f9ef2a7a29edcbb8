"""Check that the engine knows the deadlines of its parts. It asks only the parts that announce one."""

from __future__ import annotations

from typing import Final

from tickertape.engine.broker import Broker
from tickertape.engine.runtime.clock import TimedPart

_CLOCK_CHECK_SECONDS: Final = 1.0
"""The wall clock may be set forward. The engine checks it at this interval."""


def timed_parts(broker: Broker) -> list[TimedPart]:
    """Return all parts of an engine that have deadlines."""
    delivery, transient = broker._delivery, broker._transient
    parts: list[TimedPart] = [
        broker._commits,
        broker.retention,
        broker.heartbeats,
        broker._outbox,
        broker._checkpoints,
        broker.transactions.staging,
        transient,
        transient.slow_consumers,
        delivery,
        delivery._notices,
        delivery.cursors,
        delivery.live,
    ]
    return [*parts, *(broker.queues.workers if broker.queues._begun else ())]


def check_deadlines(broker: Broker, mono: float) -> None:
    """Assert that the engine asks to be woken at the earliest deadline of its parts, or before."""
    wanted = [(at, part) for part in timed_parts(broker) if (at := part.next_deadline()) is not None]
    if not wanted:
        return
    earliest, part = min(wanted, key=lambda one: one[0])
    known = broker.next_deadline()
    late = f"{type(part).__name__} wants {earliest}, the engine knows {known}"
    assert known is not None, late
    assert (
        known <= max(earliest, mono + _CLOCK_CHECK_SECONDS) if _by_wall(broker) else known <= earliest
    ), late


def _by_wall(broker: Broker) -> bool:
    """Return whether a part waits for a time of the wall clock."""
    delivery = broker._delivery
    return bool(
        delivery._clocked.items
        or delivery.cursors._conflation_ends.items
        or any(worker.queue.next_due() is not None for worker in broker.queues.workers)
    )
