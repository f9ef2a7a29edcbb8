"""Group commit: batches accepted messages and makes them durable with one sync.

Pure. If disk space runs out while a segment is *prepared*, nothing has failed: publishes are refused until a
retry succeeds.

Invariants:
- Messages become persisted only after the disk has confirmed the write.
- At most one commit is in flight.
- The first failure is permanent: nothing is written or reported after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Literal, NamedTuple, Protocol

from tickertape.base.errors import JournalFailed, TickertapeError
from tickertape.base.interfaces import Buffer, Now
from tickertape.base.limits import MIB
from tickertape.batch import MessageBatch, Stamp
from tickertape.journal.commit.accumulator import CommitAccumulator, NextCommit
from tickertape.journal.commit.active_segment import ActiveSegment, LogEnd, make_seal, segment_bytes_of
from tickertape.journal.commit.jobs import (
    DiskFull,
    JournalJob,
    PrepareSegment,
    RollSegment,
    SealSegment,
    StartSegment,
    SyncSegment,
    WriteCommit,
)
from tickertape.journal.commit.preallocation import SegmentPreallocation
from tickertape.journal.format.log_end import CleanShutdown
from tickertape.journal.format.segment import (
    FLAG_CONTINUES,
    CommitHeader,
    CommitKind,
    SegmentHeader,
    encode_commit,
    encode_segment_header,
)
from tickertape.journal.limits import (
    batch_memory_bytes,
    commit_gather_bytes_max,
    commit_header_bytes,
    mark_idle_seconds,
)


class SyncPolicy(Enum):
    """When a commit is synced.

    `ALWAYS`: before its acknowledgement. `INTERVAL`: at intervals. `NEVER`: by the operating system."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


class PersistedCommit(NamedTuple):
    """A commit of messages that reached the durability of the sync policy."""

    first_position: int
    batch: MessageBatch
    segment: int
    end: int
    """Offset after the commit in its segment."""
    number: int
    """Number of the commit."""
    epoch: int
    checksum: int
    """Checksum of its header, the `chain` of the next commit."""
    chained: bool = False
    """It is part of a chain. Its bodies may be in a memory-mapped file."""


class CommitEnding(Protocol):
    """Source of the last records of commits."""

    def take_last(self) -> tuple[MessageBatch, Stamp] | None:
        """Remove and return the records that end the open commit. They are accepted at the end of the log."""


class CommitInFlight(NamedTuple):
    """The job in progress, and the state after its success."""

    job: JournalJob
    persisted: PersistedCommit | None
    end: int
    """Position after the commit."""
    chain_continues: bool
    """More commits of its chain follow. A chain becomes visible as a whole."""


_SPARE_BYTES = 16 * MIB
"""Extra size of a segment made for a chain, for messages accepted before the chain."""


