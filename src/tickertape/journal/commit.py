"""Owns group commit: what was accepted becomes commits, one in flight, and persisted only after its job
succeeded.

A pure machine. Must never report anything as persisted before the disk answered, send a second commit while
one is in flight, or go on after the first failure (it latches). Running out of room while a segment is
*prepared* is no failure: publishes are refused until a retry succeeds.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final, NamedTuple

from tickertape.base.errors import JournalFailed, TickertapeError
from tickertape.base.limits import (
    commit_batches_max,
    commit_bytes_max,
    commit_header_bytes,
    commit_messages_max,
    mark_idle_seconds,
)
from tickertape.base.ports import Buffer, Now
from tickertape.batch import MessageBatch, Stamp, merge
from tickertape.batch.format import CORRELATION_IDS, EXPIRATIONS, KEYS, KINDS, SEQUENCES
from tickertape.journal.active import Active, LogEnd, make_seal, segment_bytes_for
from tickertape.journal.format import (
    CommitHeader,
    CommitKind,
    SegmentHeader,
    encode_commit,
    encode_segment_header,
)
from tickertape.journal.jobs import (
    Job,
    NoRoom,
    PrepareSegment,
    RollSegment,
    SealSegment,
    StartSegment,
    SyncSegment,
    WriteCommit,
)
from tickertape.journal.reached import Reached
from tickertape.journal.reserve import Reserve

_COLUMN_BYTES: Final = {SEQUENCES: 8, EXPIRATIONS: 8, CORRELATION_IDS: 4, KEYS: 4, KINDS: 1}
_TOPIC_INDEX_BYTES: Final = 4


class SyncPolicy(Enum):
    """When a commit is synced. `ALWAYS` before it is acknowledged; `INTERVAL` every so often; `NEVER` by the
    system."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


class Persisted(NamedTuple):
    """A commit of messages that reached its level of durability."""

    first_position: int
    batch: MessageBatch
    segment: int
    end: int
    """Offset after the commit in its segment."""


class _Next(NamedTuple):
    """The batch of the next commit, and what its parts count in `pending_bytes`."""

    batch: MessageBatch
    pending_bytes: int


class _InFlight(NamedTuple):
    job: Job
    persisted: Persisted | None
    end: int
    """Position after the commit."""


