"""Filter index: tests a message only against the filters that can match it.

A filter is found by a required value of a field, else by an interval, else by a predicate on one field.
Filters without any of these are tested for every message. Shared predicates are evaluated once. `search.py`
evaluates the index.

Invariants:
* The index gives the same result as testing the filters one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

from tickertape.filter.compiler.compile import Filter, FilterInputs
from tickertape.filter.index.columns import ColumnReading
from tickertape.filter.index.search import FilterSearch, Matches, part_of
from tickertape.filter.index.structures import FilterSlot, Structures
from tickertape.filter.index.terms import terms_of
from tickertape.filter.language.ast import Literal, Node
from tickertape.filter.limits import index_paths_max, index_piece_messages_max
from tickertape.payload.paths import Path
from tickertape.payload.types import MessageType

K = TypeVar("K")

OF_SUBSCRIBER = frozenset({"user", "client_name", "client_version"})
"""Inputs that differ between subscribers. A filter that needs them cannot be in an index."""


class FilterIndex(Generic[K]):
    """Filters on messages of `type`, each under a key chosen by the caller."""

    def __init__(self, type: MessageType) -> None:
        self.type = type
        self._filters: dict[K, Filter] = {}
        self._entry_of: dict[K, FilterSlot[K]] = {}
        self._entries: dict[Node, FilterSlot[K]] = {}
        self._paths: Counter[Path] = Counter()
        self._needs: Counter[str] = Counter()
        self._found = Structures[K]()
        self._reading = ColumnReading(type)
        self._searching = False
        self._changed: dict[K, None] = {}

    def __len__(self) -> int:
        return len(self._filters)

    def __contains__(self, key: K) -> bool:
        return key in self._filters

    @property
    def needs(self) -> frozenset[str]:
        """The fields of `FilterInputs` that some filter reads."""
        return frozenset(self._needs)

    def add(self, key: K, filter: Filter) -> None:
        """Add a filter of the index's type. A search in progress does not see it.

        Raises `ValueError` if the key exists, or if the filter depends on the subscriber (`OF_SUBSCRIBER`).
        """
        if key in self._filters:
            raise ValueError(f"Key {key!r} is already in the index.")
        if filter.needs & OF_SUBSCRIBER:
            raise ValueError(f"{filter!r} depends on the subscriber.")
        self._filters[key] = filter
        self._change(key)

    def discard(self, key: K) -> None:
        """Remove a filter, if present. A search in progress may still find it."""
        if self._filters.pop(key, None) is not None:
            self._change(key)

    def match(self, bodies: Sequence[bytes], context: FilterInputs | None = None) -> Matches[K]:
        """Return which bodies each filter matches. `context` must have the inputs in `needs`, one value per
        body."""
        with self.search() as search:
            for low in range(0, len(bodies), index_piece_messages_max):
                piece = range(low, min(low + index_piece_messages_max, len(bodies)))
                part = None if context is None else part_of(context, piece)
                for _ in search.look_at(bodies[piece.start : piece.stop], part, low):
                    pass
            return search.matches()

    @contextmanager
    def search(self) -> Iterator[FilterSearch[K]]:
        """Search bodies piece by piece (see `FilterSearch.look_at`).

        Only one search may run at a time, else `RuntimeError` is raised. Changes of the index take effect
        after it."""
        if self._searching:
            raise RuntimeError("A search of this index is already in progress.")
        self._searching = True
        try:
            yield FilterSearch(self._found, self._reading)
        finally:
            self._searching = False
            changed, self._changed = self._changed, {}
            for key in changed:
                self._change(key)

    # -- adding and removing filters ------------------------------------------------------------------

    def _change(self, key: K) -> None:
        if self._searching:
            self._changed[key] = None
            return
        entry = self._entry_of.pop(key, None)
        if entry is not None:
            entry.drop(key)
            if not entry.keys:
                self._remove(entry)
        one = self._filters.get(key)
        if one is not None:
            entry = self._entries.get(one.tree)
            if entry is None:
                entry = self._insert(one)
            entry.put(key)
            self._entry_of[key] = entry

    def _insert(self, filter: Filter) -> FilterSlot[K]:
        entry: FilterSlot[K] = FilterSlot(filter, terms_of(filter.tree))
        self._entries[filter.tree] = entry
        if self._is_too_much(filter):
            entry.paths = ()
        self._count(entry, 1)
        found, terms = self._found, entry.terms
        slot = found.slots.add(entry)
        found.by_paths.setdefault(entry.paths, {})[slot] = None
        if not entry.paths:
            if not isinstance(filter.tree, Literal) or filter.select((b"",)):
                found.everywhere[slot] = None
            return entry
        found.slots.whole[slot] = terms.whole
        self._find(entry)
        return entry

    def _is_too_much(self, filter: Filter) -> bool:
        """Return whether the filter would exceed the maximum number of fields. Such a filter is tested for
        every body."""
        return len(self._paths) + sum(path not in self._paths for path in filter.paths) > index_paths_max

    def _find(self, entry: FilterSlot[K]) -> None:
        """Choose the structure that finds a filter, and the conditions that are tested afterwards."""
        found, terms, slot = self._found, entry.terms, entry.slot
        best = min(terms.choices, key=found.crowd, default=None)
        others = [choice[0] for choice in terms.choices if choice is not best and len(choice) == 1]
        entry.conditions = [*others, *terms.singles]
        for number, condition in enumerate(entry.conditions):
            table = found.table(condition.path)
            found.slots.ask(slot, number, table, found.tables[table].add(condition))
        if best is not None:
            found.find_by_values(entry, best)
        if terms.intervals:
            found.put_among_intervals(entry, scanned=best is None)
        elif best is None and entry.conditions:
            found.find_by_condition(entry)
        elif best is None:
            found.always[slot] = None

    def _remove(self, entry: FilterSlot[K]) -> None:
        del self._entries[entry.filter.tree]
        self._count(entry, -1)
        self._found.remove(entry)
        if entry.paths not in self._found.by_paths:
            self._reading.forget(entry.paths)

    def _count(self, entry: FilterSlot[K], change: int) -> None:
        for path in entry.paths:
            if not self._paths[path]:
                self._reading.add(path)
            self._paths[path] += change
            if not self._paths[path]:
                del self._paths[path]
                self._reading.discard(path)
        for name in entry.filter.needs:
            self._needs[name] += change
            if not self._needs[name]:
                del self._needs[name]
