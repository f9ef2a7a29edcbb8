"""Log writer: appends messages to the log with their publisher, sequence and time stamp.

Invariants:
- A sequence at or below the highest one of its publisher never enters the log again.
- Messages of one publisher keep their order.
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
    """Appends batches to the journal; nothing else does."""

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
        self.duplicates = 0
        """Messages dropped by the duplicate filter since the start."""

    def append_from(self, publisher: int, name: str, batch: MessageBatch) -> int:
        """Append messages with sequences of a client's own, but for those that the log has; return the last
        sequence."""
        if not self._registry.is_bound(publisher):
            self._bind(publisher, name, derived=False)
        last = last_sequence(batch)
        highest = self._journal.highest.get(publisher, 0)
        if last <= highest:
            self.duplicates += batch.count
            return last
        if batch.run(0).first_sequence <= highest:
            known = self.known(publisher, batch)
            self.duplicates += known
            # A copy: a slice would keep the whole frame in memory for as long as the log's end stays there.
            batch = MessageBatch.parse(slice_batch(batch, known, batch.count).encode())
        stamp = Stamp(publisher, batch.run(0).first_sequence, self._journal.log_time(self._clock.now))
        self._journal.append(batch, stamp, last, self._clock.now)
        return last

    def append_derived(self, publisher: int, name: str, batch: MessageBatch) -> None:
        """Append messages without sequences: they get the next ones of a client's derived publisher id."""
        if not self._registry.is_bound(publisher):
            self._bind(publisher, name, derived=True)
        self._append(publisher, batch)

    def append_control(self, batch: MessageBatch) -> None:
        """Append messages of the server itself."""
        self._append(CONTROL_PUBLISHER, batch)

    def append_chain(
        self, publisher: int, name: str, batches: Sequence[MessageBatch], record: MessageBatch
    ) -> int:
        """Append the messages of a transaction and the record that commits it, all or nothing; return the
        last sequence of the messages."""
        if not self._registry.is_bound(publisher):
            self._bind(publisher, name, derived=True)
        time = self._journal.log_time(self._clock.now)
        sequence = self._next_sequence(publisher)
        chain: list[tuple[MessageBatch, Stamp]] = []
        for batch in batches:
            chain.append((batch, Stamp(publisher, sequence, time)))
            sequence += batch.count
        chain.append((record, Stamp(CONTROL_PUBLISHER, self._next_sequence(CONTROL_PUBLISHER), time)))
        self._journal.append_chain(chain, self._clock.now)
        return sequence - 1

    def known(self, publisher: int, batch: MessageBatch) -> int:
        """Return how many messages of a batch with sequences, from the front, the log has."""
        highest = self._journal.highest.get(publisher, 0)
        return int(np.searchsorted(batch.sequences, np.uint64(highest), side="right"))

    def reserve(self, nbytes: int) -> None:
        """Have a segment begin that has room for `nbytes`; 0: no longer."""
        self.commits.reserve_segment(nbytes, self._clock.now)

    def sync_soon(self) -> None:
        """Sync what was persisted without a sync."""
        self.commits.sync_soon(self._clock.now)

    def check_room(self, batch: MessageBatch) -> None:
        """Raise `JournalFull` when the disk has no room for a batch."""
        commits = self.commits
        if commits.full and not commits.can_accept(encoded_size(batch) + binding_bytes_max):
            why = commits.full_reason
            raise JournalFull(f"no room to prepare the next segment: {why}; retried every second")

    def _append(self, publisher: int, batch: MessageBatch) -> None:
        first = self._next_sequence(publisher)
        stamp = Stamp(publisher, first, self._journal.log_time(self._clock.now))
        self._journal.append(batch, stamp, first + batch.count - 1, self._clock.now)

    def _bind(self, publisher: int, name: str, *, derived: bool) -> None:
        """Record in the log whose a publisher id is, before its first message."""
        self._append(CONTROL_PUBLISHER, self._registry.bind(publisher, name, derived=derived))

    def _next_sequence(self, publisher: int) -> int:
        """Return the next sequence of a publisher whose sequences the server assigns."""
        highest = self._journal.highest.get(publisher, 0)
        if publisher not in self._assigned_spaces:
            # What an earlier run accepted and lost is never given again: the clock is above it.
            self._assigned_spaces.add(publisher)
            highest = max(highest, self._clock.wall * 1000)
        return highest + 1


def last_sequence(batch: MessageBatch) -> int:
    """Sequence of the last message of a batch of one run."""
    if batch.has_sequences:
        return int(batch.sequences[-1])
    return batch.run(0).first_sequence + batch.count - 1
