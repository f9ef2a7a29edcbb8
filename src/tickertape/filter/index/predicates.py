"""Predicate cache: evaluates each predicate on one field once for each distinct value.

It serves predicates that no dictionary or interval decides, for any number of filters and messages. It keeps
at most `index_cells_max` results. `value_cache.py` limits the strings that all tables keep.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from tickertape.batch.format import AnyArray, Bools, Int64s
from tickertape.filter.compiler.analyse import scans
from tickertape.filter.compiler.codegen import CodeGenerator as Source
from tickertape.filter.compiler.codegen import affixes, searching
from tickertape.filter.compiler.regex import META_CHARACTERS, compile_pattern, literal_prefix
from tickertape.filter.contained_errors import DEFECTS
from tickertape.filter.functions.arrays import Arrays, TooCostly, affixed, one_of
from tickertape.filter.index.columns import CostShare
from tickertape.filter.index.terms import EqualityTerm, Single
from tickertape.filter.index.value_cache import MEMORY, ValueCache
from tickertape.filter.language.ast import Affix, Field, Like, Node, walk
from tickertape.filter.limits import (
    index_cells_max,
    index_piece_messages_max,
    index_prefix_characters_max,
    index_value_characters_max,
)

Test: TypeAlias = Callable[[Any, Arrays], bool]

_SCAN_STEPS: Final = 20
_CHARACTERS_PER_STEP: Final = 32
_CELLS_PER_STEP: Final = 64
_CELLS: Final = 1 << 18
_STEPS: Final = 1 << 12
"""Steps before other work runs."""
_MAKING_STEPS: Final = 1 << 13
"""Steps to create the test of a condition. A regular expression may have to be compiled again."""
_UNKNOWN: Final = -1
_COLUMNS: Final = 64
"""Initial columns of a table."""
_TEXT_BYTES: Final = 104
"""Memory of a cached string besides the string."""
_EASY_PART: Final = 64
_EASY_TEXT: Final = 1_024
"""Up to these lengths the ordinary substring search is fast for all inputs."""


class SeenValues(NamedTuple):
    """The values of a piece in a table."""

    columns: Int64s
    """Column of each value."""
    cells: np.ndarray[Any, np.dtype[np.int8]]
    """Known results. They stay valid here if the table is cleared."""


class PredicateCache:
    """Conditions on one field (rows) and values seen (columns), with the results."""

    def __init__(self, memory: ValueCache = MEMORY) -> None:
        self._rows: dict[Node, int] = {}
        self._uses: list[int] = []
        self._conditions: list[Single | EqualityTerm | None] = []
        self._tests: list[Test | None] = []
        self._steps: list[int] = []
        self._free: list[int] = []
        self._prefixes: dict[int, dict[str, list[int]]] = {}
        """Rows of conditions on the start of a string: by length, then by prefix."""
        self._prefix_rows: dict[int, tuple[str, ...]] = {}
        """The prefixes of these rows."""
        self._cells = np.full((8, _COLUMNS), _UNKNOWN, np.int8)
        self._columns: dict[str, int] = {}
        """Columns of cached strings. Columns of other values follow after these."""
        self._texts_bytes = 0
        self._passing = 0
        """Columns of the last piece after the cached ones."""
        self._told_bytes = 0
        self._memory = memory
        self._salt = memory.enter(self)

    def __len__(self) -> int:
        return len(self._rows)

    # -- conditions -----------------------------------------------------------------------------------

    def add(self, condition: Single | EqualityTerm) -> int:
        """Return the row of a condition. Equal conditions share a row."""
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
        prefixes = prefixes_of(condition)
        if prefixes:
            self._prefix_rows[row] = prefixes
        for prefix in prefixes:
            self._prefixes.setdefault(len(prefix), {}).setdefault(prefix, []).append(row)
        return row

    def discard(self, condition: Single | EqualityTerm) -> None:
        """Remove one use of a condition."""
        row = self._rows[condition.node]
        self._uses[row] -= 1
        if not self._uses[row]:
            del self._rows[condition.node]
            self._conditions[row] = self._tests[row] = None
            self._free.append(row)
            for prefix in self._prefix_rows.pop(row, ()):
                same = self._prefixes[len(prefix)]
                same[prefix].remove(row)
                if not same[prefix]:
                    del same[prefix]
                if not same:
                    del self._prefixes[len(prefix)]

    def _test(self, row: int) -> Test:
        test = self._tests[row]
        if test is None:
            condition = self._conditions[row]
            assert condition is not None
            test = self._tests[row] = test_of(condition)
            self._steps[row] = sum(1 for _ in walk(condition.node)) + _SCAN_STEPS * len(scans(condition.node))
        return test

    # -- values ---------------------------------------------------------------------------------------

    def met(self, values: Sequence[Any]) -> SeenValues:
        """Set the `values` of a piece. Results are valid until the next piece."""
        kept = self._columns
        if self._passing:
            self._cells[:, len(kept) : len(kept) + self._passing] = _UNKNOWN
            self._passing = 0
        if len(kept) + len(values) > self._cells.shape[1]:
            self._make_room(len(values))
            kept = self._columns
        found = [kept.get(value, -1) if value.__class__ is str else -1 for value in values]
        if -1 not in found:
            return SeenValues(np.array(found, np.int64), self._cells)
        for at, column in enumerate(found):
            if column < 0:
                found[at] = self._column_of(values[at])
        columns = np.array(found, np.int64)
        passing = (columns < 0).nonzero()[0]
        self._passing = len(passing)
        columns[passing] = np.arange(len(kept), len(kept) + len(passing))
        met = SeenValues(columns, self._cells)
        remembered = self.remembered_bytes
        if remembered > self._told_bytes:
            self._memory.grown(remembered - self._told_bytes)
            self._told_bytes = self.remembered_bytes
        return met

    def _column_of(self, value: Any) -> int:
        """Return the column of a value that is cached now, or -1."""
        if value.__class__ is not str or len(value) > index_value_characters_max:
            return -1
        column = self._columns.get(value, -1)
        if column < 0 and self._memory.is_met_again(self._salt, value):
            column = self._columns[value] = len(self._columns)
            self._texts_bytes += value.__sizeof__() + _TEXT_BYTES
        return column

    @property
    def remembered_bytes(self) -> int:
        """Bytes that `forget` releases."""
        return self._texts_bytes + self._cells.nbytes - len(self._cells) * _COLUMNS

    def forget(self) -> None:
        """Clear cached results. Results of the current piece stay valid."""
        self._empty(len(self._cells), _COLUMNS)

    def _empty(self, rows: int, columns: int) -> None:
        self._cells = np.full((rows, columns), _UNKNOWN, np.int8)
        self._columns = {}
        self._texts_bytes = self._passing = self._told_bytes = 0

    def _make_room(self, wanted: int) -> None:
        rows, columns = self._cells.shape
        most = max(index_cells_max // rows, index_piece_messages_max)
        wanted_columns = len(self._columns) + wanted
        while columns < wanted_columns and columns < most:
            columns = min(2 * columns, most)
        if columns < wanted_columns:
            self._empty(rows, max(columns, wanted))
        else:
            self._resize(rows, columns)

    def _resize(self, rows: int, columns: int) -> None:
        before = self._cells
        most = max(index_cells_max // rows, index_piece_messages_max)
        if columns > most:
            self._empty(rows, most)
            return
        self._cells = np.full((rows, columns), _UNKNOWN, np.int8)
        self._cells[: before.shape[0], : before.shape[1]] = before

    # -- evaluating -----------------------------------------------------------------------------------

    def found(
        self, rows: Int64s, values: Sequence[Any], met: SeenValues, costly: set[int]
    ) -> Generator[int, None, list[tuple[Int64s, Int64s]]]:
        """Return where the conditions of `rows` are true: indices in `rows`, and body indices, ascending."""
        pairs: list[tuple[Int64s, Int64s]] = []
        some = max(_CELLS // len(values), 1)
        for begin in range(0, len(rows), some):
            part = rows[begin : begin + some]
            answers = met.cells[part].take(met.columns, axis=1)
            if (answers < 0).any():
                asked, at = (answers < 0).nonzero()
                yield from self._ask(part[asked], at, values, met, costly)
                answers = met.cells[part].take(met.columns, axis=1)
            hits = np.flatnonzero(answers == 1)
            pairs.append((begin + hits // len(values), hits % len(values)))
            yield answers.size // _CELLS_PER_STEP
        return pairs

    @staticmethod
    def strike(rows: Int64s, met: SeenValues, maybe: AnyArray) -> None:
        """Clear the entries of `maybe` (rows by columns) whose conditions are known to be false."""
        maybe &= met.cells[rows].take(met.columns, axis=1) != 0

    def test(
        self, rows: Int64s, at: Int64s, values: Sequence[Any], met: SeenValues, costly: set[int]
    ) -> Generator[int, None, Bools]:
        """Return whether the condition of a row is true for the value at an index, for many such pairs."""
        answers = met.cells[rows, met.columns[at]]
        unknown = answers < 0
        if unknown.any():
            yield from self._ask(rows[unknown], at[unknown], values, met, costly)
            answers = met.cells[rows, met.columns[at]]
        yield len(rows) // _CELLS_PER_STEP
        return answers == 1  # type: ignore[no-any-return]

    def _look_up(
        self, rows: Int64s, at: Int64s, values: Sequence[Any], met: SeenValues
    ) -> Generator[int, None, None]:
        """Evaluate all conditions on the start of a string, for the strings that one of them is asked for."""
        own = np.fromiter(self._prefix_rows, np.int64, len(self._prefix_rows))
        asked = np.unique(at[np.isin(rows, own)]).tolist()
        texts = [place for place in asked if values[place].__class__ is str]
        each = len(self._prefixes) + len(own) // _CELLS_PER_STEP + 1
        some = _STEPS // each + 1
        for begin in range(0, len(texts), some):
            part = texts[begin : begin + some]
            columns = met.columns[part]
            met.cells[np.ix_(own, columns)] = False
            for place, column in zip(part, columns.tolist(), strict=True):
                value = values[place]
                for length, found in self._prefixes.items():
                    for row in found.get(value[:length], ()):
                        met.cells[row, column] = True
            yield len(part) * each

    def _ask(
        self, rows: Int64s, at: Int64s, values: Sequence[Any], met: SeenValues, costly: set[int]
    ) -> Generator[int, None, None]:
        cells, columns, arrays, steps = met.cells, met.columns, CostShare(), 0
        if self._prefixes:
            yield from self._look_up(rows, at, values, met)
            unknown = cells[rows, columns[at]] == _UNKNOWN
            rows, at = rows[unknown], at[unknown]
        for row, place in zip(rows.tolist(), at.tolist(), strict=True):
            column = columns[place]
            if cells[row, column] != _UNKNOWN:
                continue
            if self._tests[row] is None:
                steps += _MAKING_STEPS
            value = values[place]
            if arrays or value.__class__ is not str:
                arrays = CostShare()
            try:
                cells[row, column] = self._test(row)(value, arrays)
            except TooCostly:
                costly.add(place)
                cells[row, column] = False
            except Exception as error:  # noqa: BLE001 - separate evaluation finds the failing filter
                # Cache no result: the next message with this value must be evaluated separately too.
                DEFECTS.note(error)
                costly.add(place)
            steps += self._steps[row]
            if isinstance(value, str | list | bytes):
                steps += len(value) // _CHARACTERS_PER_STEP
            if steps > _STEPS:
                yield steps
                steps = 0
        yield steps


# -- tests of conditions ------------------------------------------------------------------------------


def test_of(condition: Single | EqualityTerm) -> Test:
    """Return a function that evaluates a condition on any value of its field."""
    if isinstance(condition, EqualityTerm):
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
    prefix = literal_prefix(pattern)
    if prefix is not None:
        return lambda value, arrays: (
            value.startswith(prefix) if value.__class__ is str else search(value, arrays) is True
        )
    if not pattern or not META_CHARACTERS.isdisjoint(pattern):
        return lambda value, arrays: search(value, arrays) is True
    longest = _EASY_TEXT if len(pattern) <= _EASY_PART else 0
    return lambda value, arrays: (
        pattern in value
        if value.__class__ is str and len(value) <= longest
        else search(value, arrays) is True
    )


def prefixes_of(condition: Single | EqualityTerm) -> tuple[str, ...]:
    """Return strings such that the condition is true for a string if it starts with one of them. Empty for
    other conditions, and for strings that are too long for a dictionary."""
    node = condition.node
    found: tuple[str, ...] = ()
    if isinstance(node, Like) and isinstance(node.operand, Field):
        prefix = literal_prefix(node.pattern)
        found = () if prefix is None else (prefix,)
    elif isinstance(node, Affix) and isinstance(node.operand, Field) and not node.ends:
        found = affixes(node)[0]
    return found if all(len(prefix) <= index_prefix_characters_max for prefix in found) else ()
