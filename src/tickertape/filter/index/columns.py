"""Column reader: decodes each body once and provides its field values to all filters of an index.

Bodies that some filter may not be able to read are evaluated separately.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import compress
from math import nan
from typing import Any, Final, NamedTuple, Self

import numpy as np

from tickertape.base.errors import BadPath
from tickertape.filter.contained_errors import DEFECTS
from tickertape.filter.functions.arrays import Arrays
from tickertape.filter.functions.values import number, scalar
from tickertape.filter.limits import array_work_max, index_terms_max
from tickertape.payload.limits import paths_per_reader_max
from tickertape.payload.paths import Path
from tickertape.payload.types import FieldReader, MessageType, Unreadable

_CHARACTERS_PER_STEP: Final = 8
_FIELDS_PER_STEP: Final = 2
_STEPS_PER_VALUE: Final = 3
_TAKING_STEPS: Final = 1 << 11
"""Steps to generate the function that extracts a field."""
_READER_STEPS: Final = 1 << 15
"""Steps to create a reader."""
_STEPS: Final = 1 << 12
"""Steps before other work runs."""
_NUMBERS: Final = frozenset({int, float, bool, type(None)})


class Numbers(NamedTuple):
    """A column as numbers."""

    values: np.ndarray[Any, np.dtype[np.float64]]
    """NaN for values that are not numbers."""
    others: list[int]
    """Indices of values that are neither numbers nor NULL."""


class ColumnReading:
    """Reads a changing set of paths from bodies of one type, with as many readers as the limits require."""

    def __init__(self, type: MessageType) -> None:
        self._type = type
        self._readers: list[_ColumnReader] = []
        self._reader_of: dict[Path, _ColumnReader] = {}
        self._new: dict[Path, None] = {}
        """Paths without a reader."""
        self._alone: dict[tuple[Path, ...], FieldReader] = {}
        self.readers_made = 0

    @classmethod
    def of(cls, type: MessageType, paths: Iterable[Path]) -> Self | None:
        """Return a reading of fixed paths. None: bodies of the type cannot have some of them."""
        reading = cls(type)
        try:
            for path in paths:
                type.reader([path])
                reading.add(path)
        except BadPath:
            return None
        return reading

    def __len__(self) -> int:
        return len(self._reader_of) + len(self._new)

    def add(self, path: Path) -> None:
        """Add a path that is not read yet."""
        self._new[path] = None

    def discard(self, path: Path) -> None:
        """Remove a path."""
        reader = self._reader_of.pop(path, None)
        if reader is None:
            del self._new[path]
            return
        reader.wanted -= 1
        if 2 * reader.wanted < len(reader.paths):
            self._dissolve(reader)

    def forget(self, paths: tuple[Path, ...]) -> None:
        """Drop the reader that `can_read` cached for these paths."""
        self._alone.pop(paths, None)

    def can_read(self, paths: tuple[Path, ...], body: bytes) -> bool:
        """Return whether a filter that reads exactly these paths can read a body."""
        reader = self._alone.get(paths)
        if reader is None:
            reader = self._alone[paths] = self._type.reader(paths)
        return _document(reader, body) is not None

    def columns(self, bodies: Sequence[bytes]) -> Generator[int, None, ValueColumns]:
        """Return the values in `bodies`. Yields steps, without those of reading the bodies once."""
        if self._new:
            yield from self._settle()
        characters = sum(map(len, bodies))
        found: list[tuple[_ColumnReader, list[Any]]] = []
        readable = None
        for reader in self._readers:
            documents = _decoded(reader.fields, bodies)
            if None in documents:
                some = np.array([document is not None for document in documents], np.bool_)
                readable = some if readable is None else readable & some
            again = characters // _CHARACTERS_PER_STEP if found else 0
            found.append((reader, documents))
            yield again + len(bodies) * (2 + len(reader.paths) // _FIELDS_PER_STEP)
        columns: dict[Path, list[Any]] = {}
        for reader, documents in found:
            left = documents if readable is None else [*compress(documents, readable)]
            yield from reader.columns(left, columns)
        return ValueColumns(columns, readable)

    def read(self, bodies: Sequence[bytes]) -> ValueColumns:
        """Return the values in `bodies` in one step."""
        columns = self.columns(bodies)
        while True:
            try:
                next(columns)
            except StopIteration as end:
                found: ValueColumns = end.value
                return found

    def _settle(self) -> Iterator[int]:
        """Add readers for the paths without one, extending the last reader if it is not full."""
        if self._readers and self._readers[-1].wanted < paths_per_reader_max:
            self._dissolve(self._readers[-1])
        paths = tuple(self._new)
        for begin in range(0, len(paths), paths_per_reader_max):
            for some in _within_limits(self._type, paths[begin : begin + paths_per_reader_max]):
                reader = _ColumnReader(self._type, some)
                self.readers_made += 1
                self._readers.append(reader)
                self._reader_of.update(dict.fromkeys(some, reader))
                for path in some:
                    del self._new[path]
                yield _READER_STEPS

    def _dissolve(self, reader: _ColumnReader) -> None:
        self._readers.remove(reader)
        wanted = [path for path in reader.paths if self._reader_of.get(path) is reader]
        for path in wanted:
            del self._reader_of[path]
        self._new = dict.fromkeys([*wanted, *self._new])


class _ColumnReader:
    """Reads some paths from many documents."""

    def __init__(self, type: MessageType, paths: tuple[Path, ...]) -> None:
        self.paths = paths
        self.wanted = len(paths)
        """Number of paths in use."""
        self.fields = type.reader(paths)
        self._place = dict(zip(paths, self.fields.access, strict=True))
        self._take: dict[str, Callable[[Sequence[Any]], list[Any]]] = {}

    def columns(self, documents: Sequence[Any], columns: dict[Path, list[Any]]) -> Iterator[int]:
        """Put the values of each path into `columns`. Yields steps."""
        values: dict[str, list[Any]] = {}
        steps = 0
        for path, access in self._place.items():
            found = values.get(access)
            if found is None:
                take = self._take.get(access)
                if take is None:
                    take = self._take[access] = _taking(access)
                    steps += _TAKING_STEPS
                found = values[access] = take(documents)
                steps += _STEPS_PER_VALUE * len(documents)
                if steps >= _STEPS:
                    yield steps
                    steps = 0
            columns[path] = found
        yield steps


@lru_cache(maxsize=2 * paths_per_reader_max)
def _taking(access: str) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that extracts one value from each document."""
    taking: Callable[[Sequence[Any]], list[Any]] = eval(f"lambda documents: [m{access} for m in documents]")
    return taking


