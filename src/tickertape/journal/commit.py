"""Owns group commit: what was accepted becomes commits, one in flight, and persisted only after its job succeeded.

A pure machine. Must never report anything as persisted before the disk answered, send a second commit while one is in
flight, or go on after the first failure (it latches). Running out of room while a segment is *prepared* is no
failure: publishes are refused until a retry succeeds.
"""

from __future__ import annotations

import errno
from collections import deque
from enum import Enum
from typing import Final, NamedTuple

from crc32c import crc32c

from tickertape.base.errors import JournalFailed, TickertapeError
from tickertape.base.limits import (
    commit_bytes_max,
    commit_header_bytes,
    commit_messages_max,
    mark_idle_seconds,
    segment_bytes_first,
    segment_header_bytes,
)
from tickertape.base.ports import Buffer, Now
from tickertape.batch import MessageBatch, Stamp, merge
from tickertape.journal.format import (
    CommitHeader,
    CommitKind,
    Footer,
    SegmentHeader,
    encode_commit,
    encode_footer,
    encode_segment_header,
    footer_bytes,
)
from tickertape.journal.index import SegmentIndex
from tickertape.journal.jobs import (
    Job,
    PrepareSegment,
    RollSegment,
    SealSegment,
    StartSegment,
    SyncSegment,
    WriteCommit,
)

