"""Lookup structures of an index: by value, by interval, by predicate, or none.

Removing a filter removes everything that was kept for it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from tickertape.filter.index.equality import EqualityIndex
from tickertape.filter.index.predicates import PredicateCache
from tickertape.filter.index.range import RangeIndex, Side, sides_of
from tickertape.filter.index.slots import FilterSlot, Slots
from tickertape.filter.index.terms import EqualityTerm
from tickertape.payload.paths import Path

K = TypeVar("K")


class Structures(Generic[K]):
    """The lookup structures."""

    def __init__(self) -> None:
        self.slots = Slots[K]()
        self.equalities: dict[Path, EqualityIndex] = {}
        """By a value of a field."""
        self.several = 0
        """Filters that are found by values of more than one field."""
        self.families: list[RangeIndex] = []
        """Intervals by the fields that they are of; those by which a filter is found apart from others."""
        self.scanned: list[int] = []
        """Which of them are those."""
        self.tables: list[PredicateCache] = []
        """Conditions by the field that they are on."""
        self.table_paths: list[Path] = []
        self.by_condition: dict[int, dict[int, dict[int, None]]] = {}
        """Slots that are found by a row of a table."""
        self.always: dict[int, None] = {}
        """Slots of filters that are asked of every body that can be read."""
        self.everywhere: dict[int, None] = {}
        """Those that read nothing of a body, or by themselves."""
        self.by_paths: dict[tuple[Path, ...], dict[int, None]] = {}
        """All slots by the fields that they read."""
        self._family_numbers: dict[tuple[tuple[Side, ...], bool], int] = {}
        self._table_numbers: dict[Path, int] = {}

    def crowd(self, choice: tuple[EqualityTerm, ...]) -> int:
        """Return how many are found by the same values already, at most."""
        return max(
            self.equalities[one.path].crowd(one.keys) if one.path in self.equalities else 0 for one in choice
        )

    def table(self, path: Path) -> int:
        """Return the number of the conditions on a field."""
        number = self._table_numbers.setdefault(path, len(self.tables))
        if number == len(self.tables):
            self.tables.append(PredicateCache())
            self.table_paths.append(path)
        return number

    # -- putting in -----------------------------------------------------------------------------------

    def find_by_values(self, entry: FilterSlot[K], choice: tuple[EqualityTerm, ...]) -> None:
        """It is found where one of the equalities is true."""
        entry.found_by = choice
        self.several += len(choice) > 1
        for one in choice:
            self.equalities.setdefault(one.path, EqualityIndex()).add(one.keys, entry.slot)

    def put_among_intervals(self, entry: FilterSlot[K], *, scanned: bool) -> None:
        """Its intervals are tested: of all bodies when `scanned`, else when it was found."""
        sides = sides_of(entry.terms.intervals)
        number = self._family_numbers.setdefault((sides, scanned), len(self.families))
        if number == len(self.families):
            self.families.append(RangeIndex(sides))
            if scanned:
                self.scanned.append(number)
        entry.row = self.families[number].add(entry.terms.intervals, entry.slot)
        self.slots.family[entry.slot], self.slots.family_row[entry.slot] = number, entry.row

    def find_by_condition(self, entry: FilterSlot[K]) -> None:
        """It is found where its first condition is true."""
        table, row = int(self.slots.tables[0][entry.slot]), int(self.slots.rows[0][entry.slot])
        self.by_condition.setdefault(table, {}).setdefault(row, {})[entry.slot] = None

    # -- taking out -----------------------------------------------------------------------------------

    def remove(self, entry: FilterSlot[K]) -> None:
        """It is found no more; its slot is free."""
        slot, slots = entry.slot, self.slots
        same = self.by_paths[entry.paths]
        del same[slot]
        if not same:
            del self.by_paths[entry.paths]
        self.always.pop(slot, None)
        self.everywhere.pop(slot, None)
        self.several -= len(entry.found_by) > 1
        for one in entry.found_by:
            self.equalities[one.path].discard(one.keys, slot)
        for path in {one.path for one in entry.found_by}:
            if not self.equalities[path]:
                del self.equalities[path]
        if entry.row >= 0:
            self.families[int(slots.family[slot])].discard(entry.row)
        if entry.conditions:
            table, row = int(slots.tables[0][slot]), int(slots.rows[0][slot])
            found = self.by_condition.get(table, {})
            found.get(row, {}).pop(slot, None)
            if row in found and not found[row]:
                del found[row]
        for condition in entry.conditions:
            self.tables[self.table(condition.path)].discard(condition)
        slots.discard(slot)
