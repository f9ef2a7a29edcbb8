"""Lookup structures of an index: its filters by value, by interval, by predicate, or none.

Values that `=` treats as equal have the same entry. Values that are not numbers are rare; for them the
conditions of intervals themselves are evaluated. Removing a filter removes everything that was kept for it.
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
    """Slots of filters by the keys of values (see `values.key`)."""

    def __init__(self) -> None:
        self._slots: dict[Scalar, list[int]] = {}
        self._numbers = 0
        """Keys that are not texts."""
        self._wide = 0
        """Those beyond integers of 64 bits."""

    def __bool__(self) -> bool:
        return bool(self._slots)

    def crowd(self, keys: Iterable[Scalar]) -> int:
        """Return how many ask for the same, at most."""
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
        """It does no more."""
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
        """Return the slots that require one of `values`, and for each the place of its value, rising. The
        place of a too costly value is added to `costly`."""
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
        except Exception as error:  # noqa: BLE001 - the filters themselves are asked, and say who fails
            DEFECTS.note(error)
            costly.add(at)
            return _NOBODY
        return dict.fromkeys(chain.from_iterable(self._slots.get(one, _NOBODY) for one in wanted))


_CELLS: Final = 1 << 18
"""Tests in one go: what stays in the cache of a processor."""
_CELLS_PER_STEP: Final = 64
_CONDITION_STEPS: Final = 10
_ROWS: Final = 256
"""Conditions that are evaluated one by one before other work has its turn."""

Pairs: TypeAlias = tuple[Int64s, Int64s]
"""Slots of filters, and for each the place of a body."""
Side: TypeAlias = tuple[Path, bool]
"""A field, and whether it is the lower end of its interval."""


def sides_of(intervals: Sequence[Interval]) -> tuple[Side, ...]:
    """Return the ends at which `intervals` are closed."""
    found = {(one.path, True) for one in intervals if one.low > -inf}
    found |= {(one.path, False) for one in intervals if one.high < inf}
    return tuple(sorted(found, key=str))


class RangeIndex:
    """Filters with intervals of the same fields that are open at the same ends, a row for each."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = tuple(sides)
        self._paths = tuple(dict.fromkeys(path for path, _ in sides))
        self._bounds = np.full((len(sides), 8), nan)
        """Of each side and row; nothing is above or below NaN."""
        self._slots = np.full(8, -1)
        self._conditions: list[tuple[Interval, ...]] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._conditions) - len(self._free)

    def add(self, intervals: Sequence[Interval], slot: int) -> int:
        """Return the row of the filter in `slot`."""
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
        """A row is free again."""
        self._bounds[:, row], self._slots[row] = nan, -1
        self._conditions[row] = ()
        self._free.append(row)

    # -- asking ---------------------------------------------------------------------------------------

    def found(
        self, columns: ValueColumns, count: int, narrow: Callable[[Int64s, Bools], None]
    ) -> Generator[int, None, list[Pairs]]:
        """Find the bodies of `columns`, which has `count`, that each filter may match; yield steps.

        `narrow` is given slots, and for each which bodies it asks for, to strike out what it knows better.
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
        """Evaluate the filter of a row for the body at a place, for many such pairs; yield steps."""
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
        """Return where some value is neither a number nor NULL."""
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
        except Exception as error:  # noqa: BLE001 - the filters themselves are asked, and say who fails
            DEFECTS.note(error)
            columns.costly.add(at)
            return False


def _holds(node: Node, value: Any) -> bool:
    """Return a condition with an interval, of any value."""
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
