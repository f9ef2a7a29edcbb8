"""Owns what an instance tells of one queue, for people and their monitoring.

Must never hold anything that changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class QueueLook(NamedTuple):
    """One queue at a moment. Ages are seconds, None where there is nothing that has one."""

    name: str
    underlying: str
    semantics: str
    ready: int
    leased: int
    inactive: int
    dooming: int
    """Messages that wait for their dead letter to be written."""
    consumers: int
    backlog: int
    """Messages delivered and not acknowledged."""
    oldest_position: int | None
    oldest_seconds: float | None
    """Age of the oldest message in the queue, as far as it is known."""
    oldest_lease_seconds: float | None
    entered: int
    acknowledged: int
    taken: int
    returned: Mapping[str, int]
    """By reason."""
    expired: Mapping[str, int]
    """By reason."""
    deferred: int
    """Acknowledgements of messages that were not active yet."""
    unrecorded: int
    """Messages to topics of the queue that the log does not record: they never enter."""
    filtered: int
    seconds_behind: float
    """How long ago the first message was persisted that the queue has not considered yet."""
    target_queue_depth: int | None
    max_backlog: int | None
    failure: str | None
    """Why it has stopped."""
