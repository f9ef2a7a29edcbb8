"""Queue snapshot: numbers of one queue for monitoring, at one time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Now
from tickertape.engine.queues.state.queue import Queue
from tickertape.journal.journal import Journal


class QueueSnapshot(NamedTuple):
    """Numbers of a queue at one time. Counts include what a start read of the log, which depends on how much
    it had to read; `since` has those of one run of the server."""

    name: str
    underlying: str
    """Name or pattern of its topics."""
    semantics: str
    ready: int
    """Messages that the next consumer with room may get."""
    leased: int
    """Messages that a consumer has."""
    inactive: int
    """Messages beyond `target_queue_depth`, which wait in the log."""
    dooming: int
    """Messages that have expired and wait for their dead letter to be in the log."""
    consumers: int
    """Subscriptions that consume."""
    backlog: int
    """Messages delivered and not acknowledged."""
    oldest_position: int | None
    """Of the oldest message in the log; None when the queue is empty."""
    oldest_seconds: float | None
    """Age of that message, at least."""
    oldest_lease_seconds: float | None
    """Age of the oldest lease; None when nothing is leased."""
    entered: int
    acknowledged: int
    taken: int
    """Left as they were sent: at most once."""
    returned: Mapping[str, int]
    """Went back, by reason: `cancelled`, `lease_expired`, `holder_gone`."""
    expired: Mapping[str, int]
    """Left undone, by reason: `expiration`, `max_deliveries`, `max_cancels`, `expire`."""
    deferred: int
    """Acknowledgements of messages that were not active yet."""
    unrecorded: int
    """Messages of topics that its pattern fits and the log does not record: they do not enter."""
    filtered: int
    """Messages that did not pass the filter."""
    seconds_behind: float
    """Age of the first persisted message that the queue has not considered; 0 without one."""
    target_queue_depth: int | None
    max_backlog: int | None
    failure: str | None = None
    """The error of a stopped queue."""

    def since(self, before: QueueSnapshot) -> QueueSnapshot:
        """Return the snapshot with the counts since an earlier one."""
        return self._replace(
            entered=self.entered - before.entered,
            acknowledged=self.acknowledged - before.acknowledged,
            taken=self.taken - before.taken,
            returned=_more(self.returned, before.returned),
            expired=_more(self.expired, before.expired),
            deferred=self.deferred - before.deferred,
            unrecorded=self.unrecorded - before.unrecorded,
            filtered=self.filtered - before.filtered,
        )


def _more(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {reason: count - before.get(reason, 0) for reason, count in now.items()}


_MICROS = 1e6


def snapshot(queue: Queue[Any], failure: TickertapeError | None, journal: Journal, now: Now) -> QueueSnapshot:
    """A queue as it is now."""
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
        failure=None if failure is None else str(failure),
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
