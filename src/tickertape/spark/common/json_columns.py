"""Source columns that are fields of JSON bodies: declaration and decoding.

Each body is decoded separately, so an invalid body does not affect other rows: its fields are null, or an
error with `FAILFAST`. All valid bodies are decoded in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    TimestampType,
)

from tickertape.base.errors import BadMessage, UsageError
from tickertape.spark.common.column_block import ColumnBlocks

Array = Any
"""An Arrow array. pyarrow has no type hints."""

_ONE_BY_ONE: Final = 64
"""After this number of unreadable bodies, the rest is read one by one, because it is probably unreadable
too."""
_WRONG: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _whole(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]


_FLOAT_BOUND: Final = float(np.finfo(np.float32).max) + 2.0**103
"""Half a step above the largest finite float: from here on a number rounds to infinity. Smaller numbers are
finite, including Java's shortest text of the largest float, which is slightly above it."""
_TYPES: Final[dict[type[DataType], tuple[Any, Any]]] = {
    StringType: (str, pa.string()),
    BooleanType: (bool, pa.bool_()),
    ByteType: (_whole(8), pa.int8()),
    ShortType: (_whole(16), pa.int16()),
    IntegerType: (_whole(32), pa.int32()),
    LongType: (_whole(64), pa.int64()),
    FloatType: (Annotated[float, msgspec.Meta(gt=-_FLOAT_BOUND, lt=_FLOAT_BOUND)], pa.float32()),
    DoubleType: (float, pa.float64()),
    DateType: (date, pa.date32()),
    TimestampType: (Annotated[datetime, msgspec.Meta(tz=True)], pa.timestamp("us", tz="UTC")),
}


class JsonField(NamedTuple):
    """A column that is a field of the body."""

    name: str
    """Name in the schema. Dots access nested objects: `origin.airport`."""
    type: type[DataType]

    @property
    def kind(self) -> Any:
        """Type for msgspec."""
        return _TYPES[self.type][0]

    @property
    def arrow(self) -> Any:
        """Arrow type of the column."""
        return _TYPES[self.type][1]


def json_field(field: StructField) -> JsonField:
    """Return the body field for a schema column. Raises `UsageError` for an unsupported type."""
    if type(field.dataType) not in _TYPES:
        known = ", ".join(kind().simpleString() for kind in _TYPES)
        raise UsageError(
            f"Unsupported type {field.dataType.simpleString()} of column {field.name!r}, a field of JSON "
            f"bodies. Use {known}, or read column data and use from_json."
        )
    if not field.nullable:
        raise UsageError(
            f"Invalid column {field.name!r}: it is NOT NULL, but a field of JSON bodies may be missing. "
            "Declare it nullable."
        )
    if "" in field.name.split("."):
        raise UsageError(f"Invalid column name {field.name!r}. Use field names separated by single dots.")
    return JsonField(field.name, type(field.dataType))


class _JsonReader:
    """Decodes a body into an object. `paths` are the attribute paths of the fields, in order."""

    def __init__(self, fields: Sequence[JsonField]) -> None:
        tree: dict[str, Any] = {}
        for field in fields:
            *path, last = field.name.split(".")
            inside = tree
            for name in path:
                inside = inside.setdefault(name, {})
            inside[last] = field.kind
        self._found: dict[str, tuple[str, ...]] = {}
        self.decode: Final = msgspec.json.Decoder(self._struct(tree, "", ())).decode
        self.paths: Final = [self._found[field.name] for field in fields]

    def _struct(self, tree: dict[str, Any], prefix: str, path: tuple[str, ...]) -> Any:
        """Return a struct with the members of `tree`, whose names need not be valid in Python."""
        members: list[tuple[str, Any, Any]] = []
        for number, (name, kind) in enumerate(tree.items()):
            attribute, whole = f"f{number}", prefix + name
            if isinstance(kind, dict):
                kind = self._struct(kind, f"{whole}.", (*path, attribute))
            else:
                self._found[whole] = (*path, attribute)
            members.append((attribute, kind | None, msgspec.field(default=None, name=name)))
        return msgspec.defstruct("Body", members, gc=False)


class JsonColumns:
    """Reads the columns `fields` from bodies. It is sent to the executors, which create their own
    decoders."""

    def __init__(self, fields: Sequence[JsonField], *, strict: bool) -> None:
        """`strict`: a body that is not a JSON object, or has a field of another type, is an error.

        Raises `UsageError` if a field would be both a value and an object."""
        self._fields = tuple(fields)
        self._strict = strict
        names = {field.name for field in fields}
        for name in names:
            for other in names:
                if other.startswith(f"{name}."):
                    raise UsageError(
                        f"Invalid columns {name!r} and {other!r}: {name!r} would be a value and an object. "
                        "Remove one of them."
                    )

    def __getstate__(self) -> dict[str, Any]:
        return {"_fields": self._fields, "_strict": self._strict}

    @cached_property
    def _all(self) -> _JsonReader:
        return _JsonReader(self._fields)

    @cached_property
    def _each(self) -> list[_JsonReader]:
        return [_JsonReader([field]) for field in self._fields]

    def columns(self, rows: ColumnBlocks) -> dict[str, Array]:
        """Return the columns by name. Raises `BadMessage` for an unreadable body if `strict`."""
        bodies = _bodies(rows)
        read: list[Any] = []
        wrong: dict[int, list[Any]] = {}
        decode = self._all.decode
        while len(read) < len(bodies):
            at_once = bodies[len(read) :] if read else bodies
            try:
                if len(wrong) < _ONE_BY_ONE:
                    read.extend(map(decode, at_once))  # keeps bodies read before an error
                else:
                    read.append(decode(bodies[len(read)]))
            except _WRONG as error:
                if self._strict:
                    raise _refused(rows, len(read), error) from error
                wrong[len(read)] = self._one(bodies[len(read)])
                read.append(None)
        found = {}
        for number, (field, path) in enumerate(zip(self._fields, self._all.paths, strict=True)):
            values = _values(read, path, whole=not wrong)
            for at, fields in wrong.items():
                values[at] = fields[number]
            found[field.name] = pa.array(values, field.arrow)
        return found

    def _one(self, body: bytes) -> list[Any]:
        """Return the fields of a body with unreadable fields, which become None."""
        found: list[Any] = []
        for reader in self._each:
            try:
                found += _values([reader.decode(body)], reader.paths[0])
            except _WRONG:
                found.append(None)
        return found


def _values(read: list[Any], path: Sequence[str], *, whole: bool = False) -> list[Any]:
    """Return the value at `path` in each object. `whole`: no object is None."""
    values = read
    for depth, attribute in enumerate(path):
        get = attrgetter(attribute)
        if whole and not depth:
            values = list(map(get, values))
        else:
            values = [None if value is None else get(value) for value in values]
    return values


def _bodies(rows: ColumnBlocks) -> list[bytes]:
    data = bytes(rows.bodies)
    offsets = rows.offsets.tolist()
    return list(map(data.__getitem__, map(slice, offsets[:-1], offsets[1:])))


def _refused(rows: ColumnBlocks, at: int, error: Exception) -> BadMessage:
    topics, numbers, counts = rows.topics
    topic = topics[int(numbers[int(counts.cumsum().searchsorted(at, "right"))])]
    run = rows.runs[int(rows.runs["count"].cumsum().searchsorted(at, "right"))]
    return BadMessage(
        f"Cannot read message '{run['publisher']}|{rows.sequences[at]}|' of topic {topic!r} with the schema: "
        f"{error}. Use mode=PERMISSIVE to get nulls instead."
    )
