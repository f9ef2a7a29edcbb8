"""The running journal: group commit, the log view for readers, and publisher sequences.

Pure: disk access happens through jobs and read requests.

Invariant: readers see nothing above the persisted end.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

from tickertape.base.interfaces import Now
from tickertape.batch import MessageBatch, Stamp
from tickertape.journal.commit.group_commit import GroupCommit, PersistedCommit, SyncPolicy
from tickertape.journal.index.segment_index import late_spans, publisher_spans
from tickertape.journal.limits import segment_bytes_default
from tickertape.journal.reading.archive_tier import ArchiveTier
from tickertape.journal.reading.log_reader import LogReader
from tickertape.journal.reading.log_view import LogView
from tickertape.journal.recovery.recovery import RecoveredJournal


class AcceptedBatch(NamedTuple):
    """A batch on its way to the disk. Without a batch it is a chain, which is hidden until it is
    persisted."""

    position: int
    """Position of its first message. For a chain, the position after it."""
    batch: MessageBatch | None
    stamp: Stamp | None


_position_of: Final = itemgetter(0)


class LastRecords(Protocol):
    """Source of the control records that end a commit."""

    def last_records(self) -> tuple[MessageBatch, Stamp] | None:
        """Remove and return the records, one run."""


class Journal:
    """An opened journal.

    `append` and `append_chain` accept messages. `commits` performs all further steps to the disk.
    `take_persisted` makes commits visible in `view`."""

    def __init__(
        self,
        recovered: RecoveredJournal,
        now: Now,
        *,
        policy: SyncPolicy = SyncPolicy.ALWAYS,
        interval_seconds: float = 1.0,
        segment_bytes: int = segment_bytes_default,
        archive: ArchiveTier | None = None,
    ) -> None:
        self.identity = recovered.end.journal_id.hex()
        self.journal_id = recovered.end.journal_id
        self.view = LogView(recovered.segments, recovered.retired, archive)
        self.leftovers = recovered.leftovers
        """Segments whose removal an earlier run recorded but did not finish."""
        self.policy = policy
        self.level = "local" if policy is SyncPolicy.ALWAYS else "written"
        """Durability of a `PersistedCommit` under this sync policy."""
        self.highest = dict(recovered.publishers)
        """Highest accepted sequence of each publisher, durable or not."""
        self.persisted_highest = dict(recovered.publishers)
        """Highest persisted sequence of each publisher."""
        self._log_time = recovered.end.timestamp
        self.accepted: list[AcceptedBatch] = []
        """Batches that `take_accepted` returns, without last records of commits."""
        self.ended: list[AcceptedBatch] = []
        """Last records of commits that `take_accepted` returns."""
        self._last_records: LastRecords | None = None
        self.commits = GroupCommit(
            recovered.end,
            policy=policy,
            interval_seconds=interval_seconds,
            segment_bytes=segment_bytes,
            reserved_bytes=recovered.reserved_bytes,
            now=now,
        )

    # -- inputs ---------------------------------------------------------------------------------------

    def end_commits_with(self, last_records: LastRecords) -> None:
        """End each commit of batches with control records of a source, which is asked when it ends."""
        self._last_records = last_records
        self.commits.end_with(self)

    def take_last(self) -> tuple[MessageBatch, Stamp] | None:
        """Accept and return the records that end the open commit."""
        assert self._last_records is not None
        last = self._last_records.last_records()
        if last is not None:
            batch, stamp = last
            self.highest[stamp.publisher] = stamp.first_sequence + batch.count - 1
            self.ended.append(AcceptedBatch(self.commits.accepted_end, batch, stamp))
        return last

    def append(
        self, batch: MessageBatch, stamp: Stamp, last_sequence: int, now: Now, *, more: bool = False
    ) -> int:
        """Accept a batch of one run whose last message has `last_sequence`. Return its first position.

        `more`: another batch follows at once, in the same commit if it fits."""
        if last_sequence > self.highest.get(stamp.publisher, 0):  # not in a late run
            self.highest[stamp.publisher] = last_sequence
        first = self.commits.append(batch, stamp, now, more=more)
        self.accepted.append(AcceptedBatch(first, batch, stamp))
        return first

    def append_chain(self, parts: Sequence[tuple[MessageBatch, Stamp]], now: Now) -> int:
        """Accept batches of one run each that are persisted atomically, in one segment. Return the first
        position.

        The caller must check `has_room` for all of them first."""
        for batch, stamp in parts:
            last = stamp.first_sequence + batch.count - 1
            self.highest[stamp.publisher] = max(last, self.highest.get(stamp.publisher, 0))
        first = self.commits.append_chain(parts, now)
        self.accepted.append(AcceptedBatch(self.commits.accepted_end, None, None))
        return first

    def log_time(self, now: Now) -> int:
        """Return the log time (microseconds): the wall clock, but never decreasing. Runs accepted later have
        later timestamps."""
        if now.wall > self._log_time:
            self._log_time = now.wall
        return self._log_time

    def next_stamp(self, now: Now) -> int:
        """Return the timestamp (microseconds) of the next run: the wall clock, but above all earlier
        timestamps."""
        self._log_time = max(self._log_time + 1, now.wall)  # invariant 25
        return self._log_time

    # -- outputs --------------------------------------------------------------------------------------

    def take_accepted(self) -> list[AcceptedBatch]:
        """Drain the batches that were accepted, in order."""
        accepted, self.accepted = self.accepted, []
        if self.ended:
            accepted = sorted(accepted + self.ended, key=_position_of)
            self.ended = []
        return accepted

    def take_persisted(self) -> list[PersistedCommit]:
        """Drain the newly persisted commits and make them visible to readers."""
        if self.commits.opened:
            for active in self.commits.take_opened():
                self.view.opened(active)
        persisted = self.commits.take_persisted()
        chained_from: int | None = None
        for commit in persisted:
            self.view.persisted(commit)
            spans = publisher_spans(commit.batch)
            for publisher, _, high in spans:
                self.persisted_highest[publisher] = high
            if commit.batch.run_count > 1 or not spans:
                self._count_late(commit.batch)
            if commit.chained and chained_from is None:
                chained_from = commit.first_position
        if chained_from is not None:
            self.view.copy_tail(chained_from)
        return persisted

    def _count_late(self, batch: MessageBatch) -> None:
        """Count the late runs of a persisted commit. They may be all that is persisted of a publisher."""
        for publisher, _, high in late_spans(batch):
            self.persisted_highest[publisher] = max(high, self.persisted_highest.get(publisher, 0))

    def reader(self, position: int, topic: str | None = None) -> LogReader:
        """Return a reader of the persisted log from `position` that skips blocks without `topic`."""
        return LogReader(self.view, position, topic)

    # -- state ----------------------------------------------------------------------------------------

    @property
    def file_bytes(self) -> int:
        """Size of all segment files including reserved space, without those being removed."""
        return (
            sum([segment.file_bytes for segment in self.view.segments])
            + self.commits.preallocation.prepared_bytes
        )

    @property
    def upcoming_bytes(self) -> int:
        """Growth of `file_bytes` when the next segment is prepared."""
        return self.commits.preallocation.upcoming_bytes
