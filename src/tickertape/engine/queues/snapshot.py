"""Queue snapshots: the state of each queue as plain numbers, for monitoring."""

from __future__ import annotations

from typing import Any

import msgspec

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Now
from tickertape.engine.queues.state.queue import Queue
from tickertape.journal.journal import Journal


class QueueSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a queue, as `/stats` encodes it.

    Counts include messages that the server read from the log at its start, depending on the checkpoint.
    Counts of `since` start with this run of the server."""

    name: str
    underlying: str
    """Name or pattern of its topics."""
    semantics: str
    """`at-least-once` or `at-most-once`."""
    depth: int
    """Messages in the queue: the sum of the next four numbers."""
    ready: int
    """Messages available for consumers."""
    leased: int
    """Messages leased to consumers."""
    inactive: int
    """Messages beyond `target_queue_depth`, which wait in the log."""
    dooming: int
    """Expired messages whose dead letter or removal is not persisted yet."""
    consumers: int
    """Number of consumer subscriptions."""
    backlog: int
    """Messages delivered and not acknowledged."""
    max_backlog: int | None
    target_queue_depth: int | None
    oldest_position: int | None
    """Log position of the oldest message. None if the queue is empty."""
    oldest_seconds: float | None
    """Minimum age of that message. None if the queue is empty."""
    oldest_lease_seconds: float | None
    """Age of the oldest lease. None without leases."""
    entered: int
    acknowledged: int
    taken: int
    """Messages that left the queue when they were sent (at-most-once)."""
    returned: dict[str, int]
    """Messages returned to the queue, by reason: `cancelled`, `lease_expired`, `holder_gone`."""
    expired: dict[str, int]
    """Messages removed unprocessed, by reason: `expiration`, `max_deliveries`, `max_cancels`, `expire`."""
    deferred: int
    """Acknowledgements of messages that were not active yet."""
    unrecorded: int
    """Messages on non-persistent topics that match its pattern. They do not enter the queue."""
    filtered: int
    """Messages that its filter rejected."""
    failure: str | None = None
    """Why the queue has stopped. None while it runs."""
    seconds_behind: float
    """Age of the first persisted message that the queue has not considered. 0 if it has caught up."""

    def since(self, before: QueueSnapshot) -> QueueSnapshot:
        """Return this snapshot with counts since an earlier snapshot."""
        return msgspec.structs.replace(
            self,
            entered=self.entered - before.entered,
            acknowledged=self.acknowledged - before.acknowledged,
            taken=self.taken - before.taken,
            returned=_more(self.returned, before.returned),
            expired=_more(self.expired, before.expired),
            deferred=self.deferred - before.deferred,
            unrecorded=self.unrecorded - before.unrecorded,
            filtered=self.filtered - before.filtered,
        )


def _more(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {reason: count - before.get(reason, 0) for reason, count in now.items()}


_MICROS = 1e6


def snapshot(queue: Queue[Any], failure: TickertapeError | None, journal: Journal, now: Now) -> QueueSnapshot:
    """Return the state of a queue."""
    state, definition = queue.state, queue.definition
    oldest = state.oldest_inside()
    granted = queue.leases.oldest_granted()
    ready, leased = len(state.ready), len(state.leased)
    inactive, dooming = len(state.inactive), len(state.doomed)
    return QueueSnapshot(
        name=queue.name,
        underlying=definition.topic,
        semantics=definition.semantics,
        depth=ready + leased + inactive + dooming,
        ready=ready,
        leased=leased,
        inactive=inactive,
        dooming=dooming,
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
        failure=None if failure is None else str(failure),
    )


def _age(journal: Journal, position: int | None, now: Now) -> float | None:
    """Return the minimum age of the message at a position, from the time of its block or in-memory commit."""
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
