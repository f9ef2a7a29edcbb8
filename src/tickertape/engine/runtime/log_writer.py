"""Log writer: appends messages to the log with their publisher, sequence and timestamp.

Invariants:
- A sequence at or below the highest one of its publisher is never appended again, unless it is in a hole, or
  the log lacks it and links may not bring its topic.
- Messages of one connection keep their order.
- Timestamps rise with each run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tickertape.base.errors import JournalFull
from tickertape.batch import MessageBatch, Stamp
from tickertape.batch.format import Bools
from tickertape.engine.limits import binding_bytes_max
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.exact_append import (
    AppendedPart,
    ExactAppend,
    RunStamps,
    last_sequence,
    rest_of,
)
from tickertape.engine.runtime.holes import ClosedHole, KnownSequences, PublisherConnection
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, PublisherDirectory
from tickertape.journal.commit.accumulator import encoded_size
from tickertape.journal.journal import Journal


class LogWriter:
    """The only component that appends batches to the journal.

    `exact` appends in a log whose publishers may send messages that other logs have."""

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
        self.commits = journal.commits
        self._registry = registry
        self._clock = clock
        self._stamps = RunStamps(journal, clock)
        known = _recovered(journal, registry, replicating=replicating)
        self.exact = None if known is None else ExactAppend(journal, known, self._stamps, clock)
        """None: the highest sequences suffice."""
        self.parts: list[AppendedPart] = [] if self.exact is None else self.exact.parts
        """Parts of the batch of the last `append_from`, if `exact` appends. Callers must not change it."""
        self.duplicates = 0
        """Messages dropped by deduplication since the start."""

    def begin_run(self, publisher: int, name: str, *, derived: bool) -> Stamp:
        """Return the stamp of the run that is appended next, by `append_from` or `append_derived`. `end_run`
        must follow in the same step, also without a run."""
        if not self._registry.is_bound(publisher):
            self._bind(publisher, name, derived=derived)
        if self.exact is not None:
            self.commits.end_open()
        return self._stamps.begin(publisher, derived=derived, reserve=self.exact is not None)

    def end_run(self) -> None:
        """End `begin_run`."""
        self._stamps.end()

    @property
    def end(self) -> int:
        """Position after the last accepted message, without records that ended its commit."""
        end = self.commits.accepted_end
        return end if self.exact is None else end - self.exact.last_rows

    def position_of(self, batch: MessageBatch, row: int) -> int:
        """Return the position of a message of the batch that was just appended, and not dropped."""
        position = None if self.exact is None else self.exact.position_of(row)
        return self.end - batch.count + row if position is None else position

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
        if self.exact is not None:
            self.duplicates += self.exact.append(publisher, batch, connection or PublisherConnection())
            return last
        highest = self._journal.highest.get(publisher, 0)
        if last <= highest:
            self.duplicates += batch.count
            return last
        if batch.first_run.first_sequence <= highest:
            known = int(batch.sequences.searchsorted(np.uint64(highest), side="right"))
            self.duplicates += known
            batch = rest_of(batch, known)
        stamp = Stamp(
            publisher,
            batch.first_run.first_sequence,
            self._stamps.timestamp(publisher)
            if self._stamps.begun
            else self._journal.next_stamp(self._clock.now),
        )
        self._journal.append(batch, stamp, last, self._clock.now)
        return last

    def bind(self, publisher: int, name: str, *, derived: bool) -> None:
        """Append the binding of a publisher id that a link brings, unless the log has it."""
        if not self._registry.is_bound(publisher):
            self._bind(publisher, name, derived=derived)

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
        if self.exact is not None:
            self.commits.end_open()
            self.exact.appended_other()
        sequence = self._stamps.next_sequence(publisher)
        chain: list[tuple[MessageBatch, Stamp]] = []
        for batch in batches:
            chain.append((batch, Stamp(publisher, sequence, journal.next_stamp(now))))
            sequence += batch.count
        number = self._stamps.next_sequence(CONTROL_PUBLISHER)
        chain.append((record, Stamp(CONTROL_PUBLISHER, number, journal.next_stamp(now))))
        journal.append_chain(chain, now)
        return sequence - 1

    def known(self, publisher: int, batch: MessageBatch, connection: PublisherConnection) -> Bools:
        """Return which messages of a sequenced batch of a client are duplicates."""
        if self.exact is not None:
            return ~self.exact.admitted(publisher, batch, connection)
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
        if not commits.full:
            return
        last = 0 if self.exact is None else self.exact.last_bytes(batch)
        if not commits.can_accept(encoded_size(batch) + binding_bytes_max + last):
            why = commits.full_reason
            raise JournalFull(f"Cannot prepare the next segment: {why}. The server retries every second.")

    def take_closed_holes(self) -> list[ClosedHole]:
        """Remove and return the holes that limits closed: their messages count as duplicates."""
        return [] if self.exact is None else self.exact.known.take_closed()

    # -- runs -----------------------------------------------------------------------------------------

    def _append(self, publisher: int, batch: MessageBatch) -> None:
        if self.exact is not None:
            self.exact.make_room(batch)
            self.exact.appended_other()
        first = self._stamps.next_sequence(publisher)
        stamp = Stamp(
            publisher,
            first,
            self._stamps.timestamp(publisher)
            if self._stamps.begun
            else self._journal.next_stamp(self._clock.now),
        )
        self._journal.append(batch, stamp, first + batch.count - 1, self._clock.now)

    def _bind(self, publisher: int, name: str, *, derived: bool) -> None:
        """Append the record that binds a publisher id to a client name, before its first message."""
        self._append(CONTROL_PUBLISHER, self._registry.bind(publisher, name, derived=derived))


def _recovered(journal: Journal, registry: PublisherDirectory, *, replicating: bool) -> KnownSequences | None:
    """Return the filter with the holes of the log. None: the log has none, and does not replicate."""
    known = KnownSequences(journal.highest)
    found = known.recover(registry.latest, registry.damage)
    return known if found or replicating else None
