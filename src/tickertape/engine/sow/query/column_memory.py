"""Column memory: the columns of all SOW topics, which are caches, and the memory that they may use.

Invariants:
- The columns have at most `sow_columns_bytes_max`, and no memory of `sow_bytes_max` that records need.
- Records never wait for columns: columns are dropped at once, least recently used first.
- A column drops others only if no query has used them for `sow_column_repeat_seconds`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tickertape.batch.format import Bools, Int64s
from tickertape.engine.limits import (
    sow_column_repeat_seconds,
    sow_column_segment_slots,
    sow_column_unused_seconds,
    sow_columns_bytes_max,
)
from tickertape.engine.runtime.clock import EngineClock

ColumnValues = npt.NDArray[Any]


class Segment:
    """Values of the slots from a multiple of `sow_column_segment_slots` on."""

    __slots__ = ("asks", "end", "next_end", "next_slot", "values")

    def __init__(self, dtype: str) -> None:
        self.values: ColumnValues = np.zeros(sow_column_segment_slots, dtype)
        self.asks: Bools | None = None
        """Slots whose bodies decide, because no column can have their values. None without any."""
        self.end = 0
        """The values are at least as new as the records below this position."""
        self.next_end = 0
        """`end` after the update that has begun. Not above `end` without one."""
        self.next_slot = 0
        """The values of lower slots have this update."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """Segments of several columns with equal progress read the same bodies."""
        return self.end, self.next_end, self.next_slot

    def put(self, at: Int64s, values: ColumnValues, others: Int64s) -> int:
        """Set the values of some slots, and mark those whose indices are in `others`. Return new memory."""
        self.values[at] = values
        if self.asks is None:
            if not len(others):
                return 0
            self.asks = np.zeros(len(self.values), np.bool_)
            self.asks[at[others]] = True
            return self.asks.nbytes
        self.asks[at] = False
        self.asks[at[others]] = True
        return 0


class Column:
    """Values of one field, in segments."""

    def __init__(self, dtype: str, late_puts: int) -> None:
        self.dtype = dtype
        self.late_puts = late_puts
        """`RecordTable.late_puts` at its start. Segments are out of date if it has changed."""
        self.segments: dict[int, Segment] = {}
        self.nbytes = 0
        self.used = 0.0
        """Time (monotonic) of its last use."""
        self.dropped = False


class ColumnMemory:
    """The columns of all SOW topics."""

    def __init__(self, clock: EngineClock) -> None:
        self.clock = clock
        self.nbytes = 0
        """Memory of all columns."""
        self._room = sow_columns_bytes_max
        self._columns: dict[Column, None] = {}
        """Least recently used first."""

    # -- queries ----------------------------------------------------------------------------------------

    def add(self, column: Column, slots: int) -> bool:
        """Add a column for a topic with this number of slots. Return whether enough memory is left for it."""
        segments = -(-slots // sow_column_segment_slots)
        if not self._make_room(segments * sow_column_segment_slots * np.dtype(column.dtype).itemsize):
            return False
        self.use(column)
        return True

    def use(self, column: Column) -> None:
        """Note that a query uses a column now."""
        self._columns.pop(column, None)
        self._columns[column] = None
        column.used = self.clock.mono
        if len(self._columns) == 1:
            self.clock.announce(self)

    def segment(self, column: Column, number: int) -> Segment | None:
        """Return a segment of a column, made if necessary. None without memory for it."""
        segment = column.segments.get(number)
        if segment is None and not column.dropped:
            segment = Segment(column.dtype)
            if not self._make_room(segment.values.nbytes) or column.dropped:
                return None
            column.segments[number] = segment
            self.grow(column, segment.values.nbytes)
        return segment

    def grow(self, column: Column, nbytes: int) -> None:
        """Count more memory of a column that is in use."""
        if not column.dropped:
            column.nbytes += nbytes
            self.nbytes += nbytes

    def drop(self, column: Column) -> None:
        """Free a column, which must be one of these or dropped."""
        if not column.dropped:
            del self._columns[column]
            self.nbytes -= column.nbytes
            column.dropped = True
            column.segments, column.nbytes = {}, 0

    def _make_room(self, nbytes: int) -> bool:
        """Free memory for more columns. Drop columns only if no query has used them recently. Return whether
        enough is free."""
        recent = self.clock.mono - sow_column_repeat_seconds
        while self.nbytes + nbytes > self._room:
            first = next(iter(self._columns), None)
            if first is None or first.used >= recent:
                return False
            self.drop(first)
        return True

    # -- memory and time --------------------------------------------------------------------------------

    def fit(self, free: int) -> None:
        """Let columns use at most `free` bytes, which records do not need."""
        self._room = min(sow_columns_bytes_max, free)
        while self._columns and self.nbytes > self._room:
            self.drop(next(iter(self._columns)))

    def next_deadline(self) -> float | None:
        """Return the monotonic time (seconds) at which a column may be unused, or None without columns."""
        for column in self._columns:
            return column.used + sow_column_unused_seconds
        return None

    def wake(self) -> None:
        """Drop unused columns."""
        unused = self.clock.mono - sow_column_unused_seconds
        for column in [*self._columns]:
            if column.used > unused:
                return
            self.drop(column)
