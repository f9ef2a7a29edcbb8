"""Log writer: appends messages to the log with their publisher, sequence and timestamp.

Invariants:
- A sequence at or below the highest sequence of its publisher is never appended again.
- Messages of one publisher keep their order.
- Timestamps rise with each run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tickertape.base.errors import JournalFull
from tickertape.batch import MessageBatch, Stamp, slice_batch
from tickertape.engine.limits import binding_bytes_max
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, PublisherDirectory
from tickertape.journal.commit.accumulator import encoded_size
from tickertape.journal.journal import Journal


class LogWriter:
    """The only component that appends batches to the journal."""

    def __init__(
        self,
        journal: Journal,
        registry: PublisherDirectory,
        clock: EngineClock,
    ) -> None:
        self._journal = journal
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
        first = self._next_sequence(publisher) if derived else 0
        self._begun = Stamp(publisher, first, self._journal.next_stamp(self._clock.now))
        return self._begun

    def end_run(self) -> None:
        """End `begin_run`."""
        self._begun = None

    @property
    def end(self) -> int:
        """Position after the last accepted message."""
        return self._journal.commits.accepted_end

    def append_from(self, publisher: int, name: str, batch: MessageBatch) -> int:
        """Append messages with sequences of the client, without those that the log already has. Return the
        last sequence."""
        if not self._registry.is_bound(publisher):
            self._bind(publisher, name, derived=False)
        # without a call for each message
        last = batch.first_run.first_sequence + batch.count - 1
        if batch.has_sequences:
            last = last_sequence(batch)
        highest = self._journal.highest.get(publisher, 0)
        if last <= highest:
            self.duplicates += batch.count
            return last
        if batch.first_run.first_sequence <= highest:
            known = self.known(publisher, batch)
            self.duplicates += known
            # A copy: a slice would keep the whole frame in memory until the end of the log moves past it.
            batch = MessageBatch.parse(slice_batch(batch, known, batch.count).encode())
        stamp = Stamp(
            publisher,
            batch.first_run.first_sequence,
            self._timestamp(publisher) if self._begun else self._journal.next_stamp(self._clock.now),
        )
        self._journal.append(batch, stamp, last, self._clock.now)
        return last

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
        sequence = self._next_sequence(publisher)
        chain: list[tuple[MessageBatch, Stamp]] = []
        for batch in batches:
            chain.append((batch, Stamp(publisher, sequence, journal.next_stamp(now))))
            sequence += batch.count
        number = self._next_sequence(CONTROL_PUBLISHER)
        chain.append((record, Stamp(CONTROL_PUBLISHER, number, journal.next_stamp(now))))
        journal.append_chain(chain, now)
        return sequence - 1

    def known(self, publisher: int, batch: MessageBatch) -> int:
        """Return how many messages at the start of a sequenced batch the log already has."""
        highest = self._journal.highest.get(publisher, 0)
        return int(np.searchsorted(batch.sequences, np.uint64(highest), side="right"))

    def reserve(self, nbytes: int) -> None:
        """Request a new segment with `nbytes` of free space. 0 withdraws the request."""
        self.commits.reserve_segment(nbytes, self._clock.now)

    def sync_soon(self) -> None:
        """Request a sync of data that is only written."""
        self.commits.sync_soon(self._clock.now)

    def check_room(self, batch: MessageBatch) -> None:
        """Raise `JournalFull` when the disk has no space for a batch."""
        commits = self.commits
        if commits.full and not commits.can_accept(encoded_size(batch) + binding_bytes_max):
            why = commits.full_reason
            raise JournalFull(f"Cannot prepare the next segment: {why}. The server retries every second.")

    def _append(self, publisher: int, batch: MessageBatch) -> None:
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