_RETRY_SECONDS: Final = 1.0
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class SyncPolicy(Enum):
    """When a commit is synced. `ALWAYS` before it is acknowledged; `INTERVAL` every so often; `NEVER` by the system."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


class LogEnd(NamedTuple):
    """Where the log stands when a run begins."""

    journal_id: bytes
    epoch: int
    segment: int
    """Number of the last segment, 0 when there is none."""
    chain: int
    used: int
    position: int
    """Position of the next message."""
    commit: int
    """Number of the next commit."""
    timestamp: int
    """Log time, microseconds."""


class Persisted(NamedTuple):
    """A commit of messages that reached its level of durability."""

    first_position: int
    batch: MessageBatch
    segment: int
    end: int
    """Offset after the commit in its segment."""


class Active:
    """The segment that is being written."""

    def __init__(self, header: SegmentHeader, chain: int, capacity: int) -> None:
        self.header = header
        self.chain = chain
        self.capacity = capacity
        self.offset = segment_header_bytes
        self.index = SegmentIndex()

    def room(self) -> int:
        """Bytes left for commits when the seal is to fit too."""
        seal = commit_header_bytes + self.index.encoded_bytes_max + footer_bytes + 8
        return self.capacity - self.offset - seal


class _InFlight(NamedTuple):
    job: Job
    persisted: Persisted | None
    end: int
    """Position after the commit."""


class GroupCommit:
    """The machine. Drivers call `jobs()` after every input, carry them out in order, and answer with `done`."""

    def __init__(
        self, log_end: LogEnd, *, policy: SyncPolicy, interval_seconds: float, segment_bytes: int, now: Now
    ) -> None:
        self.accepted_end = log_end.position
        """Position of the next message to be accepted."""
        self.persisted_end = log_end.position
        """Position after the last message whose commit reached its level."""
        self.failure: TickertapeError | None = None
        self.full = False
        self.closed = False
        self.active: Active | None = None
        self._end = log_end
        self._policy = policy
        self._interval = interval_seconds
        self._segment_bytes = segment_bytes
        self._next_capacity = min(segment_bytes_first, segment_bytes)
        self._commit = log_end.commit
        self._synced_through = log_end.commit - 1
        self._timestamp = log_end.timestamp
        self._pending: deque[tuple[MessageBatch, Stamp]] = deque()
        self.pending_bytes = 0
        self._written_end = log_end.position
        self._in_flight: _InFlight | None = None
        self._preparing: PrepareSegment | None = None
        self._prepared: tuple[int, int, int] | None = None  # number, capacity, salt
        self._retry_at: float | None = None
        self._mark_at: float | None = None
        self._sync_at: float | None = None
        self._closing = False
        self._jobs: list[Job] = []
        self._persisted: list[Persisted] = []
        self._opened: list[Active] = []
        self._advance(now)

    # -- inputs ---------------------------------------------------------------------------------------

    def append(self, batch: MessageBatch, stamp: Stamp, now: Now) -> int:
        """Accept a batch of one run; returns the position of its first message.

        The caller asked `can_accept` first. Raises the latched failure."""
        if self.failure is not None:
            raise self.failure
        first = self.accepted_end
        self._pending.append((batch, stamp))
        self.pending_bytes += batch.nbytes
        self.accepted_end += batch.count
        self._timestamp = max(self._timestamp, stamp.timestamp)
        self._advance(now)
        return first

    def can_accept(self, nbytes: int) -> bool:
        """Whether there is room for `nbytes` more, as far as is known; False only while the disk is full."""
        if not self.full:
            return True
        return (
            self.active is not None
            and self.pending_bytes + nbytes + commit_header_bytes <= self.active.room()
        )

    def done(self, job: Job, error: OSError | None, salt: int, now: Now) -> None:
        """The disk's answer to a job: success, or the error that ended it; `salt` for a prepared segment."""
        if self.failure is not None:
            return
        if isinstance(job, PrepareSegment):
            self._prepare_done(job, error, salt, now)
        elif error is not None:
            self._latch(job, error)
        else:
            self._commit_done(job, now)
        self._advance(now)

    def wake(self, now: Now) -> None:
        """A deadline has come."""
        self._advance(now)

    def close(self, now: Now) -> None:
        """Write what is pending, seal, and be `closed`. Nothing may be appended afterwards."""
        self._closing = True
        self._advance(now)

    # -- outputs --------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        """Drain the jobs for the disk, in order. A `PrepareSegment` may run beside the others."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def take_persisted(self) -> list[Persisted]:
        """Drain the commits that became persisted, in order."""
        done, self._persisted = self._persisted, []
        return done

    def take_opened(self) -> list[Active]:
        """Drain the segments that became active, in order."""
        opened, self._opened = self._opened, []
        return opened

    def next_deadline(self) -> float | None:
        """Monotonic second at which `wake` is wanted."""
        wanted = [t for t in (self._retry_at, self._mark_at, self._sync_at) if t is not None]
        return min(wanted, default=None)

    @property
    def ready(self) -> bool:
        """A segment is active and nothing has failed."""
        return self.active is not None and self.failure is None and not self._closing

    @property
    def epoch(self) -> int:
        """The epoch of this run."""
        return self._end.epoch

    # -- the machine ----------------------------------------------------------------------------------

    def _advance(self, now: Now) -> None:
        if self.failure is not None or self.closed:
            return
        self._prepare_ahead(now)
        if self._in_flight is not None:
            return
        if self.active is None:
            if self._prepared is not None:
                self._start_segment(None, now)
            elif self._closing and not self._pending:
                self.closed = True
            return
        if self._pending:
            self._send_commit(now)
        elif self._closing:
            self._send_seal()
        elif self._mark_at is not None and now.mono >= self._mark_at:
            self._mark_at = None
            self._write(CommitKind.MARK, None, now)
        elif self._sync_at is not None and now.mono >= self._sync_at:
            self._sync_at = None
            job = SyncSegment(segment=self.active.header.number, number=self._commit - 1)
            self._send(job, None)

    def _send_commit(self, now: Now) -> None:
        assert self.active is not None
        taken, total = self._take()
        if total + commit_header_bytes > self.active.room():
            if self._prepared is not None and self._fits_prepared(total):
                self._start_segment(self.active, now)
            elif self._prepared is not None:
                self._ask_segment(self._prepared[0], total)
            return
        parts = [self._pending.popleft() for _ in range(taken)]
        self.pending_bytes -= sum(batch.nbytes for batch, _ in parts)
        batch = merge([b for b, _ in parts], [s for _, s in parts])
        self._write(CommitKind.DATA, batch, now)

    def _take(self) -> tuple[int, int]:
        """How many pending batches the next commit takes, and a bound of their bytes when merged."""
        taken = total = messages = 0
        for batch, _ in self._pending:
            if taken and (
                total + batch.nbytes > commit_bytes_max or messages + batch.count > commit_messages_max
            ):
                break
            taken, total, messages = taken + 1, total + batch.nbytes, messages + batch.count
        # Merging may add a topic index and columns that only some batches had: at most these bytes a message.
        return taken, total if taken == 1 else total + 40 * messages

    def _fits_prepared(self, total: int) -> bool:
        assert self._prepared is not None
        return total + 4 * commit_header_bytes + segment_header_bytes <= self._prepared[1]

    def _write(self, kind: CommitKind, batch: MessageBatch | None, now: Now) -> None:
        active = self.active
        assert active is not None
        first = self._written_end
        count = batch.count if batch is not None else 0
        stamps = int(batch.runs["timestamp"][-1]) if batch is not None else 0
        before, self._end = (
            self._end.timestamp,
            self._end._replace(timestamp=max(self._end.timestamp, stamps)),
        )
        body_bytes = batch.nbytes if batch is not None else 0
        header, crc = encode_commit(
            CommitHeader(
                kind=kind,
                flags=0,
                codec=0,
                salt=active.header.salt,
                offset=active.offset,
                number=self._commit,
                first_position=first,
                messages=count,
                body_bytes=body_bytes,
                synced_through=self._synced_through,
                timestamp=self._end.timestamp,
                body_crc=batch.crc() if batch is not None else 0,
                chain=active.chain,
                epoch=active.header.epoch,
            )
        )
        end = active.offset + commit_header_bytes + body_bytes
        persisted = None
        if batch is not None:
            persisted = Persisted(first, batch, active.header.number, end)
            active.index.add(active.offset, end, first, before, batch)
        buffers: list[Buffer] = [header, *(batch.buffers() if batch is not None else ())]
        sync = self._policy is SyncPolicy.ALWAYS
        job = WriteCommit(
            segment=active.header.number,
            offset=active.offset,
            buffers=buffers,
            sync=sync,
            number=self._commit,
        )
        active.offset, active.chain = end, crc
        self._commit += 1
        self._written_end = first + count
        self._send(job, persisted, end=self._written_end)

    def _send(self, job: Job, persisted: Persisted | None, *, end: int = -1) -> None:
        self._in_flight = _InFlight(job, persisted, end)
        self._jobs.append(job)

    def _commit_done(self, job: Job, now: Now) -> None:
        flight, self._in_flight = self._in_flight, None
        assert flight is not None and flight.job is job
        if isinstance(job, WriteCommit):
            if job.sync:
                self._synced_through = job.number
            if flight.persisted is not None:
                self._persisted.append(flight.persisted)
                self.persisted_end = flight.end
                if self._policy is SyncPolicy.ALWAYS:
                    self._mark_at = now.mono + mark_idle_seconds
                elif self._policy is SyncPolicy.INTERVAL and self._sync_at is None:
                    self._sync_at = now.mono + self._interval
        elif isinstance(job, SyncSegment):
            self._synced_through = job.number
            self._mark_at = now.mono + mark_idle_seconds
        elif isinstance(job, SealSegment):
            self.closed = True
        else:
            self._synced_through = self._commit - 1
            self._mark_at = self._sync_at = None

    def _latch(self, job: Job, error: OSError) -> None:
        """The first failed write or sync: what is on the disk is unknown from here on, so nothing more is said."""
        what = type(job).__name__
        self.failure = JournalFailed(
            f"{what} failed: {error}. Nothing more is acknowledged; stop, mend the disk, and start again."
        )
        self._retry_at = self._mark_at = self._sync_at = None
        self._jobs.clear()

    # -- segments -------------------------------------------------------------------------------------

    def _prepare_ahead(self, now: Now) -> None:
        if self._preparing is not None or self._prepared is not None or (self._closing and not self._pending):
            return
        if self._retry_at is not None and now.mono < self._retry_at:
            return
        active = self.active
        needed = (
            max(min(self.pending_bytes, commit_bytes_max), self._pending[0][0].nbytes) if self._pending else 0
        )
        if active is None:
            self._ask_segment(self._end.segment + 1, needed)
        elif active.offset > active.capacity // 2 or needed + commit_header_bytes > active.room():
            self._ask_segment(active.header.number + 1, needed)

    def _ask_segment(self, number: int, needed: int) -> None:
        room = needed + 8 * commit_header_bytes + segment_header_bytes + footer_bytes
        capacity = max(self._next_capacity, room + 64 * 1024 if needed > self._next_capacity // 2 else 0)
        self._preparing = PrepareSegment(number=number, bytes=-(-capacity // 4096) * 4096)
        self._prepared = self._retry_at = None
        self._jobs.append(self._preparing)

    def _prepare_done(self, job: PrepareSegment, error: OSError | None, salt: int, now: Now) -> None:
        self._preparing = None
        if error is None:
            self.full = False
            self._prepared = (job.number, job.bytes, salt)
            self._next_capacity = min(2 * self._next_capacity, self._segment_bytes)
        elif error.errno in _NO_ROOM:
            self.full = True
            self._retry_at = now.mono + _RETRY_SECONDS
        else:
            self._latch(job, error)

    def _start_segment(self, old: Active | None, now: Now) -> None:
        assert self._prepared is not None
        number, capacity, salt = self._prepared
        seal: list[Buffer] = []
        chain, used = self._end.chain, self._end.used
        if old is not None:
            seal, chain, used = self._make_seal(old)
        header = SegmentHeader(
            journal_id=self._end.journal_id,
            number=number,
            epoch=self._end.epoch,
            first_position=self._written_end,
            first_commit=self._commit,
            salt=salt,
            previous_chain=chain,
            previous_end=used,
            created=now.wall,
        )
        data, crc = encode_segment_header(header)
        self._prepared = None
        self.active = Active(header, crc, capacity)
        self._opened.append(self.active)
        if old is None:
            self._send(StartSegment(number=number, header=data), None)
        else:
            offset = old.offset - sum(len(b) for b in seal)
            job = RollSegment(
                old=old.header.number, seal_offset=offset, seal=seal, old_end=used, new=number, header=data
            )
            self._send(job, None)

    def _send_seal(self) -> None:
        assert self.active is not None
        active = self.active
        seal, _, used = self._make_seal(active)
        offset = used - sum(len(b) for b in seal)
        self._send(SealSegment(segment=active.header.number, seal_offset=offset, seal=seal, end=used), None)

    def _make_seal(self, active: Active) -> tuple[list[Buffer], int, int]:
        """The seal's bytes, its checksum (to which the next segment is chained) and the length of the file."""
        buffers, header = make_seal(active, self._commit, self._written_end, self._synced_through, self._end)
        self._commit += 1
        active.offset = header.end
        return buffers, header.crc, header.end


def make_seal(
    active: Active, number: int, position: int, synced_through: int, log_end: LogEnd
) -> tuple[list[Buffer], CommitHeader]:
    """The seal commit of a segment: index, padding and footer as its body."""
    index = active.index.encode()
    padding = bytes(-len(index) % 8)
    offset = active.offset
    end = offset + commit_header_bytes + len(index) + len(padding) + footer_bytes
    body = index + padding + encode_footer(Footer(offset, end, active.header.salt, len(index)))
    header = CommitHeader(
        kind=CommitKind.SEAL,
        flags=0,
        codec=0,
        salt=active.header.salt,
        offset=offset,
        number=number,
        first_position=position,
        messages=0,
        body_bytes=len(body),
        synced_through=synced_through,
        timestamp=log_end.timestamp,
        body_crc=crc32c(body),
        chain=active.chain,
        epoch=active.header.epoch,
    )
    encoded, crc = encode_commit(header)
    return [encoded, body], header._replace(crc=crc)
