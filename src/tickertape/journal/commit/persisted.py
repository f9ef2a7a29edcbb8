"""Owns what it means that a commit is persisted: which commit, and what was done before it counts as that.

Must never do anything: the group commit does.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from tickertape.batch import MessageBatch
from tickertape.journal.disk_jobs import JournalJob


class SyncPolicy(Enum):
    """When a commit is synced. `ALWAYS` before it is acknowledged; `INTERVAL` every so often; `NEVER` by the
    system."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


class PersistedCommit(NamedTuple):
    """A commit of messages that reached its level of durability."""

    first_position: int
    batch: MessageBatch
    segment: int
    end: int
    """Offset after the commit in its segment."""
    chained: bool = False
    """It is one of a chain: its bodies may lie in a file that was mapped."""


class CommitInFlight(NamedTuple):
    """The job that the disk carries out, and what is true when it succeeded."""

    job: JournalJob
    persisted: PersistedCommit | None
    end: int
    """Position after the commit."""
    continues: bool
    """More of its chain follows: nothing of it is shown before the end."""
