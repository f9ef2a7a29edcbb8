"""Segment preallocation: reserves the next segment ahead of the active one.

Pure, part of the group commit.

Invariant: the disk counts as full only after an attempt to reserve the smallest segment that fits the next
commit.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tickertape.base.interfaces import Now
from tickertape.journal.commit.jobs import DiskFull, PrepareSegment
from tickertape.journal.limits import segment_bytes_first, segment_bytes_min

_RETRY_SECONDS: Final = 1.0
_ALLOCATION_BYTES: Final = 4096


class PreparedSegment(NamedTuple):
    """A reserved segment that is not in use yet."""

    number: int
    capacity: int
    salt: int


class SegmentPreallocation:
    """Requests each segment twice as large as the previous one, up to `segment_bytes`.

    Without disk space it requests smaller ones, down to `segment_bytes_min`."""

    def __init__(self, segment_bytes: int, reserved_bytes: int = 0) -> None:
        """`reserved_bytes` is the size of a file that an earlier run reserved. The first segment uses all of
        it."""
        self.prepared: PreparedSegment | None = None
        self.preparing: PrepareSegment | None = None
        self.full = False
        """Even the smallest sufficient segment does not fit. It is retried at `retry_at`."""
        self.full_reason = ""
        """The missing resource and the remedy, while `full`."""
        self.retry_at: float | None = None
        """Monotonic second of the next attempt."""
        self._segment_bytes = segment_bytes
        self._next_bytes = max(min(segment_bytes_first, segment_bytes), reserved_bytes)
        self._needed = 0

    @property
    def prepared_bytes(self) -> int:
        """Size of the prepared segment."""
        return 0 if self.prepared is None else self.prepared.capacity

    @property
    def upcoming_bytes(self) -> int:
        """Size of the next segment to be prepared, or 0 if one is prepared."""
        if self.prepared is not None:
            return 0
        return _allocated(self._next_bytes) if self.preparing is None else self.preparing.bytes

    def may_request(self, now: Now) -> bool:
        return self.preparing is None and (self.retry_at is None or now.mono >= self.retry_at)

    def request(self, number: int, needed: int) -> PrepareSegment:
        """Return the job that prepares segment `number` with at least `needed` bytes.

        A segment that is prepared already is enlarged, and must not be started meanwhile."""
        self._needed = needed
        self.prepared = self.retry_at = None
        return self._request(number, max(self._next_bytes, needed))

    def done(self, job: PrepareSegment, error: DiskFull | None, salt: int, now: Now) -> PrepareSegment | None:
        """Process the result of a job. Return the next job if a smaller size is tried at once."""
        self.preparing = None
        if error is None:
            self.full = False
            self.prepared = PreparedSegment(job.number, job.bytes, salt)
            self._next_bytes = min(2 * self._next_bytes, self._segment_bytes)
            return None
        least = _allocated(max(self._needed, min(segment_bytes_min, self._segment_bytes)))
        if job.bytes > least:
            self._next_bytes = max(job.bytes // 2, least)
            return self._request(job.number, self._next_bytes)
        self.full = True
        self.full_reason = error.reason
        self.retry_at = now.mono + _RETRY_SECONDS
        return None

    def give_up(self) -> None:
        """Cancel a request that is no longer needed, so that its lack of space does not count as full."""
        if self.full:
            self.full, self.retry_at = False, None

    def stop_retrying(self) -> None:
        """Stop retrying on a full disk."""
        self.retry_at = None

    def take(self) -> PreparedSegment:
        """Return the prepared segment for immediate use."""
        assert self.prepared is not None
        prepared, self.prepared = self.prepared, None
        return prepared

    def _request(self, number: int, size: int) -> PrepareSegment:
        self.preparing = PrepareSegment(number=number, bytes=_allocated(size))
        return self.preparing


def _allocated(size: int) -> int:
    """Return a size rounded up to whole file system blocks."""
    return -(-size // _ALLOCATION_BYTES) * _ALLOCATION_BYTES
