"""Exact append: appends batches without the messages that the log has, and records its open holes.

Sequences in open holes are appended as late runs. Each commit that opens or fills a hole ends with a `holes`
record of its publisher. `RunStamps` makes the stamps of all runs.

Invariants:
- A sequence at or below the highest one of its publisher is never appended again, unless it is in a hole.
- A hole changes in the commit of the rows that change it, and this commit records it.
- An assigned sequence is never used again, even if a crash removed its message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from tickertape.batch import BatchBuilder, MessageBatch, Stamp, as_late, select, slice_batch
from tickertape.batch.format import Int64s
from tickertape.engine.limits import (
    after_records_bytes,
    hole_bytes,
    holes_per_publisher_max,
    holes_record_bytes,
)
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.holes import KnownSequences, PublisherConnection
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, CONTROL_TOPIC
from tickertape.journal.format.replication_records import (
    AfterRecord,
    ReplicationRecord,
    after,
    encode_record,
    holes,
)
from tickertape.journal.journal import AcceptedBatch, Journal

_RESERVED: Final = 3
"""Timestamps of control records that may precede a begun run: two about its publisher, and one of last
records."""


class RunStamps:
    """Makes the stamps of the runs that are appended to a journal."""

    def __init__(self, journal: Journal, clock: EngineClock) -> None:
        self.begun: Stamp | None = None
        """Stamp of the run that is appended next. Callers must not change it."""
        self._journal = journal
        self._clock = clock
        self._reserved: list[int] = []
        """Timestamps of control records before a begun run."""
        self._assigned: set[int] = set()
        """Publishers that got a sequence since the start."""

    def begin(self, publisher: int, *, derived: bool, reserve: bool) -> Stamp:
        """Return the stamp of the run that is appended next. `reserve`: control records may precede it."""
        if reserve:
            self._reserved = [self._journal.next_stamp(self._clock.now) for _ in range(_RESERVED)]
        first = self.next_sequence(publisher) if derived else 0
        self.begun = Stamp(publisher, first, self._journal.next_stamp(self._clock.now))
        return self.begun

    def end(self) -> None:
        """Drop the stamp of a begun run, if no run used it."""
        self.begun = None
        self._reserved = []

    def timestamp(self, publisher: int) -> int:
        """Return the timestamp of a run: the begun one, if nothing was appended since."""
        begun, self.begun = self.begun, None
        self._reserved = []  # they are below the timestamp of the run
        if begun is not None and begun.publisher == publisher:
            return begun.timestamp
        return self._journal.next_stamp(self._clock.now)

    def of_control(self) -> Stamp:
        """Return the stamp of the next control records, which may precede a begun run."""
        time = self._reserved.pop(0) if self._reserved else self._journal.next_stamp(self._clock.now)
        return Stamp(CONTROL_PUBLISHER, self.next_sequence(CONTROL_PUBLISHER), time)

    def next_sequence(self, publisher: int) -> int:
        """Return the next sequence of a publisher whose sequences the server assigns."""
        highest = self._journal.highest.get(publisher, 0)
        if publisher not in self._assigned:
            # The clock is above every sequence of an earlier run, so a lost sequence is never reused.
            self._assigned.add(publisher)
            highest = max(highest, self._clock.wall * 1000)
        return highest + 1


class AppendedPart(NamedTuple):
    """Messages of a batch that were appended as one run."""

    rows: Int64s
    """Their indices in the batch, ascending."""
    batch: MessageBatch
    accepted: AcceptedBatch


class ExactAppend:
    """Appends to a log whose publishers may send messages that other logs have."""

    def __init__(
        self, journal: Journal, known: KnownSequences, stamps: RunStamps, clock: EngineClock
    ) -> None:
        self.known = known
        """Sequences that the log has, or does not expect."""
        self.parts: list[AppendedPart] = []
        """Parts of the last batch of `append`. Callers must not change it."""
        self.last_rows = 0
        """Rows of control records that ended a commit after the last append."""
        self._journal = journal
        self._commits = journal.commits
        self._stamps = stamps
        self._clock = clock
        journal.end_commits_with(self)

    def append(self, publisher: int, batch: MessageBatch, connection: PublisherConnection | None) -> int:
        """Append the messages of a batch that are not duplicates. Return the number of duplicates.

        `connection`: the one that sent the batch, or None for a link."""
        self.parts.clear()
        known = self.known
        first, highest = batch.first_run.first_sequence, known.highest(publisher)
        if connection is not None and first > highest and not connection.opens(highest, first):
            last = last_sequence(batch)
            connection.take(last)
            connection.stored(last)
            self.make_room(batch)
            self._append_part(publisher, batch, np.arange(batch.count))
            return 0
        sequences, linked = batch.sequences, connection is None
        split = known.split(publisher, sequences, from_link=linked)
        start, late = split.above, split.late
        if connection is not None:
            late = late[sequences[late] > np.uint64(connection.received)]
            connection.take(int(sequences[-1]))
        duplicates = start - len(late)
        if len(late):
            self._append_late(publisher, batch, late, more=start < batch.count)
            if connection is not None:
                connection.stored(int(sequences[late[-1]]))
        if start < batch.count and connection is not None:
            start = self._open_before(publisher, batch, start, connection)
            connection.stored(int(sequences[-1]))
        if start < batch.count:
            part = rest_of(batch, start)
            self.make_room(part)
            self._append_part(publisher, part, np.arange(start, batch.count))
        return duplicates

    def append_after(self, record: AfterRecord, *, more: bool = False) -> None:
        """Append a record about messages that exist in other logs, and open its hole."""
        batch = _records_of([record])
        self.make_room(batch)
        end = self._commits.accepted_end
        self.known.open(record.publisher, record.after, end, proven=not record.unproven)
        stamp = self._stamps.of_control()
        self._put(batch, stamp, stamp.first_sequence, more=more)

    def position_of(self, row: int) -> int | None:
        """Return the position of a message of the last batch. None: it was dropped, or the batch was not
        filtered."""
        for part in self.parts:
            at = int(part.rows.searchsorted(row))
            if at < len(part.rows) and int(part.rows[at]) == row:
                return part.accepted.position + at
        return None

    # -- commits --------------------------------------------------------------------------------------

    def make_room(self, batch: MessageBatch) -> None:
        """End the open commit if a batch that is appended next does not fit it."""
        self._commits.make_room(batch, self.last_bytes(batch))

    def appended_other(self) -> None:
        """Note that a batch without the filter is appended next."""
        self.last_rows = 0
        self.parts.clear()

    def last_bytes(self, batch: MessageBatch) -> int:
        """Return the most space of the control records that precede a batch, or end its commit."""
        each = min(self.known.count + batch.count + 2, holes_per_publisher_max)
        changed = len(self.known.changed) + 1
        return after_records_bytes + changed * (holes_record_bytes + hole_bytes * each)

    def last_records(self) -> tuple[MessageBatch, Stamp] | None:
        """Remove and return the records of the holes that changed in the open commit."""
        known = self.known
        if not known.changed:
            return None
        batch = _records_of(
            holes(publisher, known.highest(publisher), known.holes(publisher))
            for publisher in known.take_changed()
        )
        self.last_rows = batch.count
        return batch, self._stamps.of_control()

    # -- parts of a batch -----------------------------------------------------------------------------

    def _open_before(
        self, publisher: int, batch: MessageBatch, start: int, connection: PublisherConnection
    ) -> int:
        """Open the holes that precede the message `start` of a connection. Return the first message above
        them."""
        known, sequences = self.known, batch.sequences
        openings = connection.opens(known.highest(publisher), int(sequences[start]))
        if not openings:
            return start
        for end, proven in openings:
            log, session = self._journal.journal_id, connection.session
            self.append_after(after(log, publisher, session, end, proven=proven), more=True)
        split = known.split(publisher, sequences[start:], from_link=False)
        if len(split.late):  # below the claim
            more = start + split.above < batch.count
            self._append_late(publisher, batch, split.late + start, more=more)
        return start + split.above

    def _append_late(self, publisher: int, batch: MessageBatch, rows: Int64s, *, more: bool) -> None:
        part = as_late(select(batch, rows))
        self.make_room(part)
        self.known.fill(publisher, batch.sequences[rows])
        self._append_part(publisher, part, rows, more=more)

    def _append_part(self, publisher: int, part: MessageBatch, rows: Int64s, *, more: bool = False) -> None:
        """Append the messages `rows` of a batch. The caller ends the open commit first, if
        they do not fit it."""
        stamp = Stamp(publisher, part.first_run.first_sequence, self._stamps.timestamp(publisher))
        self._put(part, stamp, last_sequence(part), more=more)
        self.parts.append(AppendedPart(rows, part, self._journal.accepted[-1]))

    def _put(self, batch: MessageBatch, stamp: Stamp, last: int, *, more: bool) -> None:
        """Append a batch that fits the open commit, if one is open."""
        self.last_rows = 0
        self._journal.append(batch, stamp, last, self._clock.now, more=more)


def last_sequence(batch: MessageBatch) -> int:
    """Return the sequence of the last message of a batch with one run."""
    if batch.has_sequences:
        return int(batch.sequences[-1])
    return batch.first_run.first_sequence + batch.count - 1


def rest_of(batch: MessageBatch, start: int) -> MessageBatch:
    """Return the messages from `start` on as a copy: a slice would keep the whole frame in memory until the
    end of the log moves past it."""
    return batch if not start else MessageBatch.parse(slice_batch(batch, start, batch.count).encode())


def _records_of(records: Iterable[ReplicationRecord]) -> MessageBatch:
    """Return a batch of control records."""
    builder = BatchBuilder()
    for record in records:
        builder.add(CONTROL_TOPIC, encode_record(record), kind=1)
    return builder.build()