class ValueColumns:
    """Columns of field values of some bodies."""

    def __init__(self, columns: dict[Path, list[Any]], readable: np.ndarray[Any, Any] | None) -> None:
        self._columns = columns
        self.readable = readable
        """Marks the bodies that are in the columns. None if all are."""
        self._numbers: dict[Path, Numbers] = {}
        self.costly: set[int] = set()
        """Indices of bodies whose arrays may be too expensive for some filter."""

    def values(self, path: Path) -> list[Any]:
        """Return the values of a field."""
        return self._columns[path]

    def numbers(self, path: Path) -> Numbers:
        """Return the values of a field as numbers."""
        found = self._numbers.get(path)
        if found is None:
            found = self._numbers[path] = _numbers(self._columns[path])
        return found


class CostShare(Arrays):
    """Arrays of one message for one term of a filter, with the term's share of the work limit."""

    def __init__(self) -> None:
        super().__init__()
        self.charge(array_work_max - array_work_max // index_terms_max)
        self.clear()


def _within_limits(type: MessageType, paths: tuple[Path, ...]) -> Iterable[tuple[Path, ...]]:
    """Split `paths` into parts for one reader each."""
    if not paths:
        return
    try:
        type.reader(paths)
        yield paths
    except BadPath:
        if len(paths) == 1:
            raise
        middle = len(paths) // 2
        yield from _within_limits(type, paths[:middle])
        yield from _within_limits(type, paths[middle:])


def _decoded(reader: FieldReader, bodies: Sequence[bytes]) -> list[Any]:
    """Return the decoded bodies, None for unreadable ones."""
    try:
        return [*map(reader.quick, bodies)]
    except Exception:  # noqa: BLE001 - raised for one body, the others are read again
        return [_document(reader, body) for body in bodies]


def _document(reader: FieldReader, body: bytes) -> Any:
    try:
        try:
            return reader.quick(body)
        except Unreadable:
            return None
        except reader.doubts:
            return reader.decode(body)
    except Unreadable:
        return None
    except Exception as error:  # noqa: BLE001 - a failing decoder makes the body unreadable
        DEFECTS.note(error)
        return None


def _numbers(values: list[Any]) -> Numbers:
    if set(map(type, values)) <= _NUMBERS:
        try:
            return Numbers(np.array(values, np.float64), [])
        except OverflowError:
            pass  # an integer beyond the range of floats
    others: list[int] = []
    found = []
    for at, value in enumerate(values):
        one = None
        if value is not None and value != "":
            one = None if value.__class__ is list else number(scalar(value))
            if one is None:
                others.append(at)
        found.append(nan if one is None else one)
    return Numbers(np.array(found, np.float64), others)