class GroupCommit:
    """The machine. Drivers call `jobs()` after every input, carry them out in order, and answer with
    `done`."""

    def __init__(
        self, log_end: LogEnd, *, policy: SyncPolicy, interval_seconds: float, segment_bytes: int, now: Now
    ) -> None:
        self.accepted_end = log_end.position
        """Position of the next message to be accepted."""
        self.persisted_end = log_end.position
        """Position after the last message whose commit reached its level."""
        self.failure: TickertapeError | None = None
        self.closed = False
        self.active: Active | None = None
        self.sealed_through = log_end.segment
        """The last segment whose seal is durable."""
        self._end = log_end
        self._log_time = log_end.timestamp
        """Of the last commit."""
        self._policy = policy
        self._interval = interval_seconds
        self._reserve = Reserve(segment_bytes)
        self._commit = log_end.commit
        self._synced_through = log_end.commit - 1
        self._pending: deque[tuple[MessageBatch, Stamp]] = deque()
        self._next: _Next | None = None
        self.pending_bytes = 0
        self._written_end = log_end.position
        self._in_flight: _InFlight | None = None
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
        self._advance(now)
        return first

    @property
    def pending_batches(self) -> int:
        """Batches waiting for the next commits."""
        return len(self._pending)

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
        """A deadline has come."""
        self._advance(now)

    def close(self, now: Now) -> None:
        """Write what is pending, seal, and be `closed`. Nothing may be appended afterwards.

        On a full disk, what does not fit is given up: it was never reported as persisted."""
        self._closing = True
        self._mark_at = self._reserve.retry_at = None
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
        if self.closed or self.failure is not None:
            return None
        retry_at = self._reserve.retry_at
        times = [retry_at] if self._in_flight else [retry_at, self._mark_at, self._sync_at]
        return min([time for time in times if time is not None], default=None)

    @property
    def reached(self) -> Reached | None:
        """Where the seal of `close` ended the log, once it is `closed`; None when there was none."""
        if not self.closed or self.active is None:
            return None
        return Reached(segment=self.active.header.number, commit=self._commit - 1, position=self._written_end)

    @property
    def ready(self) -> bool:
        """A segment is active and nothing has failed."""
        return self.active is not None and self.failure is None and not self._closing

    @property
    def closing(self) -> bool:
        """A clean stop has begun."""
        return self._closing

    @property
    def full(self) -> bool:
        """There is no room for another segment; tried again once a second."""
        return self._reserve.full

    @property
    def full_reason(self) -> str:
        """What there is no room of while it is `full`, and what to do."""
        return self._reserve.full_reason

    @property
    def prepared_bytes(self) -> int:
        """What the segment that is reserved and not begun takes."""
        prepared = self._reserve.prepared
        return 0 if prepared is None else prepared.capacity

    @property
    def coming_bytes(self) -> int:
        """What the next segment will take that is not reserved yet."""
        return self._reserve.coming_bytes

    @property
    def epoch(self) -> int:
        """The epoch of this run."""
        return self._end.epoch

    # -- the machine ----------------------------------------------------------------------------------

    def _advance(self, now: Now) -> None:
        if self.failure is not None or self.closed:
            return
        if self._in_flight is None and self._next is None and self._pending:
            self._next = self._gather()
        self._prepare_ahead(now)
        if self._in_flight is not None:
            return
        if self._next is not None and self._next_sent(now):
            return
        if self.active is None:
            if self._closing and self._next is None:
                self.closed = True
            elif self._reserve.prepared is not None and not self._closing:
                self._begin_segment(now)
        elif self._closing and self._next is None:
            if not self._sync_sent():
                self._send_seal()
        elif self._mark_at is not None and now.mono >= self._mark_at:
            self._write(CommitKind.MARK, None)
        elif self._sync_at is not None and now.mono >= self._sync_at:
            self._sync_sent()

    def _next_sent(self, now: Now) -> bool:
        """Send the next commit, or what must come before it; False when it has to wait."""
        assert self._next is not None
        if self._sync_at is not None and now.mono >= self._sync_at:
            return self._sync_sent()  # commits that keep coming must not put it off
        if self.active is not None and self.active.takes(self._next.batch):
            batch, nbytes = self._next
            self._next = None
            self.pending_bytes -= nbytes
            self._write(CommitKind.DATA, batch)
            return True
        prepared = self._reserve.prepared
        if prepared is not None and segment_bytes_for(self._next.batch) <= prepared.capacity:
            self._begin_segment(now)
            return True
        if self._closing and self.full and self._reserve.preparing is None:
            self._pending.clear()
            self._next = None
            self.pending_bytes = 0
        return False

    def _gather(self) -> _Next:
        """One batch of what is pending, as much as a commit may hold; the first is taken whatever its
        size."""
        if len(self._pending) == 1:
            batch, stamp = self._pending.popleft()
            return _Next(merge((batch,), (stamp,)), batch.nbytes)
        parts: list[tuple[MessageBatch, Stamp]] = []
        total = messages = columns = 0
        topics, index_bytes = self._pending[0][0].topics, 0
        while self._pending:
            batch, _ = self._pending[0]
            # A column that only some have is made for all, so a merged batch may be larger than its parts.
            columns |= batch.columns
            if batch.topics != topics:
                index_bytes = _TOPIC_INDEX_BYTES
            extra = index_bytes + (
                sum(n for bit, n in _COLUMN_BYTES.items() if columns & bit) if columns else 0
            )
            count = messages + batch.count
            if parts and (
                total + batch.nbytes + extra * count > commit_bytes_max
                or count > commit_messages_max
                or len(parts) >= commit_batches_max
            ):
                break
            parts.append(self._pending.popleft())
            total, messages = total + batch.nbytes, count
        return _Next(merge([batch for batch, _ in parts], [stamp for _, stamp in parts]), total)

    def _write(self, kind: CommitKind, batch: MessageBatch | None) -> None:
        active = self.active
        assert active is not None
        self._mark_at = None
        first = self._written_end
        count = batch.count if batch is not None else 0
        before = self._log_time
        if batch is not None:
            self._log_time = max(before, batch.run(batch.run_count - 1).timestamp)
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
            persisted = Persisted(first, batch, active.header.number, end)
            active.add(end, first, before, batch)
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

    def _sync_sent(self) -> bool:
        """Sync what was written without one, if there is any (policies `interval` and `never`)."""
        assert self.active is not None
        self._sync_at = None
        if self._synced_through == self._commit - 1:
            return False
        self._send(SyncSegment(segment=self.active.header.number, number=self._commit - 1), None)
        return True

    def _commit_done(self, job: Job, now: Now) -> None:
        flight, self._in_flight = self._in_flight, None
        assert flight is not None
        assert flight.job is job
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
            if not self._closing:
                self._mark_at = now.mono + mark_idle_seconds
        elif isinstance(job, SealSegment):
            self.closed = True
        else:
            if isinstance(job, RollSegment):
                self.sealed_through = job.old
            self._synced_through = self._commit - 1
            self._mark_at = self._sync_at = None

    def _latch(self, job: Job, error: OSError) -> None:
        """The first failed write or sync: what is on the disk is unknown from here on, so nothing more is
        said."""
        what = type(job).__name__
        self.failure = JournalFailed(
            f"{what} failed: {error}. Nothing more is acknowledged; stop, mend the disk, and start again."
        )
        self._reserve.retry_at = self._mark_at = self._sync_at = None
        self._jobs.clear()

    # -- segments -------------------------------------------------------------------------------------

    def _prepare_ahead(self, now: Now) -> None:
        """Reserve the segment after the active one when half of that is used, or when the next commit needs
        it."""
        active, prepared = self.active, self._reserve.prepared
        if self._next is None and (self._closing or (active is not None and active.offset <= active.half)):
            return
        if not self._reserve.may_ask(now):
            return
        waits = self._next is not None and (active is None or not active.takes(self._next.batch))
        needed = segment_bytes_for(self._next.batch) if self._next is not None and waits else 0
        if prepared is not None and needed <= prepared.capacity:
            return
        if active is None or waits or active.offset > active.half:
            number = active.header.number + 1 if active else self._end.segment + 1
            self._jobs.append(self._reserve.ask(number, needed))

    def _prepare_done(self, job: PrepareSegment, error: OSError | None, salt: int, now: Now) -> None:
        if error is not None and not isinstance(error, NoRoom):
            self._latch(job, error)
            return
        smaller = self._reserve.done(job, error, salt, now)
        if smaller is not None:
            self._jobs.append(smaller)

    def _begin_segment(self, now: Now) -> None:
        """Seal the active segment, if there is one, and go on in the prepared one."""
        if self.active is None or not self._sync_sent():
            self._start_segment(self.active, now)

    def _start_segment(self, old: Active | None, now: Now) -> None:
        number, capacity, salt = self._reserve.take()
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
        """The seal's bytes, its checksum (to which the next segment is chained) and the length of the
        file."""
        log_end = self._end._replace(timestamp=self._log_time)
        buffers, header = make_seal(active, self._commit, self._written_end, self._synced_through, log_end)
        self._commit += 1
        active.offset = header.end
        return buffers, header.crc, header.end