class GroupCommit:
    """State machine of the group commit.

    Drivers call `jobs()` after every input, run the jobs in order, and report each result with `done`."""

    def __init__(
        self,
        log_end: LogEnd,
        *,
        policy: SyncPolicy,
        interval_seconds: float,
        segment_bytes: int,
        now: Now,
        reserved_bytes: int = 0,
    ) -> None:
        self.accepted_end = log_end.position
        """Position of the next message to be accepted."""
        self.persisted_end = log_end.position
        """Position after the last persisted message (see `PersistedCommit`)."""
        self.synced_end = log_end.position
        """Position after the last message known to be synced, under any policy."""
        self.failure: TickertapeError | None = None
        self.closed = False
        self.active: ActiveSegment | None = None
        self.sealed_through = log_end.segment
        """Number of the last segment whose seal is durable."""
        self._end = log_end
        self._log_time = log_end.timestamp
        """Log time of the last commit."""
        self._policy = policy
        self._interval = interval_seconds
        self.preallocation = SegmentPreallocation(segment_bytes, reserved_bytes)
        self._commit = log_end.commit
        self._synced_through = log_end.commit - 1
        self._pending = CommitAccumulator()
        self._last_records: CommitEnding | None = None
        self._next: NextCommit | None = None
        self._wanted = 0
        """Space that a chain will need, requested before the chain is accepted."""
        self._written_end = log_end.position
        self._in_flight: CommitInFlight | None = None
        self._mark_at: float | None = None
        self._sync_at: float | None = None
        self.closing = False
        """A clean stop has started."""
        self.queued: list[JournalJob] = []
        """Jobs that `jobs` returns."""
        self._persisted: list[PersistedCommit] = []
        self._chained: list[PersistedCommit] = []
        """Commits of an unfinished chain. They become persisted with its end."""
        self.opened: list[ActiveSegment] = []
        """Segments that `take_opened` returns."""
        self._advance(now)

    # -- inputs ---------------------------------------------------------------------------------------

    def end_with(self, last_records: CommitEnding) -> None:
        """End each commit of batches with records of a source. Chains have none.

        From now on the caller must call `make_room` before each batch, and `end_open` before each chain."""
        self._last_records = last_records

    def make_room(self, batch: MessageBatch, more_bytes: int) -> None:
        """End the open commit if a batch that is appended next does not fit it, with `more_bytes` of last
        records. So its last records do not depend on the batch."""
        if self._pending.is_open and not self._pending.fits(batch, more_bytes):
            self.end_open()

    def end_open(self) -> None:
        """End the open commit, if any, with its last records."""
        if not self._pending.is_open:
            return
        last = None if self._last_records is None else self._last_records.take_last()
        if last is None:
            self._pending.end(None, None)
        else:
            self._pending.end(*last)
            self.accepted_end += last[0].count

    def append(self, batch: MessageBatch, stamp: Stamp, now: Now, *, more: bool = False) -> int:
        """Accept a batch of one run and return the position of its first message. `more`: another batch
        follows at once, in the same commit if it fits.

        The caller must check `can_accept` first. Raises the permanent failure."""
        if self.failure is not None:
            raise self.failure
        assert self._last_records is None or not self._pending.is_open or self._pending.fits(batch)
        first = self.accepted_end
        self._pending.append(batch, stamp)
        self.accepted_end += batch.count
        if not more:
            self._advance(now)
        return first

    def append_chain(self, parts: Sequence[tuple[MessageBatch, Stamp]], now: Now) -> int:
        """Accept batches of one run each that are persisted atomically. Return the position of the first
        message.

        They become commits of their own: contiguous, in one segment. The caller must check `has_room` first,
        because on a full disk a waiting chain would block all later messages. Raises the permanent
        failure."""
        if self.failure is not None:
            raise self.failure
        assert self._last_records is None or not self._pending.is_open
        first, self._wanted = self.accepted_end, 0
        self._pending.append_chain(parts)
        self.accepted_end += sum([batch.count for batch, _ in parts])
        self._advance(now)
        return first

    def reserve_segment(self, nbytes: int, now: Now) -> None:
        """Start a segment with `nbytes` free in addition to accepted messages. 0 cancels the request.

        Check `has_room` and `full` after each result from the disk."""
        if self._wanted and not nbytes:
            # Full for this chain does not mean full for others: try the space that they need.
            self.preallocation.give_up()
        self._wanted = nbytes
        self._advance(now)

    def has_room(self, nbytes: int) -> bool:
        """Return whether the active segment has `nbytes` free in addition to accepted messages."""
        if self.active is None or not self.ready:
            return False
        return self._accepted_room() + nbytes <= self.active.room

    def _accepted_room(self) -> int:
        """Return the most space that accepted, unwritten messages take in a segment."""
        return self._pending.room() + (0 if self._next is None else self._next.room)

    @property
    def pending_bytes(self) -> int:
        """Bytes accepted but not on their way to the disk yet."""
        return self._pending.bytes

    @property
    def is_open(self) -> bool:
        """Whether the last commit may get more batches."""
        return self._pending.is_open

    @property
    def in_flight(self) -> bool:
        """Whether a job is on its way to the disk."""
        return self._in_flight is not None

    @property
    def congested(self) -> bool:
        """Whether too many bytes wait for the next commit. Publishers should pause."""
        waiting = self._pending.bytes + batch_memory_bytes * len(self._pending.batches)
        return waiting > commit_gather_bytes_max

    def can_accept(self, nbytes: int) -> bool:
        """Return whether `nbytes` of a segment (`encoded_size`) fit, as far as known. False only on a full
        disk.

        Messages accepted on a full disk never wait for a new segment, which might never be available."""
        if not self.full:
            return True
        return self.active is not None and self._accepted_room() + nbytes <= self.active.room

    def done(self, job: JournalJob, error: OSError | None, salt: int, now: Now) -> None:
        """Process the result of a job: success, or `error`. `salt` is that returned for a prepared
        segment."""
        if self.failure is not None or self.closed:
            return
        if isinstance(job, PrepareSegment):
            self._prepare_done(job, error, salt, now)
        elif error is not None:
            self._latch(job, error)
        else:
            self._commit_done(job, now)
        self._advance(now)

    def wake(self, now: Now) -> None:
        """Process an expired deadline."""
        self._advance(now)

    def sync_soon(self, now: Now) -> None:
        """Sync unsynced commits, under any policy, once no chain is in progress."""
        if self._sync_at is None or self._sync_at > now.mono:
            self._sync_at = now.mono
        self._advance(now)

    def close(self, now: Now) -> None:
        """Write pending messages, seal, and become `closed`. The caller must not append afterwards.

        On a full disk, messages without space are dropped. They were never reported as persisted."""
        self.closing = True
        self._mark_at = None
        self.preallocation.stop_retrying()
        self._advance(now)

    # -- outputs --------------------------------------------------------------------------------------

    def jobs(self) -> list[JournalJob]:
        """Drain the disk jobs, in order. A `PrepareSegment` may run concurrently with the others."""
        jobs, self.queued = self.queued, []
        return jobs

    def take_persisted(self) -> list[PersistedCommit]:
        """Drain the newly persisted commits, in order."""
        done, self._persisted = self._persisted, []
        return done

    def take_opened(self) -> list[ActiveSegment]:
        """Drain the newly active segments, in order."""
        opened, self.opened = self.opened, []
        return opened

    def next_deadline(self) -> float | None:
        """Return the monotonic second at which to call `wake`."""
        if self.closed or self.failure is not None:
            return None
        deadline = self.preallocation.retry_at
        if self._in_flight is None:
            for at in (self._mark_at, self._sync_at):
                if at is not None and (deadline is None or at < deadline):
                    deadline = at
        return deadline

    @property
    def clean_shutdown(self) -> CleanShutdown | None:
        """The end of the log after `close`, once it is `closed`. None if no segment was active."""
        if not self.closed or self.active is None:
            return None
        return CleanShutdown(
            segment=self.active.header.number, commit=self._commit - 1, position=self._written_end
        )

    @property
    def ready(self) -> bool:
        """Whether a segment is active and the journal neither failed nor is closing."""
        return self.active is not None and self.failure is None and not self.closing

    @property
    def level(self) -> Literal["local", "written"]:
        """Durability of persisted commits: synced, or only written."""
        return "local" if self._policy is SyncPolicy.ALWAYS else "written"

    @property
    def stopping(self) -> bool:
        """Whether no more messages are accepted: a clean stop has started, or the disk failed."""
        return self.closing or self.failure is not None

    @property
    def full(self) -> bool:
        """Whether no disk space is left for another segment. Retried once a second."""
        return self.preallocation.full

    @property
    def full_reason(self) -> str:
        """The missing resource and the remedy, while `full`."""
        return self.preallocation.full_reason

    @property
    def epoch(self) -> int:
        """Epoch of this run."""
        return self._end.epoch

    # -- the machine ----------------------------------------------------------------------------------

    def _advance(self, now: Now) -> None:
        if self.failure is not None or self.closed:
            return
        if self._in_flight is None and self._next is None and self._pending.batches:
            if self._last_records is not None and self._pending.only_open:
                self.end_open()
            self._next = self._pending.gather()
        active, following = self.active, self._next
        fits = following is None or (active is not None and following.room <= active.room)
        usual = fits and active is not None and active.offset <= active.half
        if not usual or self._wanted or self.closing:
            self._prepare_ahead(now, waits=not fits)
        if self._in_flight is not None:
            return
        if self._wanted and self._wants_segment() and self._fits_prepared(self._wanted_bytes()):
            self._begin_segment(now)
            return
        if self._next is not None and self._next_sent(now):
            return
        if self.active is None:
            if self.closing and self._next is None:
                self.closed = True
            elif self.preallocation.prepared is not None and not self.closing:
                self._begin_segment(now)
        elif self.closing and self._next is None:
            if not self._sync_sent():
                self._send_seal()
        elif self._mark_at is not None and now.mono >= self._mark_at:
            self._write(CommitKind.MARK, None)
        elif self._sync_at is not None and now.mono >= self._sync_at:
            self._sync_sent()

    def _next_sent(self, now: Now) -> bool:
        """Send the next commit, or a job that must precede it. False if it must wait."""
        assert self._next is not None
        sync_due = self._sync_at is not None and now.mono >= self._sync_at and not self._chained
        if sync_due and self._sync_sent():
            return True  # steady commits must not postpone the sync
        if self.active is not None and self._next.room <= self.active.room:
            following, self._next = self._next, None
            self._pending.written(following)
            self._write(CommitKind.DATA, following)
            return True
        assert not self._chained, "a whole chain fits in its segment"
        if self._fits_prepared(self._next.segment_bytes):
            self._begin_segment(now)
            return True
        if self.closing and self.full and self.preallocation.preparing is None:
            self._pending.clear()
            self._next = None
        return False

    def _write(self, kind: CommitKind, following: NextCommit | None) -> None:
        active = self.active
        assert active is not None
        batch, flags = (None, 0) if following is None else (following.batch, following.flags)
        self._mark_at = None
        first = self._written_end
        count = batch.count if batch is not None else 0
        before = self._log_time
        if batch is not None:
            self._log_time = max(before, batch.last_run.timestamp)
        body_bytes = batch.nbytes if batch is not None else 0
        header, crc = encode_commit(
            CommitHeader(
                kind=kind,
                flags=flags,
                codec=0,
                salt=active.header.salt,
                offset=active.offset,
                number=self._commit,
                first_position=first,
                messages=count,
                body_bytes=body_bytes,
                synced_through=self._synced_through,
                timestamp=self._log_time,
                body_crc=batch.crc() if batch is not None else 0,
                chain=active.chain,
                epoch=active.header.epoch,
                head_bytes=batch.head_bytes if batch is not None else 0,
                head_crc=batch.head_crc if batch is not None else 0,
            )
        )
        end = active.offset + commit_header_bytes + body_bytes
        persisted = None
        if batch is not None:
            persisted = PersistedCommit(
                first,
                batch,
                active.header.number,
                end,
                number=self._commit,
                epoch=active.header.epoch,
                checksum=crc,
                chained=flags != 0,
            )
            active.add(end, first, before, batch)
        buffers: list[Buffer] = [header, *(batch.buffers() if batch is not None else ())]
        chain_continues = bool(flags & FLAG_CONTINUES)
        job = WriteCommit(
            segment=active.header.number,
            offset=active.offset,
            buffers=buffers,
            bytes=commit_header_bytes + body_bytes,
            # A chain counts only with its end, so one sync after the end is enough.
            sync=self._policy is SyncPolicy.ALWAYS and not chain_continues,
            number=self._commit,
        )
        active.advance(end, crc)
        self._commit += 1
        self._written_end = first + count
        self._send(job, persisted, end=self._written_end, chain_continues=chain_continues)

    def _send(
        self,
        job: JournalJob,
        persisted: PersistedCommit | None,
        *,
        end: int = -1,
        chain_continues: bool = False,
    ) -> None:
        self._in_flight = CommitInFlight(job, persisted, end, chain_continues)
        self.queued.append(job)

    def _sync_sent(self) -> bool:
        """Sync unsynced commits, if any (policies `interval` and `never`)."""
        assert self.active is not None
        self._sync_at = None
        if self._synced_through == self._commit - 1:
            return False
        self._send(SyncSegment(segment=self.active.header.number, number=self._commit - 1), None)
        return True

    def _commit_done(self, job: JournalJob, now: Now) -> None:
        flight, self._in_flight = self._in_flight, None
        assert flight is not None
        assert flight.job is job
        if isinstance(job, WriteCommit):
            if job.sync:
                self._synced_through, self.synced_end = job.number, self._written_end
            if flight.persisted is None:
                return
            self._chained.append(flight.persisted)
            if not flight.chain_continues:
                self._persisted += self._chained
                self._chained = []
                self.persisted_end = flight.end
                if self._policy is SyncPolicy.ALWAYS:
                    self._mark_at = now.mono + mark_idle_seconds
                elif self._policy is SyncPolicy.INTERVAL and self._sync_at is None:
                    self._sync_at = now.mono + self._interval
        elif isinstance(job, SyncSegment):
            self._synced(job.number)
            if not self.closing:
                self._mark_at = now.mono + mark_idle_seconds
        elif isinstance(job, SealSegment):
            self.closed = True
        else:
            if isinstance(job, RollSegment):
                self.sealed_through = job.old
            self._synced(self._commit - 1)
            self._mark_at = self._sync_at = None

    def _synced(self, commit: int) -> None:
        """Record that all commits up to `commit` are durable. This holds because one job is in flight at a
        time."""
        self._synced_through, self.synced_end = commit, self._written_end

    def _latch(self, job: JournalJob, error: OSError) -> None:
        """Record the first failed write or sync as permanent: the contents of the disk are unknown."""
        what = type(job).__name__
        self.failure = JournalFailed(
            f"Cannot write to the log: {what} failed: {error}. No more messages are acknowledged. "
            "Stop the server, repair the disk, and start it again."
        )
        self._mark_at = self._sync_at = None
        self.preallocation.stop_retrying()
        self.queued.clear()

    # -- segments -------------------------------------------------------------------------------------

    def _prepare_ahead(self, now: Now, *, waits: bool) -> None:
        """Reserve the next segment when the active one is half full or the next commit does not fit
        (`waits`)."""
        active, following = self.active, self._next
        prepared = self.preallocation.prepared
        needed = following.segment_bytes if following is not None and waits else 0
        if self._wanted and self._wants_segment():
            waits, needed = True, max(needed, self._wanted_bytes())
        elif self._next is None and (self.closing or (active is not None and active.offset <= active.half)):
            return
        if not self.preallocation.may_request(now):
            return
        if self._in_flight is not None and isinstance(self._in_flight.job, StartSegment | RollSegment):
            return  # a file after a segment proves that the segment's header was durable
        if prepared is not None and needed <= prepared.capacity:
            return
        if active is None or waits or active.offset > active.half:
            number = active.header.number + 1 if active else self._end.segment + 1
            self.queued.append(self.preallocation.request(number, needed))

    def _wants_segment(self) -> bool:
        """Return whether a new segment is needed because a chain does not fit in the active one.

        False inside another chain."""
        wanted = bool(self._wanted) and not self.closing and not self._chained
        return wanted and not self.has_room(self._wanted)

    def _wanted_bytes(self) -> int:
        return segment_bytes_of(self._wanted + self._accepted_room() + _SPARE_BYTES)

    def _fits_prepared(self, nbytes: int) -> bool:
        """Return whether a segment of at least `nbytes` is reserved."""
        prepared = self.preallocation.prepared
        return prepared is not None and nbytes <= prepared.capacity

    def _prepare_done(self, job: PrepareSegment, error: OSError | None, salt: int, now: Now) -> None:
        if error is not None and not isinstance(error, DiskFull):
            self._latch(job, error)
            return
        smaller = self.preallocation.done(job, error, salt, now)
        if smaller is not None:
            self.queued.append(smaller)

    def _begin_segment(self, now: Now) -> None:
        """Seal the active segment, if any, and continue in the prepared segment."""
        if self.active is None or not self._sync_sent():
            self._start_segment(self.active, now)

    def _start_segment(self, old: ActiveSegment | None, now: Now) -> None:
        number, capacity, salt = self.preallocation.take()
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
        self.active = ActiveSegment(header, crc, capacity)
        self.opened.append(self.active)
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

    def _make_seal(self, active: ActiveSegment) -> tuple[list[Buffer], int, int]:
        """Return the seal's bytes, its checksum (which the next segment refers to) and the file length."""
        log_end = self._end._replace(timestamp=self._log_time)
        buffers, header = make_seal(active, self._commit, self._written_end, self._synced_through, log_end)
        self._commit += 1
        active.advance(header.end, header.crc)
        return buffers, header.crc, header.end
