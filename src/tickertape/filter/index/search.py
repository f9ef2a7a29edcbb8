"""Index search: finds the matching filters for bodies, one piece of the bodies at a time.

Long work is done in steps, so that neither a body nor a filter delays other work.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from tickertape.batch.format import AnyArray, Bools, Int64s
from tickertape.filter.compiler.compile import Filter, FilterInputs
from tickertape.filter.contained_errors import DEFECTS
from tickertape.filter.index.columns import ColumnReading, ValueColumns
from tickertape.filter.index.predicates import SeenValues
from tickertape.filter.index.structures import Pairs, Structures
from tickertape.filter.limits import filter_piece_steps_max, index_values_max

K = TypeVar("K")

_NOTHING = np.empty(0, np.int64)
_CHARACTERS_PER_STEP = 32
_LOOK_STEPS = 1 << 12
"""Steps per piece, independent of the number of bodies."""
_FIELD_STEPS = 128
_VALUE_STEPS = 4
"""Steps for looking up the values of a field, and for each value."""
_STEPS = 1 << 12
"""Steps before other work runs."""
_MAKING_STEPS = 400
"""Steps per filter node to generate the function of a filter."""
_EACH_STEPS = 10
"""Steps per body to evaluate a filter, in addition to its work."""


class Matches(Generic[K]):
    """Result of a search: for each matching filter the indices of its bodies, ascending."""

    def __init__(
        self, keys: list[tuple[K, ...]], bounds: list[int], indices: Int64s, unreadable: int
    ) -> None:
        self.keys = keys
        """Keys of each distinct filter that matches."""
        self.bounds = bounds
        """Start of the indices of each filter in `indices`, and the end of the last ones."""
        self.indices = indices
        self.unreadable = unreadable
        """Bodies that some filter could not read."""

    def __iter__(self) -> Iterator[tuple[K, Int64s]]:
        for number, keys in enumerate(self.keys):
            own = self.indices[self.bounds[number] : self.bounds[number + 1]]
            for key in keys:
                yield key, own


class FilterSearch(Generic[K]):
    """One search. The index must not change before its end."""

    def __init__(self, found: Structures[K], reading: ColumnReading) -> None:
        self._found = found
        self._slots = found.slots
        self._reading = reading
        self._pairs: list[Pairs] = []
        self._ordered = True
        self._unreadable = 0
        self._bad: set[int] = set()
        """Indices, in the piece, of bodies that some filter could not read."""
        self._met: dict[int, SeenValues] = {}

    def look_at(self, bodies: Sequence[bytes], context: FilterInputs | None, begin: int) -> Iterator[int]:
        """Search a piece of at most `index_piece_messages_max` bodies. Yield steps, without those of reading
        bodies.

        `begin` is the index of the first body."""
        some = max(index_values_max // max(len(self._reading), 1), 1)
        if len(bodies) <= some:
            yield from self._look_at(bodies, context, begin)
            return
        for low in range(0, len(bodies), some):
            piece = range(low, min(low + some, len(bodies)))
            part = None if context is None else part_of(context, piece)
            yield from self._look_at(bodies[piece.start : piece.stop], part, begin + low)

    def _look_at(self, bodies: Sequence[bytes], context: FilterInputs | None, begin: int) -> Iterator[int]:
        yield _LOOK_STEPS
        self._met.clear()
        self._bad.clear()
        pairs: list[Pairs] = []
        try:
            aside = yield from self._look_together(bodies, context, pairs)
        except Exception as error:  # noqa: BLE001 - one filter must not affect the others
            DEFECTS.note(error)
            pairs.clear()
            aside = set(range(len(bodies)))
        for slot in [*self._found.everywhere]:
            yield from self._ask(np.full(len(bodies), slot), np.arange(len(bodies)), bodies, context, pairs)
        if aside:
            self._ordered = False
            yield from self._one_by_one(sorted(aside), bodies, context, pairs)
        self._unreadable += len(self._bad)
        self._pairs.extend((slots, at + begin) for slots, at in pairs if len(slots))

    def _look_together(
        self, bodies: Sequence[bytes], context: FilterInputs | None, pairs: list[Pairs]
    ) -> Generator[int, None, set[int]]:
        """Evaluate all filters on the readable bodies at once, and put matches into `pairs`.

        Return the indices of bodies for which each filter must be evaluated separately."""
        columns = yield from self._reading.columns(bodies)
        places = np.arange(len(bodies)) if columns.readable is None else columns.readable.nonzero()[0]
        aside = set() if columns.readable is None else set((~columns.readable).nonzero()[0].tolist())
        if len(places):
            found = yield from self._regular(columns, len(places))
            if columns.costly:
                keep = ~np.isin(found[1], [*columns.costly])
                found = found[0][keep], found[1][keep]
                aside |= set(places[[*columns.costly]].tolist())
            pairs.append((found[0], places[found[1]]))
            whole = self._slots.whole[found[0]]
            if whole.any():
                pairs[0] = pairs[0][0][~whole], pairs[0][1][~whole]
                yield from self._ask(found[0][whole], places[found[1][whole]], bodies, context, pairs)
            regular = np.setdiff1d(places, [*aside]) if columns.costly else places
            for slot in [*self._found.always]:
                own = np.full(len(regular), slot)
                yield from self._ask(own, regular, bodies, context, pairs)
        return aside

    def matches(self) -> Matches[K]:
        """Return the matches."""
        if not self._pairs:
            return Matches([], [0], _NOTHING, self._unreadable)
        slots = np.concatenate([slots for slots, _ in self._pairs])
        indices = np.concatenate([at for _, at in self._pairs])
        if not self._ordered:
            order = np.lexsort((indices, slots))
        elif len(self._slots.entries) < 1 << 16:
            order = slots.astype(np.uint16).argsort(kind="stable")  # fastest for small numbers
        else:
            order = slots.argsort(kind="stable")
        slots, indices = slots[order], indices[order]
        edges = np.flatnonzero(np.diff(slots)) + 1
        firsts = slots[np.concatenate(([0], edges))].tolist()
        entries = self._slots.entries
        keys = [() if (entry := entries[slot]) is None else entry.keys_now for slot in firsts]
        return Matches(keys, [0, *edges.tolist(), len(slots)], indices, self._unreadable)

    # -- readable bodies ------------------------------------------------------------------------------

    def _regular(self, columns: ValueColumns, count: int) -> Generator[int, None, Pairs]:
        """Return the slots and body indices that satisfy the terms."""
        found = self._found
        by_value = yield from self._by_values(columns, count)

        def narrow(slots: Int64s, inside: Bools) -> None:
            self._narrow(slots, inside, columns)

        pairs = [(yield from self._within(by_value, columns))]
        for number in found.scanned:
            if len(found.families[number]):
                pairs += yield from found.families[number].found(columns, count, narrow)
        for table, rows in found.by_condition.items():
            if rows:
                pairs += yield from self._by_condition(table, rows, columns)
        slots = np.concatenate([slots for slots, _ in pairs])
        at = np.concatenate([at for _, at in pairs])
        for tables, rows_of in zip(self._slots.tables, self._slots.rows, strict=True):
            asked = tables[slots]
            for table in _different(asked):
                which = (asked == table).nonzero()[0]
                values, met = self._met_of(table, columns)
                passed = yield from found.tables[table].test(
                    rows_of[slots[which]], at[which], values, met, columns.costly
                )
                keep = np.ones(len(slots), np.bool_)
                keep[which[~passed]] = False
                slots, at, asked = slots[keep], at[keep], asked[keep]
        return slots, at

    def _by_values(self, columns: ValueColumns, count: int) -> Generator[int, None, Pairs]:
        pairs: list[Pairs] = []
        steps = 0
        for path, equalities in self._found.equalities.items():
            pairs.append(equalities.found(columns.values(path), columns.costly))
            steps += _FIELD_STEPS + _VALUE_STEPS * count + len(pairs[-1][0])
            if steps >= _STEPS:
                yield steps
                steps = 0
        yield steps
        if not pairs:
            return _NOTHING, _NOTHING
        slots = np.concatenate([slots for slots, _ in pairs])
        at = np.concatenate([at for _, at in pairs])
        if self._found.several and len(slots):
            # A filter with several required values may have been found twice.
            width = int(at.max()) + 1
            once = np.unique(slots * width + at)
            slots, at = once // width, once % width
        return slots, at

    def _within(self, pairs: Pairs, columns: ValueColumns) -> Generator[int, None, Pairs]:
        """Return the pairs whose intervals hold as well."""
        slots, at = pairs
        asked = self._slots.family[slots]
        keep = np.ones(len(slots), np.bool_)
        for number in _different(asked):
            which = (asked == number).nonzero()[0]
            rows = self._slots.family_row[slots[which]]
            keep[which] = yield from self._found.families[number].test(rows, at[which], columns)
        return slots[keep], at[keep]

    def _by_condition(
        self, table: int, rows: dict[int, dict[int, None]], columns: ValueColumns
    ) -> Generator[int, None, list[Pairs]]:
        values, met = self._met_of(table, columns)
        numbers = np.fromiter(rows, np.int64, len(rows))
        counts = np.fromiter(map(len, rows.values()), np.int64, len(rows))
        slots = np.fromiter(chain.from_iterable(rows.values()), np.int64, int(counts.sum()))
        begins = counts.cumsum() - counts
        pairs: list[Pairs] = []
        for which, at in (yield from self._found.tables[table].found(numbers, values, met, columns.costly)):
            each = counts[which]
            ends = each.cumsum()
            within = np.arange(int(each.sum())) - np.repeat(ends - each, each)
            pairs.append((slots[np.repeat(begins[which], each) + within], np.repeat(at, each)))
        return pairs

    def _narrow(self, slots: Int64s, inside: Bools, columns: ValueColumns) -> None:
        """Clear the entries whose conditions are known to be false."""
        for tables, rows_of in zip(self._slots.tables, self._slots.rows, strict=True):
            asked = np.where(slots < 0, -1, tables[slots])
            for table in _different(asked):
                which = (asked == table).nonzero()[0]
                part = inside[which]
                self._found.tables[table].strike(rows_of[slots[which]], self._met_of(table, columns)[1], part)
                inside[which] = part

    def _met_of(self, table: int, columns: ValueColumns) -> tuple[list[Any], SeenValues]:
        values = columns.values(self._found.table_paths[table])
        met = self._met.get(table)
        if met is None:
            met = self._met[table] = self._found.tables[table].met(values)
        return values, met

    # -- evaluating filters ---------------------------------------------------------------------------

    def _ask(
        self,
        slots: Int64s,
        at: Int64s,
        bodies: Sequence[bytes],
        context: FilterInputs | None,
        pairs: list[Pairs],
    ) -> Iterator[int]:
        """Evaluate filters on bodies, given as pairs, and put the matching ones into `pairs`."""
        order = slots.argsort(kind="stable")
        slots, at = slots[order], at[order]
        edges = (np.flatnonzero(np.diff(slots)) + 1).tolist()
        steps = 0
        for low, high in pairwise([0, *edges, len(slots)] if len(slots) else ()):
            slot = int(slots[low])
            one = self._filter(slot)
            if not one.is_made:
                steps += _MAKING_STEPS * one.work
            some = max(filter_piece_steps_max // (one.work + _EACH_STEPS), 1)
            for begin in range(low, high, some):
                own = at[begin : min(begin + some, high)]
                passed = self._selected(one, own.tolist(), bodies, context)
                if passed:
                    pairs.append((np.full(len(passed), slot), own[passed]))
                steps += len(own) * (one.work + _EACH_STEPS)
                if steps >= filter_piece_steps_max:
                    yield steps
                    steps = 0
        yield steps

    def _one_by_one(
        self, at: list[int], bodies: Sequence[bytes], context: FilterInputs | None, pairs: list[Pairs]
    ) -> Iterator[int]:
        """Evaluate each filter separately on bodies that some filter cannot read or finds too expensive."""
        steps = 0
        for place in at:
            reading_steps = _EACH_STEPS + len(bodies[place]) // _CHARACTERS_PER_STEP
            for paths, slots in self._found.by_paths.items():
                if not paths:
                    continue
                asked = list(slots)
                if not self._reading.can_read(paths, bodies[place]):
                    self._bad.add(place)
                    asked = []
                steps += reading_steps
                for slot in asked:
                    one = self._filter(slot)
                    if self._selected(one, [place], bodies, context):
                        pairs.append((np.array([slot]), np.array([place])))
                    steps += reading_steps + one.work
                    if steps > filter_piece_steps_max:
                        yield steps
                        steps = 0
            if steps > filter_piece_steps_max:
                yield steps
                steps = 0
        yield steps

    def _filter(self, slot: int) -> Filter:
        entry = self._slots.entries[slot]
        assert entry is not None
        return entry.filter

    def _selected(
        self, one: Filter, at: list[int], bodies: Sequence[bytes], context: FilterInputs | None
    ) -> list[int]:
        """Return which of the bodies at these indices a filter matches, as indices in `at`."""
        part = part_of(context, at) if context is not None and one.needs else None
        before = one.unreadable
        passed = one.select([bodies[place] for place in at], part)
        if one.unreadable > before:
            for place in at:
                before = one.unreadable
                one.matches(bodies[place], part_of(context, [place]) if context is not None else None)
                if one.unreadable > before:
                    self._bad.add(place)
        return passed


def _different(numbers: AnyArray) -> list[int]:
    """Return the distinct numbers (small ones) except -1."""
    return np.flatnonzero(np.bincount(numbers + 1)[1:]).tolist() if len(numbers) else []


def part_of(context: FilterInputs, at: Sequence[int]) -> FilterInputs:
    """Return the inputs of `context` for some bodies."""

    def of(column: Sequence[Any]) -> list[Any]:
        return [column[place] for place in at] if column else []

    return FilterInputs(
        of(context.topics),
        of(context.bookmarks),
        of(context.correlation_ids),
        of(context.sow_keys),
        context.user,
        context.client_name,
        context.client_version,
        context.now,
    )
