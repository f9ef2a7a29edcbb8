"""Disk jobs as data: everything that the journal asks of a disk.

The jobs of one journal are carried out in the order in which they were made (`disk_jobs.py` does that).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

import msgspec

from tickertape.base.interfaces import Buffer
from tickertape.journal.format.retired_state import RetiredState

NO_ROOM: Final = {
    errno.ENOSPC: "free disk space",
    errno.EDQUOT: "free disk space, or raise the quota",
    errno.EMFILE: "let the server have more open files",
    errno.ENFILE: "let the system have more open files",
}
"""Errors after which nothing was written and a retry may succeed, with the remedy."""


class DiskFull(OSError):
    """No room to reserve a segment. Nothing was written, so it may be tried again."""

    @property
    def reason(self) -> str:
        """The missing resource and the remedy."""
        remedy = NO_ROOM.get(self.errno or 0, "make room")
        return f"{self.strerror}: {remedy}"


class JournalJob(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all jobs."""


class WriteCommit(JournalJob, frozen=True, kw_only=True):
    """Write one commit into the active segment, and make it durable when `sync`."""

    segment: int
    offset: int
    buffers: list[Buffer]
    sync: bool
    number: int


class SyncSegment(JournalJob, frozen=True, kw_only=True):
    """Make everything written to the active segment durable (sync policy `interval`)."""

    segment: int
    number: int


class StartSegment(JournalJob, frozen=True, kw_only=True):
    """Put the header into the prepared segment: the first of a run, nothing is open before it."""

    number: int
    header: bytes


class RollSegment(JournalJob, frozen=True, kw_only=True):
    """Seal the active segment, cut it to its length, and put the header into the prepared next one.

    The seal is durable before the header is written, so a valid header proves that the segment before is
    sealed."""

    old: int
    seal_offset: int
    seal: list[Buffer]
    old_end: int
    new: int
    header: bytes


class SealSegment(JournalJob, frozen=True, kw_only=True):
    """Seal the active segment at a clean stop; no segment follows."""

    segment: int
    seal_offset: int
    seal: list[Buffer]
    end: int


class PrepareSegment(JournalJob, frozen=True, kw_only=True):
    """Create and reserve the next segment (or enlarge it): zeros, durable, not yet a segment. May run beside
    writes."""

    number: int
    bytes: int


class RetireSegments(JournalJob, frozen=True, kw_only=True):
    """Record the facts that outlive the segments `numbers`, then remove these, the oldest first.

    Without `retired` the facts are recorded already. The job runs beside all others and may be repeated after
    an error."""

    retired: RetiredState | None
    numbers: tuple[int, ...]


class WriteQueues(JournalJob, frozen=True, kw_only=True):
    """Replace the checkpoint of the queues. Runs beside all others; it may be repeated after an error.

    `encode` makes the contents of the file. That takes long for deep queues, so it is part of the job."""

    journal_id: bytes
    encode: Callable[[], bytes]
