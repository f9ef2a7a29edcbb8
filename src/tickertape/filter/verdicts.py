"""Owns the conditions on one field that no dictionary or interval decides, and whether they are true of the
values met: each is asked once of a value, however many filters and messages have it.

Must never answer of a value that was not asked of it, nor remember more than `index_cells_max` answers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from tickertape.base.limits import index_cells_max, index_piece_messages_max, index_value_characters_max
from tickertape.batch.format import AnyArray, Bools, Int64s
from tickertape.filter.columns import Share
from tickertape.filter.elements import Arrays, TooCostly
from tickertape.filter.generate import Generator as Source
from tickertape.filter.generate import affixes, searching
from tickertape.filter.operators import affixed, one_of
from tickertape.filter.patterns import compile_pattern
from tickertape.filter.resolve import scans
from tickertape.filter.terms import Equality, Single
from tickertape.filter.tree import Affix, Field, Like, Node, walk

Test: TypeAlias = Callable[[Any, Arrays], bool]

_SCAN_STEPS: Final = 20
_CHARACTERS_PER_STEP: Final = 32
_CELLS_PER_STEP: Final = 64
_CELLS: Final = 1 << 18
_STEPS: Final = 1 << 12
"""So many are taken before others may have their turn."""
_UNKNOWN: Final = -1
_META: Final = frozenset("\\^$.|?*+()[]{}")
_EASY_PART: Final = 64
_EASY_TEXT: Final = 1_024
"""Up to these lengths the usual search of a text in a text is quick, whatever they are."""


class Verdicts:
    """Conditions on one field, a row for each; a column for each value met."""

    def __init__(self) -> None:
        self._rows: dict[Node, int] = {}
        self._uses: list[int] = []
        self._conditions: list[Single | Equality | None] = []
        self._tests: list[Test | None] = []
        self._steps: list[int] = []
        self._free: list[int] = []
        self._cells = np.full((8, 64), _UNKNOWN, np.int8)
        self._columns: dict[str, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._rows)

    # -- conditions -----------------------------------------------------------------------------------

    def add(self, condition: Single | Equality) -> int:
        """The row of a condition; equal ones share it."""
        row = self._rows.get(condition.node)
        if row is not None:
            self._uses[row] += 1
            return row
        if self._free:
            row = self._free.pop()
            self._cells[row] = _UNKNOWN
        else:
            row = len(self._uses)
            self._uses.append(0)
            self._conditions.append(None)
            self._tests.append(None)
            self._steps.append(0)
            if row == len(self._cells):
                self._resize(2 * row, self._cells.shape[1])
        self._rows[condition.node] = row
        self._uses[row] = 1
        self._conditions[row] = condition
        return row

    def discard(self, condition: Single | Equality) -> None:
        """One who asked for it does no more."""
        row = self._rows[condition.node]
        self._uses[row] -= 1
        if not self._uses[row]:
            del self._rows[condition.node]
            self._conditions[row] = self._tests[row] = None
            self._free.append(row)

    def _test(self, row: int) -> Test:
        test = self._tests[row]
        if test is None:
            condition = self._conditions[row]
            assert condition is not None
            test = self._tests[row] = test_of(condition)
            self._steps[row] = sum(1 for _ in walk(condition.node)) + _SCAN_STEPS * len(scans(condition.node))
        return test

    # -- values ---------------------------------------------------------------------------------------

    def columns(self, values: Sequence[Any]) -> Int64s:
        """The columns of a piece's `values`; they hold until the next piece is asked for."""
        known = self._columns
        if self._next + len(values) > self._cells.shape[1]:
            self._make_room(len(values))
        found = [known.get(value, -1) if value.__class__ is str else -1 for value in values]
        if -1 in found:
            for at, column in enumerate(found):
                if column < 0:
                    value = values[at]
                    short = value.__class__ is str and len(value) <= index_value_characters_max
                    found[at] = column = known.get(value, self._next) if short else self._next
                    if column == self._next:
                        self._next += 1
                        if short:
                            known[value] = column
        return np.array(found, np.int64)

    def _make_room(self, wanted: int) -> None:
        rows, columns = self._cells.shape
        most = max(index_cells_max // rows, index_piece_messages_max)
        while columns < self._next + wanted and columns < most:
            columns = min(2 * columns, most)
        if columns < self._next + wanted:
            self._columns.clear()
            self._next = 0
            columns = max(columns, wanted)
            self._cells = np.full((rows, columns), _UNKNOWN, np.int8)
        else:
            self._resize(rows, columns)

    def _resize(self, rows: int, columns: int) -> None:
        before = self._cells
        most = max(index_cells_max // rows, index_piece_messages_max)
        if columns > most:
            columns = most
            self._columns.clear()
            self._next = 0
            self._cells = np.full((rows, columns), _UNKNOWN, np.int8)
            return
        self._cells = np.full((rows, columns), _UNKNOWN, np.int8)
        self._cells[: before.shape[0], : before.shape[1]] = before

    # -- asking ---------------------------------------------------------------------------------------

    def found(
        self, rows: Int64s, values: Sequence[Any], columns: Int64s, costly: set[int]
    ) -> Generator[int, None, list[tuple[Int64s, Int64s]]]:
        """Of which of `values` the conditions of `rows` are true: indexes in `rows`, and for each a place,
        rising."""
        pairs: list[tuple[Int64s, Int64s]] = []
        some = max(_CELLS // len(values), 1)
        for begin in range(0, len(rows), some):
            part = rows[begin : begin + some]
            answers = self._cells[part].take(columns, axis=1)
            if (answers < 0).any():
                asked, at = (answers < 0).nonzero()
                yield from self._ask(part[asked], at, values, columns, costly)
                answers = self._cells[part].take(columns, axis=1)
            hits = np.flatnonzero(answers == 1)
            pairs.append((begin + hits // len(values), hits % len(values)))
            yield answers.size // _CELLS_PER_STEP
        return pairs

    def strike(self, rows: Int64s, columns: Int64s, maybe: AnyArray) -> None:
        """Make False in `maybe`, for each row a place for each column, where it is known not to be true."""
        maybe &= self._cells[rows].take(columns, axis=1) != 0

    def test(
        self, rows: Int64s, at: Int64s, values: Sequence[Any], columns: Int64s, costly: set[int]
    ) -> Generator[int, None, Bools]:
        """Whether the condition of a row is true of the value at a place, for many such pairs."""
        answers = self._cells[rows, columns[at]]
        unknown = answers < 0
        if unknown.any():
            yield from self._ask(rows[unknown], at[unknown], values, columns, costly)
            answers = self._cells[rows, columns[at]]
        yield len(rows) // _CELLS_PER_STEP
        return answers == 1  # type: ignore[no-any-return]

    def _ask(
        self, rows: Int64s, at: Int64s, values: Sequence[Any], columns: Int64s, costly: set[int]
    ) -> Generator[int, None, None]:
        cells, arrays, steps = self._cells, Share(), 0
        for row, place in zip(rows.tolist(), at.tolist(), strict=True):
            column = columns[place]
            if cells[row, column] != _UNKNOWN:
                continue
            test, value = self._test(row), values[place]
            if arrays or value.__class__ is not str:
                arrays = Share()
            try:
                cells[row, column] = test(value, arrays)
            except TooCostly:
                costly.add(place)
                cells[row, column] = False
            steps += self._steps[row]
            if isinstance(value, str | list | bytes):
                steps += len(value) // _CHARACTERS_PER_STEP
            if steps > _STEPS:
                yield steps
                steps = 0
        yield steps


# -- the test of a condition --------------------------------------------------------------------------


def test_of(condition: Single | Equality) -> Test:
    """What tells whether a condition is true of any value of its field."""
    if isinstance(condition, Equality):
        keys = condition.keys
        return lambda value, arrays: one_of(value, keys, False, arrays) is True
    node = condition.node
    if isinstance(node, Like) and isinstance(node.operand, Field):
        return _like(node.pattern)
    if isinstance(node, Affix) and isinstance(node.operand, Field):
        members, null = affixes(node)
        ends = node.ends
        return lambda value, arrays: affixed(value, members, ends, null, arrays) is True
    source = Source({condition.path: ""})
    code = compile(f"lambda m, arrays: {source.yes(node)}", "<condition>", "eval")
    wanted = {name for inner in code.co_consts if hasattr(inner, "co_names") for name in inner.co_names}
    test: Test = eval(code, {name: source.names[name] for name in wanted if name in source.names})
    return test


def _like(pattern: str) -> Test:
    search = searching(compile_pattern(pattern))
    part = pattern.removeprefix("^")
    if not part or not _META.isdisjoint(part):
        return lambda value, arrays: search(value, arrays) is True
    if part == pattern:
        longest = _EASY_TEXT if len(part) <= _EASY_PART else 0
        return lambda value, arrays: (
            part in value
            if value.__class__ is str and len(value) <= longest
            else search(value, arrays) is True
        )
    return lambda value, arrays: (
        value.startswith(part) if value.__class__ is str else search(value, arrays) is True
    )
