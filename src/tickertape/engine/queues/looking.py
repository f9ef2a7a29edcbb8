"""Owns gathering what is told of a queue.

Must never change anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tickertape.base.interfaces import Now
from tickertape.engine.queues.snapshot import QueueSnapshot
from tickertape.journal.journal import Journal

if TYPE_CHECKING:
    from tickertape.engine.queues.worker import QueueWorker

_MICROS = 1e6


def snapshot(work: QueueWorker, journal: Journal, now: Now) -> QueueSnapshot:
    """A queue as it is now."""
    queue = work.queue
    state, definition = queue.state, queue.definition
    oldest = state.oldest_inside()
    granted = queue.leases.oldest_granted()
    return QueueSnapshot(
        name=queue.name,
        underlying=definition.topic,
        semantics=definition.semantics,
        ready=len(state.ready),
        leased=len(state.leased),
        inactive=len(state.inactive),
        dooming=len(state.doomed),
        consumers=len(queue.consumers),
        backlog=queue.leases.count,
        oldest_position=oldest,
        oldest_seconds=_age(journal, oldest, now),
        oldest_lease_seconds=None if granted is None else max(now.mono - granted, 0.0),
        entered=state.entered,
        acknowledged=state.acknowledged,
        taken=state.taken,
        returned={reason.text: count for reason, count in state.returned.items()},
        expired={reason.text: count for reason, count in state.expired.items()},
        deferred=queue.deferred,
        unrecorded=queue.unrecorded,
        filtered=queue.filtered,
        seconds_behind=_age(journal, queue.considered, now) or 0.0,
        target_queue_depth=definition.target_queue_depth,
        max_backlog=definition.max_backlog,
        failure=None if work.failure is None else str(work.failure),
    )


def _age(journal: Journal, position: int | None, now: Now) -> float | None:
    """Seconds since the message at a position was persisted, about: as its segment says, or its commit where
    that is in memory."""
    view = journal.view
    if position is None or position >= view.end_position:
        return None
    at = view.tail_at(position)
    if at is not None:
        part = view.tail[at]
        stamp = part.batch.timestamp(max(position - part.first_position, 0))
    else:
        segment = view.segment_of(position)
        if segment is None:
            return None
        block = segment.index.block_of_position(position) + 1
        stamp = segment.index.times[block] if block < segment.index.blocks else segment.timestamp
    return max((now.wall - stamp) / _MICROS, 0.0)
