"""Result rows: the selected records of a query by number, in chunks of columns that never move.

Invariants:
- An addition copies its own records only, and makes at most one chunk without writing into it.
- A chunk has about as many rows as all chunks before it, so a result has few chunks.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tickertape.batch.format import I8, AnyArray, Int64s
from tickertape.engine.limits import query_chunk_rows_max, query_run_rows_max
from tickertape.engine.sow.query.record_copy import FoundRecords, SourceNumbers, keys_bytes, rows_bytes
from tickertape.engine.sow.state.labels import RecordLabels
from tickertape.engine.sow.state.records import RecordRows

_FIRST_ROWS: Final = 256


class _Chunk(NamedTuple):
    first: int
    """Number of its first row."""
    rows: RecordRows
    sources: SourceNumbers | None

    @property
    def end(self) -> int:
        return self.first + len(self.rows.positions)


class ResultRows:
    """Records by number. The columns are made for the first ones: a query may have a thousand sources."""

    def __init__(self) -> None:
        self.count = 0
        self.keys: list[bytes] = []
        self.labels: list[bytes | None] = []
        """Correlation ids of the records from the first piece with a column of them on."""
        self._labelled_from = 0
        """Number of the first record in `labels`."""
        self.nbytes = 0
        """Memory of the records, their labels and their keys."""
        self._chunks: list[_Chunk] = []
        self._ends: Int64s = np.zeros(0, I8)
        """Ends of the chunks."""

    @property
    def columns(self) -> list[AnyArray]:
        """All columns of all chunks."""
        return [
            column for chunk in self._chunks for column in (*chunk.rows, chunk.sources) if column is not None
        ]

    def add(self, piece: FoundRecords) -> int:
        """Add at most a run of records, and return the number of the first one."""
        first, end = self.count, self.count + len(piece.rows.positions)
        at = first
        while at < end:
            if not self._chunks or self._chunks[-1].end == at:
                self._add_chunk(end, sources=piece.sources is not None)
            chunk = self._chunks[-1]
            high = min(end, chunk.end)
            here, there = slice(at - chunk.first, high - chunk.first), slice(at - first, high - first)
            chunk.rows.assign(here, piece.rows.select(there))
            if chunk.sources is not None and piece.sources is not None:
                chunk.sources[here] = piece.sources[there]
            at = high
        self.keys += piece.keys
        if self.labels or piece.rows.labels is not None:
            self._add_labels(piece.rows.labels, first, end)
        self.nbytes += rows_bytes(piece.rows) + keys_bytes(piece.keys)
        self.count = end
        return first

    def _add_labels(self, labels: RecordLabels | None, first: int, end: int) -> None:
        if not self.labels:
            self._labelled_from = first
        self.labels += [None] * (end - first) if labels is None else labels.tolist()

    def get(self, numbers: Int64s) -> FoundRecords:
        """Return records by their numbers, in this order."""
        keys = self.keys
        some = [keys[at] for at in numbers.tolist()] if keys else []
        if not len(numbers):
            return FoundRecords(RecordRows.empty(0), some)
        rows, _, sources = self._rows(numbers)
        if self.labels:
            labels, low = self.labels, self._labelled_from
            found = [None if at < low else labels[at - low] for at in numbers.tolist()]
            rows = rows._replace(labels=np.array(found, object))
        return FoundRecords(rows, some, sources)

    def _rows(self, numbers: Int64s) -> FoundRecords:
        """Return records without their keys and labels."""
        if len(self._chunks) == 1:
            return _of_chunk(self._chunks[0], numbers)
        chunk_of = self._ends.searchsorted(numbers, "right")
        used = np.bincount(chunk_of).nonzero()[0].tolist()
        if len(used) == 1:
            return _of_chunk(self._chunks[used[0]], numbers)
        rows = RecordRows.empty(len(numbers))
        sources = None if self._chunks[0].sources is None else np.empty(len(numbers), np.uint16)
        for number in used:
            at = (chunk_of == number).nonzero()[0]
            found = _of_chunk(self._chunks[number], numbers[at])
            rows.assign(at, found.rows)
            if sources is not None and found.sources is not None:
                sources[at] = found.sources
        return FoundRecords(rows, [], sources)

    def only(self, numbers: Int64s) -> ResultRows:
        """Return some of the records, with numbers from 0 on."""
        rows = ResultRows()
        rows.add(self.get(numbers))
        return rows

    def _add_chunk(self, end: int, *, sources: bool) -> None:
        first = self.count if not self._chunks else self._chunks[-1].end
        rows = max(_FIRST_ROWS, min(max(first, query_run_rows_max if first else end), query_chunk_rows_max))
        chunk = _Chunk(first, RecordRows.empty(rows), np.empty(rows, np.uint16) if sources else None)
        self._chunks.append(chunk)
        self._ends = np.append(self._ends, chunk.end)


def _of_chunk(chunk: _Chunk, numbers: Int64s) -> FoundRecords:
    at = numbers - chunk.first
    views, positions, stamps, publishers, sequences, *_ = chunk.rows
    rows = RecordRows(
        views.take(at, axis=0), positions.take(at), stamps.take(at), publishers.take(at), sequences.take(at)
    )
    return FoundRecords(rows, [], None if chunk.sources is None else chunk.sources.take(at))
