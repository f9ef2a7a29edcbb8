"""Resent messages: decides which messages of clients below the highest sequence are not duplicates.

A link that brings one of two topics raises the highest sequence of a publisher without the messages of the
other topic. Its publisher may send those here after a failover. They are searched in the log, one search for
a range of sequences, and stored as late messages if the log lacks them.

A message that retention removed is absent too, and is stored again: the log has it once, and a subscriber may
get it twice. Otherwise the server could acknowledge a message that is in no log.

Invariant: a message is stored only after a search without it, or while it is in an open hole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import Final

import numpy as np

from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch
from tickertape.batch.format import U8, Bools, Int64s, UInt64s
from tickertape.engine.limits import resent_search_sequences
from tickertape.engine.replication.destination.whole_topics import WholeTopics
from tickertape.engine.runtime.holes import KnownSequences, PublisherConnection, SearchedSequences
from tickertape.journal.journal import AcceptedBatch, Journal
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.journal.reading.sequence_search import find_sequences

_NONE: Final = np.empty(0, np.int64)


class ResentTopics:
    """Decides by the topics that links bring whole, by holes, and by searches of the log."""

    def __init__(self, journal: Journal, known: KnownSequences, whole: WholeTopics) -> None:
        self._journal = journal
        self._known = known
        self._whole = whole
        self._unpersisted: deque[AcceptedBatch] = deque()
        """Batches that searches of the persisted log do not find."""

    def accepted(self, batches: Iterable[AcceptedBatch]) -> None:
        """Note batches that were appended to the log."""
        self._unpersisted.extend(batches)

    def log_persisted(self, end: int) -> None:
        """Note that the log is persisted up to a position."""
        kept = self._unpersisted
        while kept and _end_of(kept[0]) <= end:
            kept.popleft()

    def admitted(
        self, publisher: int, batch: MessageBatch, rows: Int64s, connection: PublisherConnection
    ) -> Int64s:
        """Return the messages of `rows` to append nevertheless, ascending."""
        rows = self._partial(batch, rows)
        if not len(rows):
            return rows
        sequences = batch.sequences[rows]
        missing = self._known.inside(publisher, sequences, from_link=True)
        if connection.searched is not None:
            missing |= np.isin(sequences, connection.searched.absent)
        return rows[missing]

    def look_up(
        self, publisher: int, batch: MessageBatch, rows: Int64s, connection: PublisherConnection
    ) -> Generator[ReadRequest | None, Buffer, None] | None:
        """Return the search for messages of `rows` that must precede `admitted`. None: it needs none."""
        rows = self._partial(batch, rows)
        if not len(rows):
            return None
        wanted = self._outside(publisher, batch.sequences[rows])
        searched = connection.searched
        if not len(wanted) or (searched is not None and np.isin(wanted, searched.sequences).all()):
            return None
        return self._search(publisher, wanted, connection)

    def _search(
        self, publisher: int, wanted: UInt64s, connection: PublisherConnection
    ) -> Generator[ReadRequest | None, Buffer, None]:
        """Search sequences in the log, and others behind them that may follow."""
        first = int(wanted[0])
        last = min(first + resent_search_sequences - 1, self._known.highest(publisher))
        behind = np.arange(first, last + 1, dtype=U8)
        asked = np.union1d(wanted, self._outside(publisher, behind))
        low, high = int(asked[0]), int(asked[-1])
        found = [
            one.batch.sequences
            for one in (*self._unpersisted, *self._journal.accepted)
            if one.batch is not None and one.stamp is not None and one.stamp.publisher == publisher
        ]
        found.append((yield from find_sequences(self._journal.view, publisher, low, high)))
        absent = np.setdiff1d(asked, np.concatenate(found))
        connection.note_searched(SearchedSequences(asked, absent))

    def _outside(self, publisher: int, sequences: UInt64s) -> UInt64s:
        """Return the sequences in no open hole."""
        return sequences[~self._known.inside(publisher, sequences, from_link=True)]

    def _partial(self, batch: MessageBatch, rows: Int64s) -> Int64s:
        """Return the rows with topics that links do not bring whole."""
        partial = [number for number, topic in enumerate(batch.topics) if topic not in self._whole]
        if not partial or not len(rows):
            return _NONE
        index = batch.topic_index
        if index is None or len(partial) == len(batch.topics):
            return rows
        own: Bools = np.isin(index[rows], partial)
        return rows[own]


def _end_of(one: AcceptedBatch) -> int:
    """Return the position after a batch."""
    return one.position if one.batch is None else one.position + one.batch.count
