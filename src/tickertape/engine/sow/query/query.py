"""State query: the records of one SOW topic at one position of the log, in bounded steps.

Invariants:
- The result has the records at `position`, also while the fold continues.
- The fold never waits for a query.
- A step copies at most `query_step_slots_max` slots, or filters and reads one piece of bodies, or sorts one
  run. The first one looks up at most `query_keys_direct_max` keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tickertape.base.errors import QueryTooSlow
from tickertape.base.interfaces import Buffer
from tickertape.batch.format import I8, Int64s, UInt64s
from tickertape.engine.limits import (
    query_keys_direct_max,
    query_piece_bytes_max,
    query_piece_rows_max,
    query_run_rows_max,
    query_skip_rows_max,
    query_step_slots_max,
    sow_growth_rows,
)
from tickertape.engine.sow.query.runs import KeyRuns, PositionRuns
from tickertape.engine.sow.state.blocks import BlockPin, Views, lengths_in
from tickertape.engine.sow.state.fold import StateFold
from tickertape.engine.sow.state.records import PublisherNumbers, RecordColumns, RecordRows


class Passing(Protocol):
    """Filter of records (`RecordFilter`)."""

    def passing(self, rows: RecordRows, bodies: Sequence[bytes], keys: Sequence[bytes], /) -> Int64s:
        """Return the indices of the records that pass, ascending."""


class Sorting(Protocol):
    """Order of records (`RecordSorter`)."""

    def keys(self, rows: RecordRows, bodies: Sequence[bytes], keys: Sequence[bytes], /) -> list[str]:
        """Return a distinct sort key for each record, of characters below 256."""


class QueryTerms(NamedTuple):
    """The records that a query selects, and their order."""

    filter: Passing | None = None
    """None: all records."""
    keys: Sequence[bytes] | None = None
    """Canonical keys. None: all keys."""
    with_keys: bool = False
    """Whether filter, order or result need the canonical keys."""
    order: Sorting | None = None
    """None: by position."""
    top_n: int | None = None
    """Records of the result at most. None: all."""
    skip_n: int = 0
    """Records at the start of the order that are not in the result."""


class FoundRecords(NamedTuple):
    """Some records of a result."""

    rows: RecordRows
    keys: list[bytes]
    """Their canonical keys, if the terms need them."""

    def part(self, low: int, high: int | None) -> FoundRecords:
        """Return the records from `low` to `high`."""
        return FoundRecords(self.rows.select(slice(low, high)), self.keys[low:high])

    def joined(self, other: FoundRecords) -> FoundRecords:
        """Return these records and then others."""
        columns = [
            None if mine is None or theirs is None else np.concatenate((mine, theirs))
            for mine, theirs in zip(self.rows, other.rows, strict=True)
        ]
        return FoundRecords(RecordRows(*columns), self.keys + other.keys)  # type: ignore[arg-type]


class StateQuery:
    """One query. `position` is the end of a commit up to which the log is folded, with all its changes.

    Call `step` until `over`, then `take` the records, then `close`. `close` may be called at any time.
    """

    def __init__(self, fold: StateFold, position: int, terms: QueryTerms) -> None:
        self._fold = fold
        self._terms = terms
        self.position = position
        self.topic_matches = fold.records.record_count
        """Records of the SOW topic at the position."""
        self.matches = 0
        """Selected records, without `top_n` and `skip_n`."""
        self.returned = 0
        """Records that `take` has returned."""
        self._low = 0
        self._end = fold.records.slot_end
        self._wanted: frozenset[bytes] | None = None
        """Keys to select, if they are too many to be looked up in one step."""
        self._pin: BlockPin | None = None
        self._copied: list[FoundRecords] = []
        """Records at the position that are neither filtered nor sorted. The next one is the last."""
        self._found = _ResultRows()
        limit = None if terms.top_n is None else terms.skip_n + terms.top_n
        self._by_position = PositionRuns(limit)
        self._by_keys = KeyRuns(limit)
        self._sorted = False
        self._skip = terms.skip_n
        self._closed = False
        self._scan: int | None = None
        if terms.keys is not None and len(terms.keys) <= query_keys_direct_max:
            self._add(_slots_of(fold, terms.keys))
            return
        if terms.keys is not None:
            self._wanted = frozenset(terms.keys)
        self._scan = fold.changes.open_scan(position)

    @property
    def over(self) -> bool:
        """Whether all records are selected and sorted, so that `take` returns them."""
        return self._closed or (self._sorted and not self._skip)

    @property
    def nbytes(self) -> int:
        """Memory of the result, with sort keys and pinned blocks."""
        return (
            sum(_ROW_BYTES * len(piece.rows.positions) + _keys_bytes(piece.keys) for piece in self._copied)
            + self._found.nbytes
            + self._runs.nbytes
            + self.pinned_bytes
        )

    @property
    def pinned_bytes(self) -> int:
        """Size of the pinned blocks. The state needs most of them too."""
        return 0 if self._pin is None else self._pin.nbytes

    @property
    def sorted_rows_most(self) -> int:
        """Most rows that one call has sorted."""
        return self._runs.sorted_rows_most

    def close(self) -> None:
        """End the query and forget its result. Further calls have no effect."""
        self._closed = True
        self._close_scan()
        self._copied = []
        self._found = _ResultRows()
        self._by_position, self._by_keys = PositionRuns(), KeyRuns()
        if self._pin is not None:
            self._pin.release()

    def step(self) -> None:
        """Execute one bounded step. Raises `QueryTooSlow` if the changes since its position are forgotten."""
        if self.over:
            return
        if self._scan is not None:
            if self._scan in self._fold.ended_scans:
                raise QueryTooSlow(
                    "Cannot finish the query: too many records have changed since its start. Select fewer "
                    "records, or query again."
                )
            self._copy()
            if self._low >= self._end:
                self._close_scan()
        elif self._copied:
            self._select()
        elif not self._sorted:
            self._finish()
        else:
            skipped = len(self._runs.take(min(self._skip, query_skip_rows_max)))
            self._skip = self._skip - skipped if skipped else 0

    def take(self, count: int) -> FoundRecords:
        """Return the next records of the result, at most `count`, and none at its end. The query is over."""
        if self._terms.top_n is not None:
            count = min(count, self._terms.top_n - self.returned)
        if self._closed:
            count = 0
        numbers = self._runs.take(count)
        self.returned += len(numbers)
        return self._found.get(numbers)

    def bodies(self, views: Views) -> list[bytes]:
        """Return the bodies of records of the result."""
        assert self._pin is not None
        return self._pin.take(views)

    def gather(self, views: Views) -> tuple[Buffer, Int64s]:
        """Return the bodies of n records of the result, joined, and their n + 1 offsets."""
        assert self._pin is not None
        return self._pin.gather(views)

    def publisher_ids(self, numbers: PublisherNumbers) -> UInt64s:
        """Return the publisher ids of records."""
        return self._fold.records.publisher_ids(numbers)

    # -- copy -------------------------------------------------------------------------------------------

    @property
    def _runs(self) -> PositionRuns | KeyRuns:
        return self._by_position if self._terms.order is None else self._by_keys

    def _close_scan(self) -> None:
        if self._scan is not None:
            self._fold.changes.close_scan(self._scan)
            self._scan = None

    def _copy(self) -> None:
        fold, low = self._fold, self._low
        assert self._scan is not None
        self._low = min(low + query_step_slots_max, self._end)
        piece = fold.records.copy_range(low, self._low)
        fold.changes.undo(self._scan, piece)
        at = piece.live.nonzero()[0]
        self._add(at + low, piece.rows.select(at))

    def _add(self, slots: Int64s, rows: RecordRows | None = None) -> None:
        """Add records at the position of the query. None: the current records of the slots."""
        fold = self._fold
        if rows is None:
            rows = fold.records.rows(slots)
        keys = fold.keys.keys_of(slots) if self._terms.with_keys or self._wanted is not None else []
        if self._wanted is not None:
            mine = [at for at, key in enumerate(keys) if key in self._wanted]
            rows, keys = rows.select(np.array(mine, I8)), [keys[at] for at in mine]
        if not len(rows.positions):
            return
        if self._pin is None:
            self._pin = fold.records.blocks.pin(rows.views)
        else:
            self._pin.extend(rows.views)
        self._copied.append(FoundRecords(rows, keys if self._terms.with_keys else []))

    # -- select and sort --------------------------------------------------------------------------------

    def _select(self) -> None:
        """Filter a piece of copied records, and add the selected ones to the result."""
        terms, piece = self._terms, self._copied.pop()
        if terms.filter is None and terms.order is None:
            self.matches += len(piece.rows.positions)
            if terms.top_n != 0:
                self._keep(piece, None)
            return
        count = _piece_end(piece.rows)
        if count < len(piece.rows.positions):
            self._copied.append(piece.part(count, None))
            piece = piece.part(0, count)
        bodies = self.bodies(piece.rows.views)
        if terms.filter is not None:
            passed = terms.filter.passing(piece.rows, bodies, piece.keys)
            if len(passed) < count:
                piece = _some(piece, passed)
                bodies = [bodies[at] for at in passed.tolist()]
        self.matches += len(bodies)
        if bodies and terms.top_n != 0:
            order = terms.order
            self._keep(piece, None if order is None else order.keys(piece.rows, bodies, piece.keys))

    def _keep(self, piece: FoundRecords, sort_keys: list[str] | None) -> None:
        """Add records to the result, unless they are behind the last one that is needed."""
        if sort_keys is None:
            kept = self._by_position.candidates(piece.rows.positions)
        else:
            kept = self._by_keys.candidates(sort_keys)
        if kept is not None:
            piece = _some(piece, kept)
            sort_keys = sort_keys and [sort_keys[at] for at in kept.tolist()]
        if not len(piece.rows.positions):
            return
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
        found, pin = self._found, self._pin
        if pin is not None and found.count <= query_run_rows_max:
            pin.narrow(found.get(np.arange(found.count)).rows.views)


_ROW_BYTES = 52
"""Memory of a copied record: view, position, order stamp, publisher, sequence and expiry."""
_KEY_BYTES = 41
"""Memory of a canonical key without its bytes, and of its place in a list."""
_FIRST_ROWS = 256


class _ResultRows:
    """Records by number, in columns that grow in place."""

    def __init__(self) -> None:
        self.count = 0
        self._columns = RecordColumns(_FIRST_ROWS, expires=False)
        self._rows = _FIRST_ROWS
        self._keys: list[bytes] = []
        self._keys_bytes = 0

    @property
    def nbytes(self) -> int:
        return self.count * self._columns.row_bytes + self._keys_bytes

    def add(self, piece: FoundRecords) -> int:
        """Add records, and return the number of the first one."""
        first, end = self.count, self.count + len(piece.rows.positions)
        if end > self._rows:
            steps = -(-end // sow_growth_rows) * sow_growth_rows
            self._rows = min(steps, max(end, 2 * self._rows))
            self._columns.resize(self._rows)
        self._columns.set(slice(first, end), piece.rows)
        self._keys += piece.keys
        self._keys_bytes += _keys_bytes(piece.keys)
        self.count = end
        return first

    def get(self, numbers: Int64s) -> FoundRecords:
        keys = self._keys
        return FoundRecords(self._columns.get(numbers), [keys[at] for at in numbers.tolist()] if keys else [])

    def only(self, numbers: Int64s) -> _ResultRows:
        """Return some of the records, with numbers from 0 on."""
        rows = _ResultRows()
        rows.add(self.get(numbers))
        return rows


def _some(piece: FoundRecords, at: Int64s) -> FoundRecords:
    keys = piece.keys
    return FoundRecords(piece.rows.select(at), [keys[one] for one in at.tolist()] if keys else [])


def _keys_bytes(keys: list[bytes]) -> int:
    return sum(map(len, keys)) + _KEY_BYTES * len(keys)


def _piece_end(rows: RecordRows) -> int:
    """Return the number of records in the next piece of bodies, at least one."""
    ends = lengths_in(rows.views[:query_piece_rows_max]).cumsum()
    return max(int(ends.searchsorted(query_piece_bytes_max, "right")), 1)


def _slots_of(fold: StateFold, keys: Sequence[bytes]) -> Int64s:
    slots = np.unique(fold.keys.find(list(dict.fromkeys(keys))))
    found: Int64s = slots[slots >= 0].astype(I8)
    return found
