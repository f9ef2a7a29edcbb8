"""Lookup structures of an index: filters by value, by interval, by predicate, or none of these.

Values that `=` treats as equal share an entry. Values that are not numbers are rare: for them the conditions
of intervals are evaluated themselves. Removing a filter removes all its entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from itertools import chain
from math import inf, nan
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np

from tickertape.batch.format import Bools, Int64s
from tickertape.filter.compiler.compile import Filter
from tickertape.filter.contained_errors import DEFECTS
from tickertape.filter.functions import arrays as operators
from tickertape.filter.functions.arrays import TooCostly, elements
from tickertape.filter.functions.values import Scalar, key, scalar
from tickertape.filter.index.columns import CostShare, ValueColumns
from tickertape.filter.index.predicates import PredicateCache
from tickertape.filter.index.terms import EqualityTerm, Interval, Single, Terms
from tickertape.filter.language.ast import Between, Comparison, Literal, Node
from tickertape.payload.paths import Path

K = TypeVar("K")


_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_WIDE: Final = 1 << 63
_NOBODY: Final[list[int]] = []


class EqualityIndex:
    """Slots of filters by the keys of required values (see `values.key`)."""

    def __init__(self) -> None:
        self._slots: dict[Scalar, list[int]] = {}
        self._numbers = 0
        """Number of keys that are not strings."""
        self._wide = 0
        """Number of keys beyond 64-bit integers."""

    def __bool__(self) -> bool:
        return bool(self._slots)

    def crowd(self, keys: Iterable[Scalar]) -> int:
        """Return the maximum number of slots that share one of these keys."""
        return max(len(self._slots.get(one, _NOBODY)) for one in keys)

    def add(self, keys: Iterable[Scalar], slot: int) -> None:
        """Add the values that the filter in `slot` requires."""
        for one in keys:
            slots = self._slots.get(one)
            if slots is None:
                self._slots[one] = [slot]
                self._count(one, 1)
            else:
                slots.append(slot)

    def discard(self, keys: Iterable[Scalar], slot: int) -> None:
        """Remove the values that the filter in `slot` requires."""
        for one in keys:
            slots = self._slots[one]
            slots.remove(slot)
            if not slots:
                del self._slots[one]
                self._count(one, -1)

    def _count(self, one: Scalar, change: int) -> None:
        if not isinstance(one, str):
            self._numbers += change
            self._wide += change * (one is not None and abs(one) >= _WIDE)

    def found(self, values: Sequence[Any], costly: set[int]) -> tuple[Int64s, Int64s]:
        """Return the slots that require one of `values`, and the index of the value for each, ascending.

        The index of a too expensive value is added to `costly`."""
        get = self._slots.get
        kinds = set(map(type, values))
        found: list[Collection[int]]
        if kinds <= _PLAIN and not self._wide:
            keys = values
            if self._numbers and str in kinds:
                keys = [key(value) if value.__class__ is str else value for value in values]
            found = [get(one, _NOBODY) for one in keys]
        else:
            found = [self._askers(value, at, costly) for at, value in enumerate(values)]
        counts = np.fromiter(map(len, found), np.int64, len(found))
        slots = np.fromiter(chain.from_iterable(found), np.int64, int(counts.sum()))
        return slots, np.repeat(np.arange(len(found)), counts)

    def _askers(self, value: Any, at: int, costly: set[int]) -> Collection[int]:
        try:
            if value.__class__ is not list:
                return self._slots.get(key(scalar(value)), _NOBODY)
            summed = elements(value, CostShare())
            wanted = [*summed.texts, *(summed.numbers if self._numbers else ())]
        except TooCostly:
            costly.add(at)
            return _NOBODY
        except Exception as error:  # noqa: BLE001 - separate evaluation finds the failing filter
            DEFECTS.note(error)
            costly.add(at)
            return _NOBODY
        return dict.fromkeys(chain.from_iterable(self._slots.get(one, _NOBODY) for one in wanted))


_CELLS: Final = 1 << 18
"""Tests at a time, chosen to fit the cache of a processor."""
_CELLS_PER_STEP: Final = 64
_CONDITION_STEPS: Final = 10
_ROWS: Final = 256
"""Conditions that are evaluated one by one before other work runs."""

Pairs: TypeAlias = tuple[Int64s, Int64s]
"""Slots of filters, and the index of a body for each."""
Side: TypeAlias = tuple[Path, bool]
"""A field, and whether the side is the lower end of its interval."""


def sides_of(intervals: Sequence[Interval]) -> tuple[Side, ...]:
    """Return the ends at which `intervals` are bounded."""
    found = {(one.path, True) for one in intervals if one.low > -inf}
    found |= {(one.path, False) for one in intervals if one.high < inf}
    return tuple(sorted(found, key=str))


class RangeIndex:
    """Filters with intervals on the same fields, bounded at the same ends. Each filter has a row."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = tuple(sides)
        self._paths = tuple(dict.fromkeys(path for path, _ in sides))
        self._bounds = np.full((len(sides), 8), nan)
        """Bound of each side and row. No value is above or below NaN."""
        self._slots = np.full(8, -1)
        self._conditions: list[tuple[Interval, ...]] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._conditions) - len(self._free)

    def add(self, intervals: Sequence[Interval], slot: int) -> int:
        """Add the filter in `slot` and return its row."""
        if self._free:
            row = self._free.pop()
            self._conditions[row] = tuple(intervals)
        else:
            row = len(self._conditions)
            self._conditions.append(tuple(intervals))
            if row == len(self._slots):
                more = (0, len(self._slots))
                self._bounds = np.pad(self._bounds, ((0, 0), more), constant_values=nan)
                self._slots = np.pad(self._slots, more, constant_values=-1)
        for number, (path, lower) in enumerate(self._sides):
            own = [one for one in intervals if one.path == path]
            self._bounds[number, row] = max(o.low for o in own) if lower else min(o.high for o in own)
        self._slots[row] = slot
        return row

    def discard(self, row: int) -> None:
        """Free a row."""
        self._bounds[:, row], self._slots[row] = nan, -1
        self._conditions[row] = ()
        self._free.append(row)

    # -- evaluating -----------------------------------------------------------------------------------

    def found(
        self, columns: ValueColumns, count: int, narrow: Callable[[Int64s, Bools], None]
    ) -> Generator[int, None, list[Pairs]]:
        """Find the bodies of `columns` (`count` of them) that each filter may match. Yields steps.

        `narrow` gets slots and, for each slot, the candidate bodies. It clears candidates that it can
        exclude.
        """
        odd = self._odd(columns)
        pairs: list[Pairs] = []
        rows = len(self._conditions)
        some = max(_CELLS // count, 1)
        for begin in range(0, rows, some):
            end = min(begin + some, rows)
            inside = np.ones((end - begin, count), np.bool_)
            for number, (path, lower) in enumerate(self._sides):
                values, bounds = columns.numbers(path).values, self._bounds[number, begin:end, None]
                inside &= values >= bounds if lower else values <= bounds
            if odd:
                inside[:, odd] = False
            yield inside.size // _CELLS_PER_STEP
            if odd:
                yield from self._settle_odd(columns, odd, inside, begin)
            narrow(self._slots[begin:end], inside)
            hits = np.flatnonzero(inside)
            pairs.append((self._slots[begin + hits // count], hits % count))
        return pairs

    def test(self, rows: Int64s, at: Int64s, columns: ValueColumns) -> Generator[int, None, Bools]:
        """Evaluate the filter of a row on the body at an index, for many such pairs. Yields steps."""
        inside = np.ones(len(rows), np.bool_)
        for number, (path, lower) in enumerate(self._sides):
            values, bounds = columns.numbers(path).values[at], self._bounds[number, rows]
            inside &= values >= bounds if lower else values <= bounds
        yield len(rows) // _CELLS_PER_STEP
        odd = self._odd(columns)
        if odd:
            for number, pair in enumerate(np.isin(at, odd).nonzero()[0].tolist()):
                inside[pair] = self._true_of(int(rows[pair]), int(at[pair]), columns)
                if not (number + 1) % _ROWS:
                    yield _ROWS * _CONDITION_STEPS
        return inside

    def _odd(self, columns: ValueColumns) -> list[int]:
        """Return the indices of bodies with a value that is neither a number nor NULL."""
        return sorted({at for path in self._paths for at in columns.numbers(path).others})

    def _settle_odd(
        self, columns: ValueColumns, odd: Sequence[int], inside: Bools, begin: int
    ) -> Iterator[int]:
        for place in odd:
            for number in range(len(inside)):
                if self._conditions[begin + number]:
                    inside[number, place] = self._true_of(begin + number, place, columns)
                if not (number + 1) % _ROWS:
                    yield _ROWS * _CONDITION_STEPS
            yield len(inside) % _ROWS * _CONDITION_STEPS

    def _true_of(self, row: int, at: int, columns: ValueColumns) -> bool:
        try:
            return all(_holds(one.node, columns.values(one.path)[at]) for one in self._conditions[row])
        except TooCostly:
            columns.costly.add(at)
            return False
        except Exception as error:  # noqa: BLE001 - separate evaluation finds the failing filter
            DEFECTS.note(error)
            columns.costly.add(at)
            return False


def _holds(node: Node, value: Any) -> bool:
    """Return the result of an interval condition for any value."""
    arrays = CostShare()
    if isinstance(node, Between):
        assert isinstance(node.low, Literal)
        assert isinstance(node.high, Literal)
        return operators.between(value, node.low.value, node.high.value, arrays) is True
    assert isinstance(node, Comparison)
    left, right, sign = node.left, node.right, node.operator
    a = left.value if isinstance(left, Literal) else value
    b = right.value if isinstance(right, Literal) else value
    if sign in {">", ">="}:
        a, b = b, a
    return (operators.less if sign in {"<", ">"} else operators.at_most)(a, b, arrays) is True


Int32s = np.ndarray[Any, np.dtype[np.int32]]

_NONE = -1


class FilterSlot(Generic[K]):
    """One filter, with all its users."""

    __slots__ = ("_keys_now", "conditions", "filter", "found_by", "keys", "paths", "row", "slot", "terms")

    def __init__(self, filter: Filter, terms: Terms) -> None:
        self.filter = filter
        self.paths = filter.paths
        """The fields that the index reads for it. Empty if the filter reads them itself."""
        self.terms = terms
        self.keys: dict[K, None] = {}
        self._keys_now: tuple[K, ...] | None = None
        self.slot = _NONE
        self.found_by: tuple[EqualityTerm, ...] = ()
        """Equalities, at least one of them true if the filter matches."""
        self.conditions: list[Single | EqualityTerm] = []
        """Conditions that are tested after the lookup."""
        self.row = _NONE
        """Row in its range index."""

    def put(self, key: K) -> None:
        """Add a user of this filter."""
        self.keys[key] = self._keys_now = None

    def drop(self, key: K) -> None:
        """Remove a user of this filter."""
        del self.keys[key]
        self._keys_now = None

    @property
    def keys_now(self) -> tuple[K, ...]:
        """Return the users. Later changes do not affect the result."""
        if self._keys_now is None:
            self._keys_now = tuple(self.keys)
        return self._keys_now


class Slots(Generic[K]):
    """Filters by number, and their remaining conditions, in columns."""

    def __init__(self) -> None:
        self.entries: list[FilterSlot[K] | None] = []
        self._free: list[int] = []
        self.whole = np.zeros(8, np.bool_)
        """Whether the filter itself must be evaluated."""
        self.family: Int32s = np.full(8, _NONE, np.int32)
        """Number of the range index that must hold too, or -1, and the row there."""
        self.family_row: Int32s = np.full(8, _NONE, np.int32)
        self.tables: list[Int32s] = []
        """Per condition (first, second, ...): number of its predicate cache, or -1, and the row there."""
        self.rows: list[Int32s] = []

    def add(self, entry: FilterSlot[K]) -> int:
        """Return a slot for the filter, without remaining conditions."""
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
        """Free a slot."""
        self.entries[slot] = None
        self.whole[slot] = False
        for column in (self.family, self.family_row, *self.tables, *self.rows):
            column[slot] = _NONE
        self._free.append(slot)

    def ask(self, slot: int, number: int, table: int, row: int) -> None:
        """Set the condition `number`, from 0, to a row of a table."""
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


class Structures(Generic[K]):
    """All lookup structures of an index."""

    def __init__(self) -> None:
        self.slots = Slots[K]()
        self.equalities: dict[Path, EqualityIndex] = {}
        """Filters by a value of a field."""
        self.several = 0
        """Filters that are found by values of more than one field."""
        self.families: list[RangeIndex] = []
        """Range indexes, by their fields. Scanned ones are separate from others."""
        self.scanned: list[int] = []
        """Numbers of the range indexes that are scanned to find filters."""
        self.tables: list[PredicateCache] = []
        """Predicate caches, one per field."""
        self.table_paths: list[Path] = []
        self.by_condition: dict[int, dict[int, dict[int, None]]] = {}
        """Slots that are found by a row of a predicate cache."""
        self.always: dict[int, None] = {}
        """Slots of filters that are evaluated for every readable body."""
        self.everywhere: dict[int, None] = {}
        """Slots of filters that read no field, or read fields themselves."""
        self.by_paths: dict[tuple[Path, ...], dict[int, None]] = {}
        """All slots by the fields that they read."""
        self._family_numbers: dict[tuple[tuple[Side, ...], bool], int] = {}
        self._table_numbers: dict[Path, int] = {}

    def crowd(self, choice: tuple[EqualityTerm, ...]) -> int:
        """Return the maximum number of filters that are found by the same values already."""
        return max(
            self.equalities[one.path].crowd(one.keys) if one.path in self.equalities else 0 for one in choice
        )

    def table(self, path: Path) -> int:
        """Return the number of the predicate cache of a field."""
        number = self._table_numbers.setdefault(path, len(self.tables))
        if number == len(self.tables):
            self.tables.append(PredicateCache())
            self.table_paths.append(path)
        return number

    # -- adding ---------------------------------------------------------------------------------------

    def find_by_values(self, entry: FilterSlot[K], choice: tuple[EqualityTerm, ...]) -> None:
        """Register a filter to be found if one of the equalities is true."""
        entry.found_by = choice
        self.several += len(choice) > 1
        for one in choice:
            self.equalities.setdefault(one.path, EqualityIndex()).add(one.keys, entry.slot)

    def put_among_intervals(self, entry: FilterSlot[K], *, scanned: bool) -> None:
        """Register the intervals of a filter. With `scanned` they find it, otherwise they are tested
        afterwards."""
        sides = sides_of(entry.terms.intervals)
        number = self._family_numbers.setdefault((sides, scanned), len(self.families))
        if number == len(self.families):
            self.families.append(RangeIndex(sides))
            if scanned:
                self.scanned.append(number)
        entry.row = self.families[number].add(entry.terms.intervals, entry.slot)
        self.slots.family[entry.slot], self.slots.family_row[entry.slot] = number, entry.row

    def find_by_condition(self, entry: FilterSlot[K]) -> None:
        """Register a filter to be found if its first condition is true."""
        table, row = int(self.slots.tables[0][entry.slot]), int(self.slots.rows[0][entry.slot])
        self.by_condition.setdefault(table, {}).setdefault(row, {})[entry.slot] = None

    # -- removing -------------------------------------------------------------------------------------

    def remove(self, entry: FilterSlot[K]) -> None:
        """Remove a filter and free its slot."""
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
