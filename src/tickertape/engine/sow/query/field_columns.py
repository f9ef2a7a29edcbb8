"""Field columns: values by slot of the fields of one SOW topic that filters compare repeatedly.

A column is made by the second query of its field within a minute. Queries bring it up to date themselves:
they read the bodies of records at or above the position of their last update. So the fold does no work for
columns. The filter itself is then applied to the bodies of the selected records.

Invariants:
- A search returns each slot whose record passes the filter, unless the record changed after its start. So
  columns change no result.
- A step reads one piece of bodies, or compares `query_step_segments_max` segments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from tickertape.batch.format import I8, Bools, Int64s
from tickertape.engine.limits import (
    query_index_buckets_max,
    query_piece_bytes_max,
    query_piece_rows_max,
    query_step_keys_max,
    query_step_segments_max,
    sow_column_paths_max,
    sow_column_records_min,
    sow_column_repeat_seconds,
    sow_column_segment_slots,
)
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.sow.query.column_memory import Column, ColumnMemory, ColumnValues, Segment
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.state.blocks import lengths_in
from tickertape.engine.sow.state.fold import StateFold
from tickertape.filter.functions.values import NUMBER_STARTS, key, scalar
from tickertape.filter.index.columns import ColumnReading, ValueColumns
from tickertape.filter.index.terms import EqualityTerm
from tickertape.payload import message_type
from tickertape.payload.paths import Path

_NOTHING: Final[Int64s] = np.zeros(0, I8)
_NULL: Final = 0x6E756C6C
"""Hash of values that equal nothing. A value with the same hash only costs time."""
_READINGS_MAX: Final = 8


class ColumnName(NamedTuple):
    """A column of numbers, or one of hashes of values."""

    path: Path
    numbers: bool


class Condition(Protocol):
    """Condition on the value of one field."""

    @property
    def name(self) -> ColumnName:
        """The column that it reads."""

    def mask(self, values: ColumnValues) -> Bools:
        """Return which values may fulfil it."""


class NumberRange(NamedTuple):
    """A number is between `low` and `high`, inclusive."""

    name: ColumnName
    low: float
    high: float

    def mask(self, values: ColumnValues) -> Bools:
        """Return which numbers may fulfil it. A rounded number is on the same side of each bound, because
        bounds are exact (`Interval`)."""
        found: Bools = (values >= self.low) & (values <= self.high)
        return found


class OneOf(NamedTuple):
    """A value has one of these hashes."""

    name: ColumnName
    hashes: Int64s
    """Ascending."""

    def mask(self, values: ColumnValues) -> Bools:
        """Return which hashes of values are one of these."""
        if len(self.hashes) == 1:
            one: Bools = values == self.hashes[0]
            return one
        places = self.hashes.searchsorted(values)
        places[places == len(self.hashes)] = 0
        found: Bools = self.hashes[places] == values
        return found


Group: TypeAlias = "list[tuple[Condition, Column]]"
"""Conditions on fields. For each record that passes, at least one is true."""


class FieldColumns:
    """Columns of the fields of one SOW topic."""

    def __init__(self, fold: StateFold, topics: RecordTopics, memory: ColumnMemory) -> None:
        self._fold = fold
        self._topics = topics
        self._memory = memory
        self._columns: dict[ColumnName, Column] = {}
        """Dropped ones too, until the next one is made."""
        self._asked: dict[ColumnName, float] = {}
        """Time (monotonic) of the last query of fields without a column, oldest first."""
        self._readings: dict[tuple[str, frozenset[Path]], ColumnReading] = {}

    @property
    def nbytes(self) -> int:
        """Memory of the columns."""
        return sum(column.nbytes for column in self._columns.values())

    def search(self, content: ContentFilter) -> Iterator[Int64s] | None:
        """Return a search for the slots of records that may pass the filter, ascending. It takes one bounded
        step for each array. None if no column can select records.

        The caller keeps the changes of the records from now on."""
        if content.filter is None or self._fold.records.record_count < sow_column_records_min:
            return None
        groups: list[Group] = []
        for conditions in _conditions(content):
            columns = [self._column(one.name) for one in conditions]
            made = [column for column in columns if column is not None]
            if len(made) == len(columns):
                groups.append([*zip(conditions, made, strict=True)])
        return self._slots(groups) if groups else None

    # -- columns ----------------------------------------------------------------------------------------

    def _column(self, name: ColumnName) -> Column | None:
        """Return the column for a query now, made at the second query within the time."""
        memory, late_puts = self._memory, self._fold.records.late_puts
        column = self._columns.get(name)
        if column is not None and column.late_puts != late_puts:
            memory.drop(column)
        if column is not None and not column.dropped:
            memory.use(column)
            return column
        now = memory.clock.mono
        before = self._asked.pop(name, None)
        if before is None or now - before > sow_column_repeat_seconds:
            self._note(name, now)
            return None
        column = Column("<f8" if name.numbers else "<i8", late_puts)
        if not memory.add(column, self._fold.records.slot_end):
            self._note(name, now)
            return None
        self._columns = {one: kept for one, kept in self._columns.items() if not kept.dropped}
        self._columns[name] = column
        return column

    def _note(self, name: ColumnName, now: float) -> None:
        self._asked[name] = now
        if len(self._asked) > sow_column_paths_max:
            del self._asked[next(iter(self._asked))]

    # -- search -----------------------------------------------------------------------------------------

    def _slots(self, groups: list[Group]) -> Iterator[Int64s]:
        """Yield the slots of records that may pass all groups of conditions, one step for each array."""
        columns = {one.name: column for one, column in chain.from_iterable(groups)}
        end = self._fold.records.slot_end
        found: list[Int64s] = []
        for number, low in enumerate(range(0, end, sow_column_segment_slots)):
            for _ in self._update(columns, number):
                yield _NOTHING
            found.append(low + _passing(groups, number, min(sow_column_segment_slots, end - low)))
            if len(found) == query_step_segments_max or sum(map(len, found)) >= query_step_keys_max:
                yield np.concatenate(found)
                found = []
        if found:
            yield np.concatenate(found)

    def _update(self, columns: dict[ColumnName, Column], number: int) -> Iterator[None]:
        """Bring one segment of some columns up to date, one piece of bodies for each yield.

        All searches that wait continue one update, and keep nothing but their place."""
        end = self._fold.records.position_end
        while True:
            segments = {}
            for name, column in columns.items():
                segment = self._memory.segment(column, number)
                if segment is not None and segment.end < end:
                    segments[name] = segment
            if not segments:
                return
            for name, grown in self._step(segments, number * sow_column_segment_slots).items():
                self._memory.grow(columns[name], grown)
            yield

    def _step(self, segments: dict[ColumnName, Segment], low: int) -> dict[ColumnName, int]:
        """Continue the update of segments that are equally far, or begin it. Return their new memory."""
        records = self._fold.records
        for segment in segments.values():
            if segment.next_end <= segment.end:
                segment.next_end, segment.next_slot = records.position_end, low
        progress = min(segment.progress for segment in segments.values())
        mine = {name: segment for name, segment in segments.items() if segment.progress == progress}
        end, _, first = progress
        left = records.changed_slots(first, min(low + sow_column_segment_slots, records.slot_end), end)
        some = left[:query_piece_rows_max]
        views = records.views(some)
        fits = max(int(lengths_in(views).cumsum().searchsorted(query_piece_bytes_max, "right")), 1)
        some = some[:fits]
        grown = self._read(mine, some, records.blocks.take(views[:fits]), low) if len(some) else {}
        for segment in mine.values():
            if len(some) < len(left):
                segment.next_slot = int(left[len(some)])
            else:
                segment.end = segment.next_end
        return grown

    def _read(
        self, segments: dict[ColumnName, Segment], slots: Int64s, bodies: Sequence[bytes], low: int
    ) -> dict[ColumnName, int]:
        """Set the values of slots from their current bodies. Return the memory that became more."""
        grown = dict.fromkeys(segments, 0)
        keys = self._fold.keys.keys_of(slots) if self._topics.over_pattern else ()
        for type_name, some in self._topics.by_type(keys):
            at, mine = slots - low, bodies
            if some is not None:
                at, mine = at[some], [bodies[one] for one in some]
            for name, values, others in self._values(segments, type_name, mine):
                grown[name] += segments[name].put(at, values, others)
        return grown

    def _values(
        self, names: Collection[ColumnName], type_name: str, bodies: Sequence[bytes]
    ) -> Iterator[tuple[ColumnName, ColumnValues, Int64s]]:
        """Yield the values of bodies of one type for each column, and the indices of undecided ones.

        These are unreadable bodies, arrays, and texts in a column of numbers."""
        reading = self._reading(type_name, frozenset(name.path for name in names))
        if reading is None:
            for name in names:
                yield name, np.zeros(len(bodies), I8), np.arange(len(bodies))
            return
        columns = reading.read(bodies)
        readable, count = columns.readable, len(bodies)
        unread = _NOTHING if readable is None else (~readable).nonzero()[0]
        at = None if readable is None else readable.nonzero()[0]
        for name in names:
            values, others = _numbers(columns, name.path) if name.numbers else _hashes(columns, name.path)
            if at is not None:
                spread = np.zeros(count, values.dtype)
                spread[at] = values
                values, others = spread, np.concatenate([at[others], unread])
            yield name, values, others

    def _reading(self, type_name: str, paths: frozenset[Path]) -> ColumnReading | None:
        """Return the reading of fields from bodies of a type. None: the type cannot have some of them."""
        reading = self._readings.get((type_name, paths))
        if reading is None:
            reading = ColumnReading.of(message_type(type_name), paths)
            if reading is None:
                return None
            if len(self._readings) == _READINGS_MAX:
                del self._readings[next(iter(self._readings))]
            self._readings[type_name, paths] = reading
        return reading


def _passing(groups: list[Group], number: int, count: int) -> Int64s:
    """Return the indices of the slots of one segment that may pass. Groups without the segment select all."""
    passing = np.ones(count, np.bool_)
    for group in groups:
        mask = _mask(group, number, count)
        if mask is not None:
            passing &= mask
    return passing.nonzero()[0]


def _mask(group: Group, number: int, count: int) -> Bools | None:
    """Return which of the first slots of a segment may fulfil a condition of the group. None: unknown."""
    mask: Bools | None = None
    for condition, column in group:
        segment = column.segments.get(number)
        if segment is None:
            return None
        one = condition.mask(segment.values[:count])
        if segment.asks is not None:
            one |= segment.asks[:count]
        mask = one if mask is None else mask | one
    return mask


def _conditions(content: ContentFilter) -> list[list[Condition]]:
    """Return the conditions of a filter that columns can decide. For each record that passes, one of
    each list is true."""
    terms = content.required()
    found: list[list[Condition]] = [
        [NumberRange(ColumnName(one.path, True), one.low, one.high)] for one in terms.intervals
    ]
    found += [
        [*map(_one_of, choice)] for choice in terms.choices if _values_in(choice) <= query_index_buckets_max
    ]
    return found


def _values_in(choice: Sequence[EqualityTerm]) -> int:
    return sum(len(term.keys) for term in choice)


def _one_of(term: EqualityTerm) -> OneOf:
    return OneOf(ColumnName(term.path, False), np.array(sorted({*map(hash, term.keys)}), I8))


def _numbers(columns: ValueColumns, path: Path) -> tuple[ColumnValues, Int64s]:
    """Return the values of a field as numbers, and the indices of those that are neither numbers nor NULL."""
    numbers = columns.numbers(path)
    return numbers.values, np.array(numbers.others, I8)


def _hashes(columns: ValueColumns, path: Path) -> tuple[ColumnValues, Int64s]:
    """Return the hashes of the values of a field, and the indices of arrays, which have several values."""
    values = columns.values(path)
    kinds = set(map(type, values))
    if kinds == {str}:
        hashes = [hash(one) if one and one[0] not in NUMBER_STARTS else _hash(one) for one in values]
    else:
        hashes = [*map(_hash, values)]
    others = [at for at, one in enumerate(values) if one.__class__ is list] if list in kinds else []
    return np.array(hashes, I8), np.array(others, I8)


def _hash(value: Any) -> int:
    """Return the hash of the key of a value for `=`."""
    found = key(scalar(value))
    return hash(found) if found is not None and found == found else _NULL
