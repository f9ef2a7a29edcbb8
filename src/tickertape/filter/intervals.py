"""Owns the filters that ask whether numbers lie in intervals: those over the same fields, tested all at once.

Must never decide about a value that is no number by its interval: such values are few, and the conditions
themselves are asked.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from math import inf
from typing import Any, Final

import numpy as np

from tickertape.batch.format import AnyArray, Bools, Int64s
from tickertape.filter import operators
from tickertape.filter.columns import Columns, Share
from tickertape.filter.elements import TooCostly
from tickertape.filter.terms import Interval
from tickertape.filter.tree import Between, Comparison, Literal, Node
from tickertape.payload.paths import Path

_CELLS: Final = 1 << 18
"""Tests in one go: what stays in the cache of a processor."""
_CELLS_PER_STEP: Final = 64
_CONDITION_STEPS: Final = 10
_ROWS: Final = 256
"""So many conditions are asked one by one before others may have their turn."""

Pairs = tuple[Int64s, Int64s]
"""Slots of filters, and for each the place of a body."""


class Intervals:
    """Filters with intervals of the same fields, a row for each."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._low = np.full((len(paths), 8), inf)
        self._high = np.full((len(paths), 8), -inf)
        self._slots = np.full(8, -1)
        self._conditions: list[tuple[Interval, ...]] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._conditions) - len(self._free)

    def add(self, intervals: Sequence[Interval], slot: int) -> int:
        """The row of the filter in `slot`."""
        if self._free:
            row = self._free.pop()
            self._conditions[row] = tuple(intervals)
        else:
            row = len(self._conditions)
            self._conditions.append(tuple(intervals))
            if row == len(self._slots):
                self._grow()
        for at, path in enumerate(self.paths):
            own = [one for one in intervals if one.path == path]
            self._low[at, row] = max(one.low for one in own)
            self._high[at, row] = min(one.high for one in own)
        self._slots[row] = slot
        return row

    def discard(self, row: int) -> None:
        """A row is free again."""
        self._low[:, row], self._high[:, row], self._slots[row] = inf, -inf, -1
        self._conditions[row] = ()
        self._free.append(row)

    def _grow(self) -> None:
        more = ((0, 0), (0, len(self._slots)))
        self._low = np.pad(self._low, more, constant_values=inf)
        self._high = np.pad(self._high, more, constant_values=-inf)
        self._slots = np.pad(self._slots, more[1], constant_values=-1)

    # -- asking ---------------------------------------------------------------------------------------

    def found(self, columns: Columns, count: int) -> Generator[int, None, list[Pairs]]:
        """Which bodies of `columns`, which has `count`, each filter asks for; yields steps taken."""
        numbers = [columns.numbers(path) for path in self.paths]
        odd = self._odd(columns)
        pairs: list[Pairs] = []
        rows = len(self._conditions)
        some = max(_CELLS // count, 1)
        for begin in range(0, rows, some):
            end = min(begin + some, rows)
            inside = np.ones((end - begin, count), np.bool_)
            for at, column in enumerate(numbers):
                inside &= column.values >= self._low[at, begin:end, None]
                inside &= column.values <= self._high[at, begin:end, None]
            if odd:
                inside[:, odd] = False
            yield inside.size // _CELLS_PER_STEP
            if odd:
                yield from self._settle_odd(columns, odd, inside, begin)
            hits = np.flatnonzero(inside)
            pairs.append((self._slots[begin + hits // count], hits % count))
        return pairs

    def test(self, rows: Int64s, at: Int64s, columns: Columns) -> Generator[int, None, Bools]:
        """Whether the filter of a row asks for the body at a place, for many such pairs; yields steps."""
        inside = np.ones(len(rows), np.bool_)
        for number, path in enumerate(self.paths):
            values: AnyArray = columns.numbers(path).values[at]
            inside &= (values >= self._low[number, rows]) & (values <= self._high[number, rows])
        yield len(rows) // _CELLS_PER_STEP
        odd = self._odd(columns)
        if odd:
            for number, pair in enumerate(np.isin(at, odd).nonzero()[0].tolist()):
                inside[pair] = self._true_of(int(rows[pair]), int(at[pair]), columns)
                if not (number + 1) % _ROWS:
                    yield _ROWS * _CONDITION_STEPS
        return inside

    def _odd(self, columns: Columns) -> list[int]:
        """Where some value is neither a number nor NULL."""
        return sorted({at for path in self.paths for at in columns.numbers(path).others})

    def _settle_odd(self, columns: Columns, odd: Sequence[int], inside: Bools, begin: int) -> Iterator[int]:
        for place in odd:
            for number in range(len(inside)):
                if self._conditions[begin + number]:
                    inside[number, place] = self._true_of(begin + number, place, columns)
                if not (number + 1) % _ROWS:
                    yield _ROWS * _CONDITION_STEPS
            yield len(inside) % _ROWS * _CONDITION_STEPS

    def _true_of(self, row: int, at: int, columns: Columns) -> bool:
        try:
            return all(_holds(one.node, columns.values(one.path)[at]) for one in self._conditions[row])
        except TooCostly:
            columns.costly.add(at)
            return False


def _holds(node: Node, value: Any) -> bool:
    """A condition with an interval, of any value."""
    arrays = Share()
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
