"""Owns the running journal: what is persisted, what is accepted, who published what, and the way there and
back.

Ties the group commit to the view that readers have. Pure: the disk is reached through jobs and read requests.
Must never show a reader anything above the persisted end.
"""

from __future__ import annotations

from collections.abc import Sequence

from tickertape.base.errors import TickertapeError
from tickertape.base.interfaces import Now
from tickertape.batch import MessageBatch, Stamp
from tickertape.journal.commit.group_commit import GroupCommit, PersistedCommit, SyncPolicy
from tickertape.journal.commit.jobs import JournalJob
from tickertape.journal.format.clean_shutdown import CleanShutdown
from tickertape.journal.index.segment_index import publisher_spans
from tickertape.journal.limits import batch_memory_bytes, commit_gather_bytes_max, segment_bytes_default
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogView
from tickertape.journal.reading.lookup import next_block_with
from tickertape.journal.recovery.recovery import RecoveredJournal


class Journal:
    """One opened journal. Inputs: `append`, `done`, `wake`, `close`; outputs: `jobs`, `take_persisted`."""

    def __init__(
        self,
        recovered: RecoveredJournal,
        now: Now,
        *,
        policy: SyncPolicy = SyncPolicy.ALWAYS,
        interval_seconds: float = 1.0,
        segment_bytes: int = segment_bytes_default,
    ) -> None:
        self.identity = recovered.end.journal_id.hex()
        self.journal_id = recovered.end.journal_id
        self.view = LogView(recovered.segments, recovered.retired)
        self.leftovers = recovered.leftovers
        """Segments whose removal an earlier run recorded and did not finish."""
        self.policy = policy
        self.highest = dict(recovered.publishers)
        """Highest sequence accepted from each publisher (durable or still on its way)."""
        self.persisted_highest = dict(recovered.publishers)
        """Highest persisted sequence of each publisher."""
        self._log_time = recovered.end.timestamp
        self._commit = GroupCommit(
            recovered.end,
            policy=policy,
            interval_seconds=interval_seconds,
            segment_bytes=segment_bytes,
            reserved_bytes=recovered.reserved_bytes,
            now=now,
        )

    # -- inputs ---------------------------------------------------------------------------------------

    def append(self, batch: MessageBatch, stamp: Stamp, last_sequence: int, now: Now) -> int:
        """Accept a batch of one run whose last message has `last_sequence`; returns its first position."""
        self.highest[stamp.publisher] = last_sequence
        return self._commit.append(batch, stamp, now)

    def append_chain(self, parts: Sequence[tuple[MessageBatch, Stamp]], now: Now) -> int:
        """Accept batches of one run each that are persisted all at once or not at all, in one segment;
        returns the first position. `has_room` for all of them was made sure of."""
        for batch, stamp in parts:
            self.highest[stamp.publisher] = stamp.first_sequence + batch.count - 1
        return self._commit.append_chain(parts, now)

    def want_room(self, nbytes: int, now: Now) -> None:
        """Have a segment begin that has `nbytes` left; 0: no longer. `has_room` and `full` say how it is."""
        self._commit.want_room(nbytes, now)

    def has_room(self, nbytes: int) -> bool:
        """Whether the segment that is written has `nbytes` left beside all that was accepted."""
        return self._commit.has_room(nbytes)

    def log_time(self, now: Now) -> int:
        """The stamp for what is accepted now, microseconds: the wall clock, but never back."""
        if now.wall > self._log_time:
            self._log_time = now.wall
        return self._log_time

    def can_accept(self, nbytes: int) -> bool:
        """False while the disk is full and what may take `nbytes` (see `room_of`) does not fit what is
        reserved."""
        return self._commit.can_accept(nbytes)

    def done(self, job: JournalJob, error: OSError | None, salt: int, now: Now) -> None:
        """The disk's answer to one of `jobs()`."""
        self._commit.done(job, error, salt, now)

    def wake(self, now: Now) -> None:
        """A deadline has come."""
        self._commit.wake(now)

    def sync_soon(self, now: Now) -> None:
        """Sync what was persisted without one, under the policies `interval` and `never`."""
        self._commit.sync_soon(now)

    def close(self, now: Now) -> None:
        """Write what is pending, then seal; `closed` tells when."""
        self._commit.close(now)

    # -- outputs --------------------------------------------------------------------------------------

    def jobs(self) -> list[JournalJob]:
        """Drain the jobs for the disk, in order."""
        return self._commit.jobs()

    def take_persisted(self) -> list[PersistedCommit]:
        """Drain the commits that became persisted; readers see them from now on."""
        for active in self._commit.take_opened():
            self.view.opened(active)
        if not (commits := self._commit.take_persisted()):
            return commits
        for commit in commits:
            self.view.persisted(commit)
            for publisher, _, high in publisher_spans(commit.batch):
                self.persisted_highest[publisher] = high
        chained = [commit.first_position for commit in commits if commit.chained]
        if chained:
            self.view.own(chained[0])
        return commits

    def next_deadline(self) -> float | None:
        """Monotonic second at which `wake` is wanted."""
        return self._commit.next_deadline()

    def reader(self, position: int, topic: str | None = None) -> LogReader:
        """A reader of the persisted log from `position`, skipping what cannot hold `topic`."""
        return LogReader(self.view, position, topic)

    def next_block_with(self, topic: str, position: int) -> int:
        """The first position, not below `position`, from which on `topic` may be found (see `lookup.py`)."""
        return next_block_with(self.view, topic, position)

    # -- state ----------------------------------------------------------------------------------------

    @property
    def sealed_through(self) -> int:
        """The last segment whose seal is durable; 0 when there is none."""
        return self._commit.sealed_through

    @property
    def file_bytes(self) -> int:
        """What all segment files take, reserves included, without those whose removal is on its way."""
        return (
            sum([segment.file_bytes for segment in self.view.segments]) + self._commit.reserve.prepared_bytes
        )

    @property
    def coming_bytes(self) -> int:
        """By how much that grows when the next segment is prepared."""
        return self._commit.reserve.coming_bytes

    @property
    def accepted_end(self) -> int:
        """Position of the next message to be accepted."""
        return self._commit.accepted_end

    @property
    def persisted_end(self) -> int:
        """Position after the last persisted message."""
        return self._commit.persisted_end

    @property
    def synced_end(self) -> int:
        """Position after the last message that is known to be durable; `persisted_end` is that only under the
        policy `always`."""
        return self._commit.synced_end

    @property
    def failure(self) -> TickertapeError | None:
        """The latched failure, if any."""
        return self._commit.failure

    @property
    def ready(self) -> bool:
        """A segment is active and nothing has failed."""
        return self._commit.ready

    @property
    def full(self) -> bool:
        """There is no room to prepare the next segment; retried once a second."""
        return self._commit.full

    @property
    def full_reason(self) -> str:
        """What there is no room of while it is `full`, and what to do."""
        return self._commit.full_reason

    @property
    def closing(self) -> bool:
        """A clean stop has begun."""
        return self._commit.closing

    @property
    def closed(self) -> bool:
        """The journal is sealed after `close`."""
        return self._commit.closed

    @property
    def reached(self) -> CleanShutdown | None:
        """Where the seal of `close` ended the log, once it is `closed`; None when there was none."""
        return self._commit.reached

    @property
    def pending_bytes(self) -> int:
        """What was accepted and is not yet on its way to the disk."""
        return self._commit.pending_bytes

    @property
    def congested(self) -> bool:
        """More waits for the next commit than it should: pause those who publish."""
        waiting = self._commit.pending_bytes + batch_memory_bytes * self._commit.pending_batches
        return waiting > commit_gather_bytes_max

    @property
    def epoch(self) -> int:
        """The epoch of this run."""
        return self._commit.epoch

    @property
    def level(self) -> str:
        """What `PersistedCommit` means under this sync policy: `local` or `written`."""
        return "local" if self.policy is SyncPolicy.ALWAYS else "written"
