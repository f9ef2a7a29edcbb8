"""State changes: the previous rows of changed records, kept while scans read an older position.

Invariants:
- The table with all changes above P undone is the state at P. The earliest change above P of a slot wins.
- A slot whose record was removed is released when no scan needs the change that removed the record.
- A body that a kept change names is dropped with the change.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tickertape.batch.format import I1, I8, AnyArray, Bools, Bytes8, Int64s
from tickertape.engine.limits import sow_changes_bytes_max, sow_changes_piece_rows
from tickertape.engine.sow.state.blocks import stored_bytes
from tickertape.engine.sow.state.records import RecordColumns, RecordRow, RecordRows, RecordTable

SET: Final = 0
"""Kind of a change: the slot has a new record."""
DELETED: Final = 1
EXPIRED: Final = 2


class StateChange(NamedTuple):
    """Changes of one commit, or of one step of its fold, to distinct slots of one topic."""

    start: int
    """First position of the commit."""
    end: int
    """Position after the commit."""
    slots: Int64s
    kinds: Bytes8
    live: Bools
    """Which slots had a record before."""
    old: RecordRows
    """Records before. Rows of other slots have the empty view."""


class EarlierRows(NamedTuple):
    """Rows before a piece of kept changes: those before the first change of each slot."""

    slots: Int64s
    """Ascending and distinct."""
    live: Bools
    """Which slots had a record."""
    rows: RecordRows


class ChangeEffects(NamedTuple):
    """Consequences of a change."""

    released: Int64s
    """Slots without a record that may be used for other keys from now on."""
    ended: tuple[int, ...] = ()
    """Scans that were ended, because kept changes exceeded their memory."""


_FIRST_ROWS: Final = 256
_NO_SLOTS: Final[Int64s] = np.zeros(0, I8)
_NO_EFFECTS: Final = ChangeEffects(_NO_SLOTS)


class ChangeLog:
    """Applies changes to a record table, and keeps the previous rows while scans need them.

    All changes of the table use its methods, so that replaced bodies are dropped in time.
    """

    def __init__(self, table: RecordTable, bytes_max: int = sow_changes_bytes_max) -> None:
        self._table = table
        self._blocks = table.blocks
        self._bytes_max = bytes_max
        self._end = 0
        self._scans: dict[int, _Scan] = {}
        """Open scans, oldest position first."""
        self._next_scan = 0
        self._pieces: list[_KeptChanges] = []
        self._bytes = 0
        self.body_bytes = 0
        """Live bytes of blocks that only kept changes name."""
        self._forgotten = 0
        """Pieces that were forgotten. Their numbers are below it."""
        self._closed = True
        """Whether the next change starts a new piece."""

    @property
    def end(self) -> int:
        """Return the end of the last commit with a change."""
        return self._end

    @property
    def nbytes(self) -> int:
        """Return the memory of kept changes: rows, and bodies that only they name."""
        return self._bytes

    # -- scans ------------------------------------------------------------------------------------------

    def open_scan(self, position: int) -> int:
        """Keep all changes from now on for a scan of the state at `position`. Return the scan.

        `position` is the end of the last commit, with all its changes applied.
        """
        if position < self._end:
            raise ValueError(
                f"Cannot scan the state at position {position}: the state is at position {self._end}. Scan "
                "it at this position."
            )
        scan = self._next_scan
        self._next_scan += 1
        self._scans[scan] = _Scan(position, self._forgotten + len(self._pieces))
        self._closed = True
        return scan

    def close_scan(self, scan: int) -> None:
        """End a scan, or do nothing if it has ended. `forget` forgets its changes."""
        self._scans.pop(scan, None)

    def is_open(self, scan: int) -> bool:
        """Return whether a scan has not ended."""
        return scan in self._scans

    def needed_by(self, scan: int) -> range:
        """Return the numbers of the pieces of changes that are kept now and that an open scan needs.

        A copy of slots, with these pieces undone from the last to the first, has the records at the position
        of the scan. Changes after the copy may be undone too.
        """
        return range(self._scans[scan].first, self._forgotten + len(self._pieces))

    def earlier(self, number: int) -> EarlierRows:
        """Return the rows before one piece of changes (`needed_by`)."""
        return self._pieces[number - self._forgotten].earlier()

    # -- changes ----------------------------------------------------------------------------------------

    def put(self, start: int, end: int, slots: Int64s, rows: RecordRows) -> ChangeEffects:
        """Set the records of distinct slots, in a commit from position `start` to `end`."""
        if not self._scans:
            self._end = max(self._end, end)
            self._blocks.drop(self._table.put(slots, rows).views)
            return _NO_EFFECTS
        if len(slots):
            self._table.reserve(int(slots.max()) + 1)
        old = self._table.rows(slots)
        live = self._table.put(slots, rows).live
        return self.keep(StateChange(start, end, slots, np.full(len(slots), SET, I1), live, old))

    def put_one(self, start: int, end: int, slot: int, row: RecordRow) -> ChangeEffects:
        """Set the record of one slot."""
        if self._scans:
            return self.put(start, end, np.array([slot], I8), _one_row(row, self._table.expires))
        self._end = max(self._end, end)
        self._blocks.drop_one(self._table.put_one(slot, row))
        return _NO_EFFECTS

    def drop(self, start: int, end: int, slots: Int64s, kind: int) -> ChangeEffects:
        """Remove the records of distinct slots. `kind` is `DELETED` or `EXPIRED`."""
        if not self._scans:
            self._end = max(self._end, end)
            self._blocks.drop(self._table.drop(slots).views)
            return ChangeEffects(slots)
        old = self._table.rows(slots)
        live = self._table.drop(slots).live
        return self.keep(StateChange(start, end, slots, np.full(len(slots), kind, I1), live, old))

    def keep(self, change: StateChange) -> ChangeEffects:
        """Keep a change that was just applied to the table, for the open scans."""
        self._end = max(self._end, change.end)
        low = 0
        while low < len(change.slots):
            if self._closed or self._pieces[-1].full:
                self._pieces.append(_KeptChanges(self._table.expires))
                self._count(self._pieces[-1], 1)
                self._closed = False
            piece = self._pieces[-1]
            self._count(piece, -1)
            low = piece.add(change, low)
            self._count(piece, 1)
        return ChangeEffects(_NO_SLOTS, self._end_oldest())

    def _end_oldest(self) -> tuple[int, ...]:
        """End the oldest scans until the changes that the others need fit the memory."""
        if self._bytes <= self._bytes_max:
            return ()
        ended = []
        while self._scans and self._needed_bytes() > self._bytes_max:
            oldest = next(iter(self._scans))
            del self._scans[oldest]
            ended.append(oldest)
        return tuple(ended)

    def _needed_bytes(self) -> int:
        return sum(piece.nbytes for piece in self._pieces[self._first_needed() - self._forgotten :])

    def _first_needed(self) -> int:
        """Return the number of the first piece that a scan needs."""
        for scan in self._scans.values():
            return scan.first
        return self._forgotten + len(self._pieces)

    # -- forgetting -------------------------------------------------------------------------------------

    @property
    def has_forgettable(self) -> bool:
        """Return whether kept changes exist that no scan needs."""
        return self._forgotten < self._first_needed()

    def forget(self) -> Int64s:
        """Forget a bounded number of changes that no scan needs. Return the slots that may be used now."""
        if not self.has_forgettable:
            return _NO_SLOTS
        piece = self._pieces.pop(0)
        self._forgotten += 1
        self._count(piece, -1)
        self._closed = self._closed or not self._pieces
        self._blocks.drop(piece.rows.views(np.arange(piece.count)))
        return piece.removed_slots()

    def _count(self, piece: _KeptChanges, times: int) -> None:
        self._bytes += times * piece.nbytes
        self.body_bytes += times * piece.body_bytes


class _Scan(NamedTuple):
    position: int
    first: int
    """Number of the first piece with changes above the position."""


class _KeptChanges:
    """Rows of consecutive changes. A scan needs all of them or none."""

    def __init__(self, expires: bool) -> None:
        self.count = 0
        self.rows = RecordColumns(_FIRST_ROWS, expires=expires)
        self._slots = np.zeros(_FIRST_ROWS, I8)
        self._kinds = np.zeros(_FIRST_ROWS, I1)
        self._live = np.zeros(_FIRST_ROWS, np.bool_)
        self.body_bytes = 0

    @property
    def full(self) -> bool:
        return self.count == sow_changes_piece_rows

    @property
    def nbytes(self) -> int:
        return len(self._slots) * (self.rows.row_bytes + 10) + self.rows.label_bytes + self.body_bytes

    def add(self, change: StateChange, low: int) -> int:
        """Add the rows of a change from `low` on. Return the index of the first row without space."""
        high = min(len(change.slots), low + sow_changes_piece_rows - self.count)
        end = self.count + high - low
        if end > len(self._slots):
            self._resize(min(sow_changes_piece_rows, max(end, 2 * len(self._slots))))
        here = slice(self.count, end)
        old = change.old.select(slice(low, high))
        self._slots[here] = change.slots[low:high]
        self._kinds[here] = change.kinds[low:high]
        self._live[here] = change.live[low:high]
        self.rows.set(here, old)
        self.body_bytes += stored_bytes(old.views)
        self.count = end
        return high

    def _resize(self, rows: int) -> None:
        self.rows.resize(rows)
        self._slots.resize(rows)
        self._kinds.resize(rows)
        self._live.resize(rows)

    def earlier(self) -> EarlierRows:
        """Return the rows before the first change of each slot."""
        slots, first = np.unique(self._slots[: self.count], return_index=True)
        return EarlierRows(slots, self._live[first], self.rows.get(first))

    def removed_slots(self) -> Int64s:
        """Return the slots whose records were removed."""
        slots: Int64s = self._slots[: self.count][self._kinds[: self.count] != SET]
        return slots


def _one_row(row: RecordRow, expires: bool) -> RecordRows:
    values: AnyArray = np.array([row.view], np.uint64)
    return RecordRows(
        values,
        np.array([row.position], I8),
        np.array([row.order_stamp], I8),
        np.array([row.publisher], np.uint32),
        np.array([row.sequence], np.uint64),
        np.array([row.life], I8) if expires else None,
        None if row.label is None else np.array([row.label], object),
    )
