"""Log writer: appends messages to the log with their publisher, sequence and timestamp.

With replication, sequences in open holes are appended as late runs. Each commit that opens or fills a hole
ends with a `holes` record.

Invariants:
- A sequence at or below the highest one of its publisher is never appended again, unless it is in a hole.
- Messages of one connection keep their order.
- Timestamps rise with each run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.errors import JournalFull
from tickertape.batch import BatchBuilder, MessageBatch, Stamp, as_late, select, slice_batch
from tickertape.batch.format import Bools, Int64s
from tickertape.engine.limits import (
    after_records_bytes,
    binding_bytes_max,
    hole_bytes,
    holes_per_publisher_max,
    holes_record_bytes,
)
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.holes import ClosedHole, KnownSequences, PublisherConnection
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, CONTROL_TOPIC, PublisherDirectory
from tickertape.journal.commit.accumulator import encoded_size
from tickertape.journal.format.replication_records import (
    AfterRecord,
    ReplicationRecord,
    after,
    encode_record,
    holes,
)
from tickertape.journal.journal import AcceptedBatch, Journal

_RESERVED_STAMPS: Final = 3
"""Timestamps of control records that may precede a begun run: two about its publisher, and one of holes."""


class AppendedPart(NamedTuple):
    """Messages of a batch that were appended as one run."""

    rows: Int64s
    """Their indices in the batch, ascending."""
    batch: MessageBatch
    accepted: AcceptedBatch


class LogWriter:
    """The only component that appends batches to the journal."""

    def __init__(
        self,
        journal: Journal,
        registry: PublisherDirectory,
        clock: EngineClock,
        *,
        replicating: bool = False,
    ) -> None:
        """`replicating`: publishers may send messages that other logs have. A log with open holes has the
        filter of duplicates without it too."""
        self._journal = journal
        self._replicating = replicating
        self._known = _recovered(journal, registry, replicating=replicating)
        """The filter of duplicates. None: the highest sequences suffice."""
        self._reserved: list[int] = []
        """Timestamps of control records before a begun run."""
        self._last_rows = 0
        """Rows of control records that ended a commit after the last append."""
        self.parts: list[AppendedPart] = []
        """Parts of the batch of the last `append_from`, if the log has a filter of duplicates. Callers must
        not change it."""
        if self._known is not None:
            journal.end_commits_with(self)
        self.commits = journal.commits
        self._registry = registry
        self._clock = clock
        self._assigned_spaces: set[int] = set()
        self._begun: Stamp | None = None
        self.duplicates = 0
        """Messages dropped by deduplication since the start."""

    def begin_run(self, publisher: int, name: str, *, derived: bool) -> Stamp:
        """Return the stamp of the run that is appended next, by `append_from` or `append_derived`. `end_run`
        must follow in the same step, also without a run."""
        if not self._registry.is_bound(publisher):
            self._bind(publisher, name, derived=derived)
        if self._known is not None:
            self.commits.end_open()
            self._reserved = [self._journal.next_stamp(self._clock.now) for _ in range(_RESERVED_STAMPS)]
        first = self._next_sequence(publisher) if derived else 0
        self._begun = Stamp(publisher, first, self._journal.next_stamp(self._clock.now))
        return self._begun

    def end_run(self) -> None:
        """End `begin_run`."""
        self._begun = None
        self._reserved = []

    @property
    def end(self) -> int:
        """Position after the last accepted message, without records that ended its commit."""
        return self._journal.commits.accepted_end - self._last_rows

    def position_of(self, batch: MessageBatch, row: int) -> int:
        """Return the position of a message of the batch that was just appended, and not dropped."""
        for part in self.parts:
            at = int(part.rows.searchsorted(row))
            if at < len(part.rows) and int(part.rows[at]) == row:
                return part.accepted.position + at
        return self.end - batch.count + row

    def append_from(
        self, publisher: int, name: str, batch: MessageBatch, connection: PublisherConnection | None = None
    ) -> int:
        """Append messages with sequences of the client, without those that the log already has. Return the
        last sequence. `connection` is needed with replication."""
        if not self._registry.is_bound(publisher):
            self._bind(publisher, name, derived=False)
        # without a call for each message
        last = batch.first_run.first_sequence + batch.count - 1
        if batch.has_sequences:
            last = last_sequence(batch)
        if self._known is not None:
            self._append_exactly(self._known, publisher, batch, connection or PublisherConnection())
            return last
        highest = self._journal.highest.get(publisher, 0)
        if last <= highest:
            self.duplicates += batch.count
            return last
        if batch.first_run.first_sequence <= highest:
            known = int(batch.sequences.searchsorted(np.uint64(highest), side="right"))
            self.duplicates += known
            batch = _rest(batch, known)
        stamp = Stamp(
            publisher,
            batch.first_run.first_sequence,
            self._timestamp(publisher) if self._begun else self._journal.next_stamp(self._clock.now),
        )
        self._journal.append(batch, stamp, last, self._clock.now)
        return last

    def append_linked(self, publisher: int, name: str, batch: MessageBatch) -> None:
        """Append messages that came over a link, without those that the log already has. Needs
        replication."""
        assert self._known is not None
        if not self._registry.is_bound(publisher):
            self._bind(publisher, name, derived=False)
        self._append_exactly(self._known, publisher, batch, None)

    def append_after(self, record: AfterRecord) -> None:
        """Append a record of another log about messages that exist in other logs. Needs replication."""
        assert self._known is not None
        self._append_opening(self._known, record)

    def append_derived(self, publisher: int, name: str, batch: MessageBatch) -> None:
        """Append messages without sequences. They get the next sequences of the client's derived publisher
        id."""
        if not self._registry.is_bound(publisher):
            self._bind(publisher, name, derived=True)
        self._append(publisher, batch)

    def append_control(self, batch: MessageBatch) -> None:
        """Append control records of the server."""
        self._append(CONTROL_PUBLISHER, batch)

    def append_chain(
        self, publisher: int, name: str, batches: Sequence[MessageBatch], record: MessageBatch
    ) -> int:
        """Append the messages of a transaction and its commit record atomically. Return the last sequence of
        the messages."""
        if not self._registry.is_bound(publisher):
            self._bind(publisher, name, derived=True)
        journal, now = self._journal, self._clock.now
        if self._known is not None:
            self.commits.end_open()
            self._last_rows = 0
        sequence = self._next_sequence(publisher)
        chain: list[tuple[MessageBatch, Stamp]] = []
        for batch in batches:
            chain.append((batch, Stamp(publisher, sequence, journal.next_stamp(now))))
            sequence += batch.count
        number = self._next_sequence(CONTROL_PUBLISHER)
        chain.append((record, Stamp(CONTROL_PUBLISHER, number, journal.next_stamp(now))))
        journal.append_chain(chain, now)
        return sequence - 1

    def known(self, publisher: int, batch: MessageBatch, connection: PublisherConnection) -> Bools:
        """Return which messages of a sequenced batch of a client are duplicates."""
        if self._known is not None:
            return ~self._known.admitted(publisher, batch.sequences, connection.received)
        return batch.sequences <= np.uint64(self._journal.highest.get(publisher, 0))

    def reserve(self, nbytes: int) -> None:
        """Request a new segment with `nbytes` of free space. 0 withdraws the request."""
        self.commits.reserve_segment(nbytes, self._clock.now)

    def sync_soon(self) -> None:
        """Request a sync of data that is only written."""
        self.commits.sync_soon(self._clock.now)

    def check_room(self, batch: MessageBatch) -> None:
        """Raise `JournalFull` when the disk has no space for a batch."""
        commits = self.commits
        if commits.full and not commits.can_accept(
            encoded_size(batch) + binding_bytes_max + self._last_bytes(batch)
        ):
            why = commits.full_reason
            raise JournalFull(f"Cannot prepare the next segment: {why}. The server retries every second.")

    def take_closed_holes(self) -> list[ClosedHole]:
        """Remove and return the holes that limits closed: their messages count as duplicates."""
        return [] if self._known is None else self._known.take_closed()

    # -- holes ----------------------------------------------------------------------------------------

    def last_records(self) -> tuple[MessageBatch, Stamp] | None:
        """Remove and return the records of the holes that changed in the open commit."""
        known = self._known
        if known is None or not known.changed:
            return None
        batch = _records_of(
            holes(publisher, known.highest(publisher), known.holes(publisher))
            for publisher in known.take_changed()
        )
        self._last_rows = batch.count
        number = self._next_sequence(CONTROL_PUBLISHER)
        return batch, Stamp(CONTROL_PUBLISHER, number, self._control_time())

    def _append_exactly(
        self,
        known: KnownSequences,
        publisher: int,
        batch: MessageBatch,
        connection: PublisherConnection | None,
    ) -> None:
        """Append the messages of a batch that are not duplicates. `connection`: None for a link."""
        self.parts = []
        first, highest = batch.first_run.first_sequence, known.highest(publisher)
        if connection is not None and first > highest and not connection.opens(highest, first):
            last = last_sequence(batch)
            connection.take(last)
            connection.stored(last)
            self.commits.make_room(batch, self._last_bytes(batch))
            self._append_part(publisher, batch, np.arange(batch.count))
            return
        sequences, linked = batch.sequences, connection is None
        split = known.split(publisher, sequences, from_link=linked)
        start, late = split.above, split.late
        if connection is not None:
            late = late[sequences[late] > np.uint64(connection.received)]
            connection.take(int(sequences[-1]))
        self.duplicates += start - len(late)
        if len(late):
            self._append_late(known, publisher, batch, late, more=start < batch.count)
            if connection is not None:
                connection.stored(int(sequences[late[-1]]))
        if start < batch.count and connection is not None:
            openings = connection.opens(known.highest(publisher), int(sequences[start]))
            for end, proven in openings:
                record = after(self._journal.journal_id, publisher, connection.session, end, proven=proven)
                self._append_opening(known, record, more=True)
            if openings:
                split = known.split(publisher, sequences[start:], from_link=False)
                if len(split.late):  # below the claim
                    more = start + split.above < batch.count
                    self._append_late(known, publisher, batch, split.late + start, more=more)
                start += split.above
            connection.stored(int(sequences[-1]))
        if start < batch.count:
            part = _rest(batch, start)
            self.commits.make_room(part, self._last_bytes(part))
            self._append_part(publisher, part, np.arange(start, batch.count))

    def _append_late(
        self, known: KnownSequences, publisher: int, batch: MessageBatch, rows: Int64s, *, more: bool
    ) -> None:
        part = as_late(select(batch, rows))
        self.commits.make_room(part, self._last_bytes(part))
        known.fill(publisher, batch.sequences[rows])
        self._append_part(publisher, part, rows, more=more)

    def _append_opening(self, known: KnownSequences, record: AfterRecord, *, more: bool = False) -> None:
        """Append an `after` record, and open its hole."""
        batch = _records_of([record])
        self.commits.make_room(batch, self._last_bytes(batch))
        known.open(record.publisher, record.after, self.commits.accepted_end, proven=not record.unproven)
        stamp = Stamp(CONTROL_PUBLISHER, self._next_sequence(CONTROL_PUBLISHER), self._control_time())
        self._put(batch, stamp, stamp.first_sequence, more=more)

    def _append_part(self, publisher: int, part: MessageBatch, rows: Int64s, *, more: bool = False) -> None:
        """Append the messages `rows` of a batch. The caller ends the open commit first, if
        they do not fit it."""
        stamp = Stamp(publisher, part.first_run.first_sequence, self._timestamp(publisher))
        self._put(part, stamp, last_sequence(part), more=more)
        self.parts.append(AppendedPart(rows, part, self._journal.accepted[-1]))

    def _put(self, batch: MessageBatch, stamp: Stamp, last: int, *, more: bool = False) -> None:
        """Append a batch that fits the open commit, if one is open."""
        self._last_rows = 0
        self._journal.append(batch, stamp, last, self._clock.now, more=more)

    def _last_bytes(self, batch: MessageBatch) -> int:
        """Return the most space of the control records that precede a batch, or end its commit."""
        known = self._known
        if known is None:
            return 0
        each = min(known.count + batch.count + 2, holes_per_publisher_max)
        return after_records_bytes + (len(known.changed) + 1) * (holes_record_bytes + hole_bytes * each)

    def _control_time(self) -> int:
        """Return the timestamp of the next control record, which may precede a begun run."""
        return self._reserved.pop(0) if self._reserved else self._journal.next_stamp(self._clock.now)

    # -- runs -----------------------------------------------------------------------------------------

    def _append(self, publisher: int, batch: MessageBatch) -> None:
        if self._known is not None:
            self.commits.make_room(batch, self._last_bytes(batch))
            self._last_rows, self.parts = 0, []
        first = self._next_sequence(publisher)
        stamp = Stamp(
            publisher,
            first,
            self._timestamp(publisher) if self._begun else self._journal.next_stamp(self._clock.now),
        )
        self._journal.append(batch, stamp, first + batch.count - 1, self._clock.now)

    def _timestamp(self, publisher: int) -> int:
        """Return the timestamp of a run, from `begin_run` if nothing was appended since."""
        begun, self._begun = self._begun, None
        self._reserved = []  # they are below the timestamp of the run
        if begun is not None and begun.publisher == publisher:
            return begun.timestamp
        return self._journal.next_stamp(self._clock.now)

    def _bind(self, publisher: int, name: str, *, derived: bool) -> None:
        """Append the record that binds a publisher id to a client name, before its first message."""
        self._append(CONTROL_PUBLISHER, self._registry.bind(publisher, name, derived=derived))

    def _next_sequence(self, publisher: int) -> int:
        """Return the next sequence of a publisher whose sequences the server assigns."""
        highest = self._journal.highest.get(publisher, 0)
        if publisher not in self._assigned_spaces:
            # The clock is above every sequence of an earlier run, so a lost sequence is never reused.
            self._assigned_spaces.add(publisher)
            highest = max(highest, self._clock.wall * 1000)
        return highest + 1


def last_sequence(batch: MessageBatch) -> int:
    """Return the sequence of the last message of a batch with one run."""
    if batch.has_sequences:
        return int(batch.sequences[-1])
    return batch.first_run.first_sequence + batch.count - 1


def _rest(batch: MessageBatch, start: int) -> MessageBatch:
    """Return the messages from `start` on as a copy: a slice would keep the whole frame in memory until the
    end of the log moves past it."""
    return batch if not start else MessageBatch.parse(slice_batch(batch, start, batch.count).encode())


def _records_of(records: Iterable[ReplicationRecord]) -> MessageBatch:
    """Return a batch of control records."""
    builder = BatchBuilder()
    for record in records:
        builder.add(CONTROL_TOPIC, encode_record(record), kind=1)
    return builder.build()


def _recovered(journal: Journal, registry: PublisherDirectory, *, replicating: bool) -> KnownSequences | None:
    """Return the filter with the holes of the log. None: the log has none, and does not replicate."""
    known = KnownSequences(journal.highest)
    found = known.recover(registry.latest, registry.damage)
    return known if found or replicating else None
