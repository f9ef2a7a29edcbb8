"""Check that the engine knows the deadlines of its parts. It asks only the parts that announce one."""

from __future__ import annotations

from typing import Final

from tickertape.engine.broker import Broker
from tickertape.engine.delivery.cursor_scheduler import CursorScheduler
from tickertape.engine.delivery.log_delivery import LogDelivery
from tickertape.engine.queues.worker import QueueWorker
from tickertape.engine.runtime.clock import TimedPart
from tickertape.engine.sow.expiry import RecordExpiry

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
        broker.states.expiry,
    ]
    return [*parts, *(broker.queues.workers if broker.queues._begun else ())]


def waits_for_wall_clock(part: TimedPart) -> bool:
    """Return whether a part may wait for a time of the wall clock."""
    return isinstance(part, LogDelivery | CursorScheduler | QueueWorker | RecordExpiry)


def check_deadlines(broker: Broker, mono: float, *, woken: bool = False) -> None:
    """Assert that the engine knows a deadline of each part that is not later than the part wants.

    `woken`: it has just been woken, and must know the exact deadlines."""
    broker.next_deadline()
    for part in timed_parts(broker):
        wanted, known = part.next_deadline(), broker._clock._deadlines.get(part)
        late = f"{type(part).__name__} wants {wanted}, the engine knows {known}"
        if woken:
            assert known == wanted, late
        elif wanted is not None:
            assert known is not None, late
            assert known <= wanted or (waits_for_wall_clock(part) and known <= mono + _CLOCK_CHECK_SECONDS), (
                late
            )
