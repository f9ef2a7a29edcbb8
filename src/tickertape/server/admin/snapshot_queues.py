"""Owns how queues are told in `/stats`.

Must never ask a queue anything: it is given a look.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tickertape.engine.queues.snapshot import QueueSnapshot


class QueueStats(msgspec.Struct, kw_only=True):
    """A queue."""

    name: str
    underlying: str
    """Name or pattern of its topics."""
    semantics: str
    """`at-least-once` or `at-most-once`."""
    depth: int
    """Messages in it: the four numbers below together."""
    ready: int
    """The next consumer with room may get them."""
    leased: int
    """A consumer has them."""
    inactive: int
    """Beyond `target_queue_depth`; they wait in the log."""
    dooming: int
    """Expired, and gone as soon as that is persisted."""
    consumers: int
    """Subscriptions that consume."""
    backlog: int
    """Delivered and not acknowledged."""
    max_backlog: int | None
    target_queue_depth: int | None
    oldest_position: int | None
    """Position in the log of the oldest message."""
    oldest_seconds: float | None
    """Age of that message; None when the queue is empty."""
    oldest_lease_seconds: float | None
    """Age of the oldest lease; None without one."""
    entered: int
    """Since the start, as all that follow."""
    acknowledged: int
    taken: int
    """Left as they were sent (at most once)."""
    returned: dict[str, int]
    """Went back, by reason: `cancelled`, `lease_expired`, `holder_gone`."""
    expired: dict[str, int]
    """Left undone, by reason: `expiration`, `max_deliveries`, `max_cancels`, `expire`."""
    deferred: int
    """Acknowledgements of messages that were not active yet."""
    unrecorded: int
    """Messages of topics that its pattern fits and the log does not record; they do not enter."""
    filtered: int
    """Messages that did not pass its filter."""
    failure: str | None
    """Why it has stopped; None while it works."""
    seconds_behind: float
    """How far it is behind the log."""


def queue_states(looks: Iterable[QueueSnapshot]) -> list[QueueStats]:
    """The queues as `/stats` tells them."""
    return [_state(look) for look in looks]


def _state(look: QueueSnapshot) -> QueueStats:
    return QueueStats(
        name=look.name,
        underlying=look.underlying,
        semantics=look.semantics,
        depth=look.ready + look.leased + look.inactive + look.dooming,
        ready=look.ready,
        leased=look.leased,
        inactive=look.inactive,
        dooming=look.dooming,
        consumers=look.consumers,
        backlog=look.backlog,
        max_backlog=look.max_backlog,
        target_queue_depth=look.target_queue_depth,
        oldest_position=look.oldest_position,
        oldest_seconds=look.oldest_seconds,
        oldest_lease_seconds=look.oldest_lease_seconds,
        entered=look.entered,
        acknowledged=look.acknowledged,
        taken=look.taken,
        returned=dict(look.returned),
        expired=dict(look.expired),
        deferred=look.deferred,
        unrecorded=look.unrecorded,
        filtered=look.filtered,
        failure=look.failure,
        seconds_behind=look.seconds_behind,
    )
