"""Owns the values of fields of many bodies, column by column: each body is read once for all filters.

Must never give a value for a body that some filter may not be able to read: such a body is set aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from math import nan
from typing import Any, Final, NamedTuple

import numpy as np

from tickertape.base.errors import BadPath
from tickertape.base.limits import array_work_max, index_terms_max
from tickertape.filter.elements import Arrays
from tickertape.filter.values import number, scalar
from tickertape.payload.paths import Path
from tickertape.payload.types import FieldReader, MessageType, Unreadable

_NUMBERS: Final = frozenset({int, float, bool, type(None)})


class Numbers(NamedTuple):
    """A column as numbers."""

    values: np.ndarray[Any, np.dtype[np.float64]]
    """NaN where there is none."""
    others: list[int]
    """Where a value is neither a number nor NULL."""


class Reading:
    """Reads a set of paths from bodies of one type, with as many readers as the limits of one need."""

    def __init__(self, type: MessageType, paths: Sequence[Path]) -> None:
        self._type = type
        self._readers = [_Reader(type, some) for some in _within_limits(type, tuple(paths))]
        self._alone: dict[tuple[Path, ...], FieldReader] = {}

    def can_read(self, paths: tuple[Path, ...], body: bytes) -> bool:
        """Whether a filter that reads just these can read a body."""
        reader = self._alone.get(paths)
        if reader is None:
            reader = self._alone[paths] = self._type.reader(paths)
        return _document(reader, body) is not None

    def columns(self, bodies: Sequence[bytes]) -> Columns:
        """The values in `bodies`."""
        found = [(reader, _decoded(reader.fields, bodies)) for reader in self._readers]
        readable = None
        for _, documents in found:
            if None in documents:
                some = np.array([document is not None for document in documents], np.bool_)
                readable = some if readable is None else readable & some
        columns: dict[Path, list[Any]] = {}
        for reader, documents in found:
            columns.update(
                reader.columns(documents if readable is None else [*compress(documents, readable)])
            )
        return Columns(columns, readable)


class _Reader:
    """Reads some paths from many documents."""

    def __init__(self, type: MessageType, paths: tuple[Path, ...]) -> None:
        self.fields = type.reader(paths)
        self._place = dict(zip(paths, self.fields.access, strict=True))
        self._take = {
            access: eval(f"lambda documents: [m{access} for m in documents]")
            for access in self._place.values()
        }

    def columns(self, documents: Sequence[Any]) -> dict[Path, list[Any]]:
        """The values of each path."""
        values = {access: take(documents) for access, take in self._take.items()}
        return {path: values[access] for path, access in self._place.items()}


class Columns:
    """The columns of some bodies."""

    def __init__(self, columns: dict[Path, list[Any]], readable: np.ndarray[Any, Any] | None) -> None:
        self._columns = columns
        self.readable = readable
        """Which bodies have a place in the columns; None when all have."""
        self._numbers: dict[Path, Numbers] = {}
        self.costly: set[int] = set()
        """Places of bodies whose arrays may cost some filter too much."""

    def values(self, path: Path) -> list[Any]:
        """The values of a field."""
        return self._columns[path]

    def numbers(self, path: Path) -> Numbers:
        """The values of a field as numbers."""
        found = self._numbers.get(path)
        if found is None:
            found = self._numbers[path] = _numbers(self._columns[path])
        return found


class Share(Arrays):
    """The arrays of one message for one term of a filter, which may cost its share of what all may."""

    def __init__(self) -> None:
        super().__init__()
        self.charge(array_work_max - array_work_max // index_terms_max)
        self.clear()


def _within_limits(type: MessageType, paths: tuple[Path, ...]) -> Iterable[tuple[Path, ...]]:
    """`paths` in parts each of which one reader can read."""
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
    """What the reader makes of each body, None where it cannot."""
    try:
        return [*map(reader.quick, bodies)]
    except (Unreadable, *reader.doubts):  # type: ignore[misc]  # a tuple of classes
        return [_document(reader, body) for body in bodies]


def _document(reader: FieldReader, body: bytes) -> Any:
    try:
        return reader.quick(body)
    except Unreadable:
        return None
    except reader.doubts:
        try:
            return reader.decode(body)
        except Unreadable:
            return None


def _numbers(values: list[Any]) -> Numbers:
    if set(map(type, values)) <= _NUMBERS:
        try:
            return Numbers(np.array(values, np.float64), [])
        except OverflowError:
            pass  # an integer that no float can stand for
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
