"""State query: the records of SOW topics at one position of the log, in bounded steps.

Invariants:
- The result has the records at `position`, also while the fold continues.
- The fold never waits for a query.
- A step is one of a copy (`RecordCopy`), or filters and reads one piece of bodies, or sorts one run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tickertape.base.interfaces import Buffer
from tickertape.batch.format import Int64s, UInt64s
from tickertape.engine.limits import (
    query_piece_bytes_max,
    query_piece_rows_max,
    query_run_rows_max,
    query_skip_rows_max,
)
from tickertape.engine.sow.query.record_copy import (
    FoundRecords,
    RecordCopy,
    WantedKeys,
)
from tickertape.engine.sow.query.result_rows import ResultRows
from tickertape.engine.sow.query.runs import KeyRuns, PositionRuns
from tickertape.engine.sow.state.blocks import BlockPin, Views, lengths_in
from tickertape.engine.sow.state.fold import StateFold
from tickertape.engine.sow.state.records import PublisherTable, RecordRows


class SourceCopy(Protocol):
    """Copy of the records of a source, in bounded steps (`RecordCopy`, `QueueCopy`)."""

    publishers: PublisherTable
    """Publishers of the records."""
    pin: BlockPin | None
    """Pin of the bodies. None without records."""
    pieces: list[FoundRecords]
    """Records, when the copy is over."""

    @property
    def over(self) -> bool:
        """Whether all records are in `pieces`."""

    @property
    def waiting(self) -> bool:
        """Whether it waits for a read of the log, so that a step does nothing."""

    @property
    def nbytes(self) -> int:
        """Memory of the copy."""

    @property
    def record_count(self) -> int:
        """Records of the source at the position."""

    @property
    def uncopied(self) -> int:
        """Selected records that are not in `pieces`, because the result does not need them."""

    def step(self) -> None:
        """Execute one bounded step."""

    def close(self) -> list[Any]:
        """End the copy, and return its memory."""


class Passing(Protocol):
    """Filter of records (`RecordFilter`)."""

    def passing(self, rows: RecordRows, bodies: Sequence[bytes], keys: Sequence[bytes], /) -> Int64s:
        """Return the indices of the records that pass, ascending."""


class Sorting(Protocol):
    """Order of records (`RecordSorter`)."""

    def keys(self, rows: RecordRows, bodies: Sequence[bytes], keys: Sequence[bytes], /) -> list[str]:
        """Return a distinct sort key for each record, of characters below 256."""


class QuerySource(NamedTuple):
    """The records of one SOW topic, or messages of one queue, that a query selects."""

    fold: StateFold | Callable[[bool], SourceCopy]
    """State of the SOW topic. For a queue, a function that starts to copy its selected messages, with or
    without keys (`topic_key`)."""
    filter: Passing | None = None
    """None: all records."""
    wanted: WantedKeys | None = None
    """None: all keys."""
    with_keys: bool = False
    """Whether filter, order or result need the canonical keys."""
    order: Sorting | None = None
    """None: by position. All sources of a query have the same order, so that their sort keys compare."""
    slots: Int64s | None = None
    """Slots of all records at the position that can pass the filter, ascending. None: unknown."""
    search: Iterator[Int64s] | None = None
    """Search for these slots, if they are unknown (`FieldColumns.search`). None: all records."""

    def copy(self, position: int, *, with_keys: bool) -> SourceCopy:
        """Start to copy the records."""
        if not isinstance(self.fold, StateFold):
            return self.fold(with_keys)
        return RecordCopy(self.fold, position, self.wanted, self.slots, self.search, with_keys=with_keys)


class StateQuery:
    """One query of one or more sources, whose records it sorts together.

    `position` is the end of a commit up to which the log is folded, with all its changes. The result has at
    most `top_n` records, without the first `skip_n`. Call `step` until `over`, then `take` the records, then
    `close`. `close` may be called at any time.
    """

    def __init__(
        self, sources: Sequence[QuerySource], position: int, top_n: int | None = None, skip_n: int = 0
    ) -> None:
        self._sources = sources
        self._top_n = top_n
        self.position = position
        self.matches = 0
        """Selected records, without `top_n` and `skip_n`."""
        self._returned = 0
        self._with_keys = any(source.with_keys for source in sources)
        self._copies = [source.copy(position, with_keys=self._with_keys) for source in sources]
        self.topic_matches = sum(copy.record_count for copy in self._copies)
        """Records of the SOW topics at the position, and available messages of the queues."""
        self._copied = 0
        """Copies that are over."""
        self._copied_bytes = 0
        self._selecting = 0
        """Number of the source whose records are selected."""
        self._selected = 0
        """Records of its last piece that are selected."""
        self._found = ResultRows()
        limit = None if top_n is None else skip_n + top_n
        self._is_ordered = sources[0].order is not None
        self._by_position = PositionRuns(limit)
        self._by_keys = KeyRuns(limit)
        self._sorted = False
        self._skip = skip_n
        self._closed = False

    @property
    def is_copied(self) -> bool:
        """Whether no more changes are kept for it."""
        return self._closed or self._copied == len(self._copies)

    @property
    def waiting(self) -> bool:
        """Whether it waits for a read of the log, so that a step does nothing."""
        return not self.is_copied and self._copies[self._copied].waiting

    @property
    def over(self) -> bool:
        """Whether all records are selected and sorted, so that `take` returns them."""
        return self._closed or (self._sorted and not self._skip)

    @property
    def exhausted(self) -> bool:
        """Whether `take` is known to return no more records."""
        return self._closed

    @property
    def nbytes(self) -> int:
        """Memory of the result with sort keys, without blocks of bodies."""
        return self._copied_bytes + self._found.nbytes + self._runs.nbytes

    def close(self) -> list[Any]:
        """End the query and forget its result. Further calls have no effect.

        Returns its memory for `ResultMemory.discard`, unless it is small."""
        self._closed = True
        memory: list[Any] = []
        if self._found.count > query_piece_rows_max:
            memory += (self._found.keys, *self._found.columns)
            if self._found.labels:
                memory.append(self._found.labels)
            memory += (*self._by_keys.lists, *self._by_position.arrays)
        for copy in self._copies:
            memory += copy.close()
        self._copied_bytes = 0
        self._found = ResultRows()
        self._by_position, self._by_keys = PositionRuns(), KeyRuns()
        return memory

    def step(self) -> None:
        """Execute one bounded step. Raises `QueryTooSlow` if the changes since its position are forgotten."""
        if self.over:
            return
        if not self.is_copied:
            copy = self._copies[self._copied]
            before = copy.nbytes
            copy.step()
            self._copied_bytes += copy.nbytes - before
            self._copied += copy.over
        elif self._selecting < len(self._copies):
            self._select(self._selecting)
        elif not self._sorted:
            self._finish()
        else:
            skipped = len(self._runs.take(min(self._skip, query_skip_rows_max)))
            self._skip = self._skip - skipped if skipped else 0

    # -- result -----------------------------------------------------------------------------------------

    def take(self, count: int) -> FoundRecords:
        """Return the next records of the result, at most `count`, and none at its end. The query is over."""
        if self._top_n is not None:
            count = min(count, self._top_n - self._returned)
        if self._closed:
            count = 0
        numbers = self._runs.take(count)
        self._returned += len(numbers)
        return self._found.get(numbers)

    def by_source(self, found: FoundRecords) -> list[tuple[int, Int64s | None]]:
        """Return the sources of some records, and the indices of the records of each. None: all."""
        if found.sources is None:
            return [(0, None)]
        numbers = np.unique(found.sources).tolist()
        if len(numbers) == 1:
            return [(numbers[0], None)]
        return [(number, (found.sources == number).nonzero()[0]) for number in numbers]

    def bodies(self, source: int, views: Views) -> list[bytes]:
        """Return the bodies of records of one source."""
        return self._pin(source).take(views)

    def gather(self, source: int, views: Views) -> tuple[Buffer, Int64s]:
        """Return the bodies of n records of one source, joined, and their n + 1 offsets."""
        return self._pin(source).gather(views)

    def publisher_ids(self, found: FoundRecords) -> UInt64s:
        """Return the publisher ids of records."""
        ids = np.zeros(len(found.rows.publishers), np.uint64)
        for number, some in self.by_source(found):
            at = slice(None) if some is None else some
            ids[at] = self._copies[number].publishers.ids(found.rows.publishers[at])
        return ids

    # -- select and sort --------------------------------------------------------------------------------

    @property
    def _runs(self) -> PositionRuns | KeyRuns:
        return self._by_keys if self._is_ordered else self._by_position

    def _pin(self, source: int) -> BlockPin:
        pin = self._copies[source].pin
        assert pin is not None
        return pin

    def _next_piece(self, number: int) -> FoundRecords | None:
        """Return the next records to select of a source, or None at its end."""
        pieces, source = self._copies[number].pieces, self._sources[number]
        if not pieces:
            self.matches += self._copies[number].uncopied
            self._selecting += 1
            return None
        piece, low = pieces[-1], self._selected
        high = len(piece.rows.positions)
        if source.filter is not None or source.order is not None:
            high = min(high, low + _piece_rows(piece.rows.views[low : low + query_piece_rows_max]))
        self._selected = high
        if high == len(piece.rows.positions):
            self._selected = 0
            self._copied_bytes -= pieces.pop().nbytes
        return piece if high - low == len(piece.rows.positions) else piece.part(low, high)

    def _select(self, number: int) -> None:
        """Filter a piece of copied records, and add the selected ones to the result."""
        source, piece = self._sources[number], self._next_piece(number)
        if piece is None:
            return
        sort_keys = None
        if source.filter is not None or source.order is not None:
            bodies = self.bodies(number, piece.rows.views)
            if source.filter is not None:
                passed = source.filter.passing(piece.rows, bodies, piece.keys)
                if len(passed) < len(bodies):
                    piece = piece.some(passed)
                    bodies = [bodies[at] for at in passed.tolist()]
            if source.order is not None and bodies and self._top_n != 0:
                sort_keys = source.order.keys(piece.rows, bodies, piece.keys)
        self.matches += len(piece.rows.positions)
        if self._top_n != 0 and len(piece.rows.positions):
            self._keep(number, piece, sort_keys)

    def _keep(self, number: int, piece: FoundRecords, sort_keys: list[str] | None) -> None:
        """Add records to the result, unless they are behind the last one that is needed."""
        if sort_keys is None:
            kept = self._by_position.candidates(piece.rows.positions)
        else:
            kept = self._by_keys.candidates(sort_keys)
        if kept is not None:
            piece = piece.some(kept)
            sort_keys = sort_keys and [sort_keys[at] for at in kept.tolist()]
        count = len(piece.rows.positions)
        if not count:
            return
        if len(self._sources) > 1:
            piece = piece._replace(sources=np.full(count, number, np.uint16))
        first = self._found.add(piece)
        if sort_keys is None:
            ended = self._by_position.add_rows(piece.rows.positions, first)
        else:
            ended = self._by_keys.add_rows(sort_keys, first)
        if ended and self._runs.is_limited:
            self._found = self._found.only(self._runs.renumber())

    def _finish(self) -> None:
        kept = self._runs.finish()
        if kept is not None:
            self._found = self._found.only(kept)
        self._sorted = True
        if self._found.count > query_run_rows_max:
            return
        found = self._found.get(np.arange(self._found.count))
        views_of = {
            number: found.rows.views if some is None else found.rows.views[some]
            for number, some in self.by_source(found)
        }
        for number, copy in enumerate(self._copies):
            if copy.pin is not None:
                copy.pin.narrow(views_of.get(number, found.rows.views[:0]))


def _piece_rows(views: Views) -> int:
    """Return the number of records at the start of some views whose bodies are one piece, at least one."""
    ends = lengths_in(views).cumsum()
    return max(int(ends.searchsorted(query_piece_bytes_max, "right")), 1)
