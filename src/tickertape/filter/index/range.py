"""Range index: tests the intervals of many filters over the same fields at once.

Values that are not numbers are rare; for them the conditions themselves are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from math import inf, nan
from typing import Any, Final, TypeAlias

import numpy as np

from tickertape.batch.format import Bools, Int64s
from tickertape.filter.contained_errors import DEFECTS
from tickertape.filter.functions import comparison as operators
from tickertape.filter.functions.arrays import TooCostly
from tickertape.filter.index.columns import CostShare, ValueColumns
from tickertape.filter.index.terms import Interval
from tickertape.filter.language.ast import Between, Comparison, Literal, Node
from tickertape.payload.paths import Path

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
