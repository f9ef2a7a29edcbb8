"""State registry: all SOW topics of a server, the keys of publish frames, and back-pressure."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch
from tickertape.batch.format import Bools, Int64s
from tickertape.engine.limits import sow_key_check_rows_max, state_lag_bytes_max, state_lag_bytes_resume
from tickertape.engine.log_reads.log_reads import LogReads
from tickertape.engine.matching.filter_context import FilterContext
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.log_writer import LogWriter
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.runtime.scheduling import Pending
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.read_throttle import ReadThrottle
from tickertape.engine.sessions.session import Session
from tickertape.engine.sow.accepted import AcceptedRows, TopicDelete, TopicKeys
from tickertape.engine.sow.expiry import RecordExpiry
from tickertape.engine.sow.log_fold import LogFold
from tickertape.engine.sow.memory import StateMemory
from tickertape.engine.sow.part_fold import States, own_rows
from tickertape.engine.sow.query.column_memory import ColumnMemory
from tickertape.engine.sow.recovery import StatePlan, load_files
from tickertape.engine.sow.state.fold import StateFold
from tickertape.engine.sow.topic import RowKeys, StateTopic
from tickertape.journal.format.segment import CommitHeader
from tickertape.journal.journal import AcceptedBatch, Journal
from tickertape.journal.reading.commit_search import find_commit
from tickertape.journal.reading.log_reader import LogReader, message_at
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.journal.retention import find_last_message


class FrameKeys(NamedTuple):
    """Keys of the messages of a publish frame."""

    topics: list[TopicKeys]
    bad: dict[int, str]
    """Messages without a valid key, by index, and the reason."""
    deletes: Sequence[TopicDelete] = ()
    """Deletes of records, in the order of their rows."""

    def of_rows(self, rows: Int64s) -> FrameKeys:
        """Return the keys and deletes of the ascending messages `rows`, for a frame with these alone."""
        topics = []
        for topic, own, names in self.topics:
            kept = np.isin(own, rows)
            left = [name for name, stays in zip(names, kept.tolist(), strict=True) if stays]
            topics.append(TopicKeys(topic, rows.searchsorted(own[kept]), left))
        places = {row: place for place, row in enumerate(rows.tolist())}
        deletes = [one._replace(row=places[one.row]) for one in self.deletes if one.row in places]
        return FrameKeys(topics, {}, deletes)


class StateAccess(NamedTuple):
    """Journal, clock, events, and reads and appends of the log."""

    journal: Journal
    outbox: Outbox
    reads: LogReads
    writer: LogWriter
    clock: EngineClock
    message_bytes_max: int
    sow_bytes_max: int
    """Memory of all records."""


class RecoveredStates(NamedTuple):
    """Result of the recovery of all SOW topics."""

    last: CommitHeader | None
    """The last commit of messages, or None if it is unknown."""
    report: list[str]
    """Lines for the log of the server."""


class StateRegistry:
    """All SOW topics. `secret` is the secret of the process for hashes of keys."""

    def __init__(
        self,
        catalog: TopicCatalog,
        access: StateAccess,
        throttle: ReadThrottle,
        filter_context: FilterContext,
        secret: bytes,
    ) -> None:
        journal, self._outbox, reads, writer, clock, self.message_bytes_max, bytes_max = access
        self.view = journal.view
        self.clock = clock
        self._catalog = catalog
        self._journal = journal
        self._throttle = throttle
        self._untidy: dict[StateFold, None] = {}
        self.columns = ColumnMemory(clock)
        self._topics = {
            definition.name: StateTopic(definition, filter_context, secret, self._untidy, self.columns)
            for definition in catalog.sow
        }
        self.accepted_rows = AcceptedRows(journal, clock)
        states = States(self.of, self._topics.get)
        self.memory = StateMemory(self.accepted_rows, self.columns, self._outbox, bytes_max)
        self.fold = LogFold(journal, reads, self.accepted_rows, states, self.memory, self._untidy)
        self.expiry = RecordExpiry(self._topics.values(), writer, clock, self.accepted_rows)
        self._awake: list[LogFold] = []
        self._stopped = False
        """Whether the end of the fold was logged."""
        self.pending: Pending = (self._awake, self._untidy, self.expiry.active)
        """Not empty while `step` may have something to fold or to expire."""

    def __bool__(self) -> bool:
        return bool(self._topics)

    @property
    def topics(self) -> Iterable[StateTopic]:
        """All SOW topics."""
        return self._topics.values()

    def of(self, topic: str) -> StateTopic | None:
        """Return the SOW topic that keeps the records of a topic, or None."""
        definition = self._catalog.sow_of(topic)
        return None if definition is None else self._topics[definition.name]

    def recover(self, plan: StatePlan) -> Generator[ReadRequest, Buffer, RecoveredStates]:
        """Load the checkpoints and fold the persisted log, before any other input.

        Damage of the log ends the fold, and everything else is served (row 16 of ADR 44)."""
        view = self._journal.view
        start = view.end_position
        for topic in self._topics.values():
            planned = plan.topics.get(topic.name)
            begin = view.first_position
            if planned is not None:
                topic.set_incomplete(planned.incomplete_because)
                if planned.manifest is not None:
                    load_files(topic.fold, planned.files)
                    topic.fold.begin_at(planned.manifest.end)
                    begin = planned.manifest.start
            start = min(start, begin)
        report = list(plan.report)
        try:
            yield from self._fold_from(start)
            if self.fold.last is None:
                self.fold.begin_after((yield from self._last_message()))
            self.fold.begin(self._journal.commits.persisted_end)
            self.expiry.announce()
            for topic in self._topics.values():
                topic.fold.recovered()
        except JournalCorrupt as error:
            self.fold.stop(error)
            self.expiry.stop()
            self._stopped = True
            report.append(f"SOW topics are not served: {str(error).rstrip('.')}.")
        self.memory.measure(topic.fold for topic in self._topics.values())
        if self.memory.used > self.memory.bytes_max:
            report.append(
                f"The records of all SOW topics need {self.memory.used:,} bytes, and `sow_bytes_max` is "
                f"{self.memory.bytes_max:,}. Messages that need more memory are refused with `sow_full`."
            )
        try:
            last = yield from find_commit(view, view.end_position)
        except JournalCorrupt:
            last = None  # checkpoints start with the next commit
        return RecoveredStates(last, report)

    def _fold_from(self, position: int) -> Generator[ReadRequest, Buffer, None]:
        reader = LogReader(self._journal.view, position)
        while (step := reader.poll()) is not None:
            parts = reader.answer((yield step)) if isinstance(step, ReadRequest) else step
            for part in parts:
                self.fold.take(part)

    def _last_message(self) -> Generator[ReadRequest, Buffer, Bookmark | None]:
        """Find the last message of the log. It precedes the folded part, which starts at a checkpoint."""
        view = self._journal.view
        if view.end_position == view.first_position:
            return None
        position = yield from find_last_message(view)
        found = yield from message_at(view, position)
        return None if found is None else found.bookmark

    # -- intake -----------------------------------------------------------------------------------------

    def read_keys(self, batch: MessageBatch, known: Bools) -> Generator[None, Any, FrameKeys | None]:
        """Read the keys of a frame in pieces.

        Of the messages in `known`, which are duplicates, only the invalid keys are returned. None if no
        message belongs to a SOW topic."""
        states = [self.of(topic) for topic in batch.topics]
        masks = {
            state: [other is state for other in states]
            for state in dict.fromkeys(states)
            if state is not None
        }
        found: dict[StateTopic, list[RowKeys]] = {}
        bad: dict[int, str] = {}
        low = 0
        while low < batch.count:
            high = min(low + sow_key_check_rows_max, batch.count)
            for state, mask in masks.items():
                rows = own_rows(batch, mask, low, high)
                old = known[rows]
                if old.any():
                    bad.update(state.accepted_keys(batch, rows[old]).bad)
                    rows = rows[~old]
                if len(rows):
                    found.setdefault(state, []).append(state.accepted_keys(batch, rows))
            low = high
            if low < batch.count:
                yield None
        for state, parts in found.items():
            for part in parts:
                bad.update(part.bad)
                state.refused += len(part.bad)
        if not found and not bad:
            return None
        return FrameKeys([_joined(state, parts) for state, parts in found.items()], bad)

    def accepted(
        self, session: Session, keys: FrameKeys, batch: MessageBatch, part: AcceptedBatch | None = None
    ) -> None:
        """Keep the keys of a batch that was just appended. The log may have skipped its first messages.
        `part`: the appended batch, if it is not the last one.

        A publisher that is ahead of the fold is not read from."""
        self.accepted_rows.appended(batch, keys.topics, keys.deletes, part)
        if self.fold.lag_bytes > state_lag_bytes_max:
            self._throttle.pause(session.conn, "state")

    def resume_unless_behind(self) -> None:
        """Resume reading from publishers that were ahead of the fold."""
        if self.fold.lag_bytes <= state_lag_bytes_resume:
            self._throttle.resume_all("state")

    # -- the log ----------------------------------------------------------------------------------------

    def persisted(self, nbytes: int) -> None:
        """Count a persisted commit."""
        self.fold.persisted(nbytes)
        self.wake()

    def wake(self) -> None:
        """Let `step` look again: the log has grown, or a read was answered."""
        if not self._awake:
            self._awake.append(self.fold)

    def step(self) -> None:
        """Execute one bounded step of the fold, and one of the expiry."""
        if self._awake or self._untidy:
            if not self.fold.step():
                self._awake.clear()
                self._check_stopped()
            self.expiry.announce()
        if self.expiry.active:
            self.expiry.step()

    def _check_stopped(self) -> None:
        """Log once that the fold has stopped, and end the expiry."""
        if self.fold.failure is not None and not self._stopped:
            self._stopped = True
            self.expiry.stop()
            self._outbox.log_event("sow_stopped", True, {"text": str(self.fold.failure)})


def _joined(state: StateTopic, parts: list[RowKeys]) -> TopicKeys:
    if len(parts) == 1:
        return TopicKeys(state, parts[0].rows, parts[0].keys)
    rows = np.concatenate([part.rows for part in parts])
    return TopicKeys(state, rows, [key for part in parts for key in part.keys])
