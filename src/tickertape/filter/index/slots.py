"""Slots of an index: numbers its filters and keeps the part of each that is still to be evaluated."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np

from tickertape.filter.compiler.compile import Filter
from tickertape.filter.index.terms import EqualityTerm, Single, Terms

K = TypeVar("K")
Int32s = np.ndarray[Any, np.dtype[np.int32]]

_NONE = -1


class FilterSlot(Generic[K]):
    """One filter, with all its users."""

    __slots__ = ("_keys_now", "conditions", "filter", "found_by", "keys", "paths", "row", "slot", "terms")

    def __init__(self, filter: Filter, terms: Terms) -> None:
        self.filter = filter
        self.paths = filter.paths
        """The fields that the index reads for it; none when it reads them itself."""
        self.terms = terms
        self.keys: dict[K, None] = {}
        self._keys_now: tuple[K, ...] | None = None
        self.slot = _NONE
        self.found_by: tuple[EqualityTerm, ...] = ()
        """Equalities, one of which is true when the filter matches."""
        self.conditions: list[Single | EqualityTerm] = []
        """Test of a field after the lookup."""
        self.row = _NONE
        """Its row among the intervals."""

    def put(self, key: K) -> None:
        """Add a user of this filter."""
        self.keys[key] = self._keys_now = None

    def drop(self, key: K) -> None:
        """And has it no more."""
        del self.keys[key]
        self._keys_now = None

    @property
    def keys_now(self) -> tuple[K, ...]:
        """Return its users; later changes do not affect the result."""
        if self._keys_now is None:
            self._keys_now = tuple(self.keys)
        return self._keys_now


class Slots(Generic[K]):
    """Filters by number, and the remaining part of each, in columns."""

    def __init__(self) -> None:
        self.entries: list[FilterSlot[K] | None] = []
        self._free: list[int] = []
        self.whole = np.zeros(8, np.bool_)
        """Whether the filter itself has to be asked."""
        self.family: Int32s = np.full(8, _NONE, np.int32)
        """Which set of intervals it has to be in as well, -1 for none, and its row there."""
        self.family_row: Int32s = np.full(8, _NONE, np.int32)
        self.tables: list[Int32s] = []
        """Of the first, second, ... condition: which table, -1 for none, and its row there."""
        self.rows: list[Int32s] = []

    def add(self, entry: FilterSlot[K]) -> int:
        """Return a slot for it, with nothing left to ask."""
        if self._free:
            slot = self._free.pop()
            self.entries[slot] = entry
        else:
            slot = len(self.entries)
            self.entries.append(entry)
            if slot == len(self.whole):
                self._grow()
        entry.slot = slot
        return slot

    def discard(self, slot: int) -> None:
        """It is free again."""
        self.entries[slot] = None
        self.whole[slot] = False
        for column in (self.family, self.family_row, *self.tables, *self.rows):
            column[slot] = _NONE
        self._free.append(slot)

    def ask(self, slot: int, number: int, table: int, row: int) -> None:
        """Its condition `number`, from 0, is a row of a table."""
        if number == len(self.tables):
            self.tables.append(np.full(len(self.whole), _NONE, np.int32))
            self.rows.append(np.full(len(self.whole), _NONE, np.int32))
        self.tables[number][slot] = table
        self.rows[number][slot] = row

    def _grow(self) -> None:
        size = len(self.whole)
        self.whole = np.pad(self.whole, (0, size))
        self.family, self.family_row = _longer(self.family), _longer(self.family_row)
        self.tables = [_longer(column) for column in self.tables]
        self.rows = [_longer(column) for column in self.rows]


def _longer(column: Int32s) -> Int32s:
    return np.pad(column, (0, len(column)), constant_values=_NONE)
