"""Exact append: appends batches without the messages that the log has, and records its open holes.

Sequences in open holes, and resent messages that links do not bring, are appended as late runs. Each commit
that opens or fills a hole ends with a `holes` record of its publisher, and a commit with rows of a link with
the place of the source. `RunStamps` makes the stamps of all runs.

Invariants:
- A sequence at or below the highest one of its publisher is never appended again, unless it is in a hole, or
  the log lacks it and links may not bring its topic.
- A hole changes in the commit of the rows that change it, and this commit records it.
- An assigned sequence is never used again, even if a crash removed its message.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from tickertape.base.interfaces import Buffer
from tickertape.base.names import LINK_TOPIC
from tickertape.batch import (
    KIND_CONTROL,
    BatchBuilder,
    MessageBatch,
    Stamp,
    as_late,
    as_linked,
    select,
    slice_batch,
)
from tickertape.batch.format import Bools, Int64s, UInt64s
from tickertape.engine.limits import (
    after_records_bytes,
    hole_bytes,
    holes_per_publisher_max,
    holes_record_bytes,
    place_record_bytes,
)
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.holes import ClaimedHole, KnownSequences, PublisherConnection, SequenceSplit
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, CONTROL_TOPIC
from tickertape.journal.format.replication_records import (
    AfterRecord,
    LogPlace,
    ReplicationRecord,
    after,
    encode_record,
    holes,
)
from tickertape.journal.journal import AcceptedBatch, Journal
from tickertape.journal.reading.log_view import ReadRequest

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


class PlaceRecords(Protocol):
    """Encodes the records of places, in the order of the log."""

    @property
    def record_bytes_max(self) -> int:
        """Most bytes of the next body."""

    def place_record(self, place: LogPlace) -> bytes:
        """Return the body of the record of a place that moved."""


class _MovedPlace(NamedTuple):
    place: LogPlace
    records: PlaceRecords


class LinkedRun(NamedTuple):
    """Facts about a run of a link, as this log stores it."""

    origin: int
    """Number of its origin in this log."""
    order_stamp: int
    """Microseconds since 1970 UTC."""


class ResentMessages(Protocol):
    """Decides about messages of clients at or below the highest sequence of their publisher that the holes do
    not admit."""

    def admitted(
        self, publisher: int, batch: MessageBatch, rows: Int64s, connection: PublisherConnection
    ) -> Int64s:
        """Return the messages of `rows` to append nevertheless, ascending."""

    def look_up(
        self, publisher: int, batch: MessageBatch, rows: Int64s, connection: PublisherConnection
    ) -> Generator[ReadRequest | None, Buffer, None] | None:
        """Return the search for messages of `rows` that must precede `admitted`. None: it needs none."""


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
        self._places: dict[bytes, _MovedPlace] = {}
        """Places whose records end the open commit, by their log."""
        self._resent: ResentMessages | None = None
        journal.end_commits_with(self)

    def decide_resent_with(self, resent: ResentMessages) -> None:
        """Append messages that holes do not admit, if `resent` says so."""
        self._resent = resent

    def look_up(
        self, publisher: int, batch: MessageBatch, connection: PublisherConnection
    ) -> Generator[ReadRequest | None, Buffer, None] | None:
        """Return the search that must precede `append` and `admitted` of a batch. None: it needs none."""
        if self._resent is None or batch.first_run.first_sequence > self.known.highest(publisher):
            return None
        rows = self._duplicates(publisher, batch.sequences, connection)
        return self._resent.look_up(publisher, batch, rows, connection) if len(rows) else None

    def admitted(self, publisher: int, batch: MessageBatch, connection: PublisherConnection) -> Bools:
        """Return which messages of a batch of a client `append` would append."""
        wanted = self.known.admitted(publisher, batch.sequences, connection.received)
        if self._resent is not None and not wanted.all():
            rows = self._duplicates(publisher, batch.sequences, connection)
            wanted[self._resent.admitted(publisher, batch, rows, connection)] = True
        return wanted

    def _duplicates(self, publisher: int, sequences: UInt64s, connection: PublisherConnection) -> Int64s:
        """Return the messages that the holes do not admit, and that arrive in order on the connection."""
        admitted = self.known.admitted(publisher, sequences, 0)
        return (~admitted & (sequences > np.uint64(connection.received))).nonzero()[0]

    def append(self, publisher: int, batch: MessageBatch, connection: PublisherConnection) -> int:
        """Append the messages of a batch of a client that are not duplicates. Return the number of
        duplicates."""
        self.parts.clear()
        known = self.known
        first, highest = batch.first_run.first_sequence, known.highest(publisher)
        if first > highest and not connection.opens(highest, first):
            last = last_sequence(batch)
            connection.take(last)
            connection.stored(last)
            self.make_room(batch)
            self._append_part(publisher, batch, np.arange(batch.count))
            return 0
        sequences = batch.sequences
        split = known.split(publisher, sequences, from_link=False)
        start, late = split.above, split.late
        if self._resent is not None and split.duplicates:
            rows = self._duplicates(publisher, sequences, connection)
            late = np.union1d(late, self._resent.admitted(publisher, batch, rows, connection))
        late = late[sequences[late] > np.uint64(connection.received)]
        connection.take(int(sequences[-1]))
        duplicates = start - len(late)
        if len(late):
            self._append_late(publisher, batch, late, more=start < batch.count)
            connection.stored(int(sequences[late[-1]]))
        if start < batch.count:
            start = self._open_before(publisher, batch, start, connection)
            connection.stored(int(sequences[-1]))
        if start < batch.count:
            part = rest_of(batch, start)
            self.make_room(part)
            self._append_part(publisher, part, np.arange(start, batch.count))
        return duplicates

    def append_linked(
        self, batch: MessageBatch, split: SequenceSplit, run: LinkedRun, opening: AfterRecord | None = None
    ) -> None:
        """Append the messages of a run of a link that are not duplicates, as `split` says. `write_soon` must
        follow, also after several runs.

        `opening`: the record of another log that is the only message of the batch. It opens its hole."""
        self.parts.clear()
        publisher, sequences = batch.first_run.publisher, batch.sequences
        late, above, _ = split
        if len(late):
            part = as_linked(select(batch, late), *run, late=True)
            self._make_linked_room(part, opening)
            self.known.fill(publisher, sequences[late])
            self._open_linked(opening)  # behind the fill: a limit may close the filled hole
            self._append_part(publisher, part, late, more=True)
        if above < batch.count:
            part = as_linked(slice_batch(batch, above, batch.count), *run, late=False)
            self._make_linked_room(part, opening)
            self._open_linked(opening)
            self._append_part(publisher, part, np.arange(above, batch.count), more=True)

    def _make_linked_room(self, part: MessageBatch, opening: AfterRecord | None) -> None:
        """End the open commit if a part of a link does not fit it."""
        self._commits.make_room(part, self.last_bytes(part, 1 if opening is None else 2))

    def _open_linked(self, opening: AfterRecord | None) -> None:
        """Open the hole of the record of a link that is appended next."""
        if opening is not None:
            end = self._commits.accepted_end
            self.known.open(opening.publisher, opening.after, end, proven=not opening.unproven)

    def append_place(self, place: LogPlace, records: PlaceRecords) -> int:
        """Append the record of a place of another log, at the end of the open commit. `write_soon` must
        follow.

        Return a position: the record is persisted when the log is persisted beyond it."""
        end = self._commits.accepted_end
        if self._commits.is_open:
            self._places[place.log] = _MovedPlace(place, records)
        else:
            batch = _records_of((), [records.place_record(place)])
            stamp = self._stamps.of_control()
            self._put(batch, stamp, stamp.first_sequence, more=True)
        return end

    def write_soon(self) -> None:
        """Start the open commit, if the disk is free."""
        self._commits.wake(self._clock.now)

    def append_after(self, records: Sequence[AfterRecord], *, more: bool = False) -> None:
        """Append records about messages that exist in other logs, and open their holes."""
        batch = _records_of(records)
        self._commits.make_room(batch, self.last_bytes(batch, len(records)))
        end = self._commits.accepted_end
        for row, record in enumerate(records):
            self.known.open(record.publisher, record.after, end + row, proven=not record.unproven)
        stamp = self._stamps.of_control()
        self._put(batch, stamp, stamp.first_sequence + batch.count - 1, more=more)

    def close_holes(self, position: int, count_max: int) -> int:
        """Close about `count_max` holes whose records are before a position: all logs have their messages.
        Return the number of closed holes.

        The next commit records it, and no more holes are closed before it: its records have no other bound.
        After a crash before it, the holes are open again."""
        known = self.known
        if not known.has_before(position):
            return 0
        self._commits.end_open()  # its space for last records is fixed
        return 0 if known.changed else known.close_before(position, count_max)

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

    def last_bytes(self, batch: MessageBatch, publishers: int = 1) -> int:
        """Return the most space of the control records that precede a batch of `publishers`, or end its
        commit."""
        each = min(self.known.count + batch.count + 2, holes_per_publisher_max)
        changed = len(self.known.changed) + publishers
        places = sum([place_record_bytes + moved.records.record_bytes_max for moved in self._places.values()])
        return after_records_bytes + changed * (holes_record_bytes + hole_bytes * each) + places

    def last_records(self) -> tuple[MessageBatch, Stamp] | None:
        """Remove and return the records of the holes that changed in the open commit, and of places."""
        known, places = self.known, self._places
        if not known.changed and not places:
            return None
        batch = _records_of(
            [
                holes(publisher, known.highest(publisher), known.holes(publisher))
                for publisher in known.take_changed()
            ],
            [records.place_record(place) for place, records in places.values()],
        )
        places.clear()
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
        if connection.claim is not None and connection.claim > (highest := known.highest(publisher)):
            connection.opened = ClaimedHole(highest + 1, connection.claim)
        for end, proven in openings:
            log, session = self._journal.journal_id, connection.session
            self.append_after([after(log, publisher, session, end, proven=proven)], more=True)
        split = known.split(publisher, sequences[start:], from_link=False)
        if len(split.late):  # below the claim
            more = start + split.above < batch.count
            self._append_late(publisher, batch, split.late + start, more=more)
        return start + split.above

    def _append_late(self, publisher: int, batch: MessageBatch, rows: Int64s, *, more: bool) -> None:
        part = as_late(select(batch, rows))
        self.make_room(part)
        self._fill(publisher, batch.sequences[rows])
        self._append_part(publisher, part, rows, more=more)

    def _fill(self, publisher: int, sequences: UInt64s) -> None:
        """Remove rising sequences from the holes of a publisher. Resent messages may be in none."""
        inside = self.known.inside(publisher, sequences, from_link=True)
        if inside.any():
            self.known.fill(publisher, sequences[inside])

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


def _records_of(records: Sequence[ReplicationRecord], places: Sequence[bytes] = ()) -> MessageBatch:
    """Return a batch of control records, with records of places behind them."""
    builder = BatchBuilder()
    for record in records:
        builder.add(CONTROL_TOPIC, encode_record(record), kind=KIND_CONTROL)
    for body in places:
        builder.add(LINK_TOPIC, body, kind=KIND_CONTROL)
    return builder.build()
