"""Sort order of a query: parses `order_by`, and makes sort keys from bodies.

A sort key is a text of characters below 256, in which each value is at a place that compares before every
later one. So Python compares the keys of records of any types at once, and by bytes.

Values in ascending order:
1. NULL: missing and null fields, empty texts and arrays, objects, and arrays in arrays.
2. Numbers by value, exactly. True is 1 and false is 0. Infinities are at their ends, and NaN is above them.
3. Texts by their UTF-8 bytes, and binary values by their bytes.

An array has the value of its first element. Texts that look like a number count as numbers in message types
whose values are all texts. DESC reverses the whole order. TEXT compares numbers as the texts of filters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import inf
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from tickertape.base.errors import BadOrderBy, BadPath
from tickertape.base.text_format import shown
from tickertape.batch.format import U8
from tickertape.engine.limits import order_by_fields_max
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.state.records import PublisherTable, RecordRows
from tickertape.filter.functions.values import scalar, text, text_number
from tickertape.payload import Unreadable, message_type, parse_path
from tickertape.payload.getter import value_getter
from tickertape.payload.paths import Path, path_reason
from tickertape.payload.types import FieldReader

SortValues = Callable[[Sequence[bytes]], "list[str]"]
"""Function that returns the sort key of each body of one message type."""

_TEXT_TYPES: Final = frozenset({"fix", "nvfix"})
"""Message types whose values are all texts."""
_WORD: Final = re.compile(r"[^ \t]+")
_NULL: Final = "\x00"
_NUMBER: Final = "\x01"
_TEXT: Final = "\x02"
_END: Final = "\x00\x01"
"""End of a text. A NUL in a text is followed by 255, so that no text is the start of another."""
_INVERTED: Final = bytes(range(255, -1, -1))
_FLOAT: Final = Struct(">d")
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1
_NOT_A_NUMBER: Final = _NUMBER + "\xff" * 8
_EXACT: Final = float(1 << 53)
"""Magnitude from which a float may be the nearest one of several integers."""
_FLOAT_MAX: Final = (2.0 - 2.0**-52) * 2.0**1023
_SHORT: Final = 127
"""Number of bytes from which the size of a difference has four bytes of its own."""
_RANK_BYTES: Final = 24
_NUMBERS: Final = frozenset({int, float, bool})


class SortField(NamedTuple):
    """One field of a sort order."""

    path: Path
    descending: bool = False
    as_text: bool = False


class SortOrder:
    """Fields by which the records of a result are sorted, the most significant first."""

    def __init__(self, fields: tuple[SortField, ...]) -> None:
        self.fields = fields

    @classmethod
    def parse(cls, order_by: str) -> SortOrder:
        """Parse fields with commas between them: `/field [ASC|DESC] [TEXT]`.

        Raises `BadOrderBy` for invalid fields, and for more than 16 (`order_by_fields_max`).
        """
        count = order_by.count(",") + 1
        if count > order_by_fields_max:
            raise BadOrderBy(
                f"Cannot sort by {count:,} fields: they are too many. Use at most {order_by_fields_max}."
            )
        fields = []
        start = 0
        for item in order_by.split(","):
            fields.append(_field(item, start, order_by))
            start += len(item) + 1
        return cls(tuple(fields))

    def __str__(self) -> str:
        """Return the text that `parse` parses to an equal order."""
        return ", ".join(
            f"{field.path}{' DESC' * field.descending}{' TEXT' * field.as_text}" for field in self.fields
        )

    def check(self, type_names: Iterable[str]) -> None:
        """Raise `BadOrderBy` if none of the message types of a query can have the fields."""
        refused = None
        for name in type_names:
            try:
                message_type(name).reader([field.path for field in self.fields])
            except BadPath as error:
                refused = refused or error
            else:
                return
        if refused is not None:
            raise BadOrderBy(f"Cannot sort by {shown(str(self))}: {path_reason(refused)}.")

    def values(self, type_name: str) -> SortValues:
        """Return the function that makes the sort keys of bodies. Each body is decoded once.

        In a type that cannot have the fields, and in unreadable bodies, they are NULL.
        """
        nothing = "".join(_inverted([_NULL])[0] if field.descending else _NULL for field in self.fields)
        try:
            reader = message_type(type_name).reader([field.path for field in self.fields])
        except BadPath:
            return lambda bodies: [nothing] * len(bodies)
        getters = [value_getter((place,)) for place in reader.access]
        from_text = type_name in _TEXT_TYPES

        def keys_of(bodies: Sequence[bytes]) -> list[str]:
            unreadable: list[int] = []
            decoded = _decoded(reader, bodies, unreadable)
            columns = [
                _column(field, list(map(getter, decoded)), from_text)
                for field, getter in zip(self.fields, getters, strict=True)
            ]
            keys = list(map("".join, zip(*columns, strict=True))) if len(columns) > 1 else columns[0]
            for at in unreadable:
                keys.insert(at, nothing)
            return keys

        return keys_of


def _decoded(reader: FieldReader, bodies: Sequence[bytes], unreadable: list[int]) -> list[Any]:
    """Return the decoded bodies. Adds the indices of unreadable ones to `unreadable`."""
    doubts: tuple[type[Exception], ...] = (*reader.doubts, Unreadable)
    decoded: list[Any] = []
    waiting = iter(bodies)
    while len(decoded) + len(unreadable) < len(bodies):
        try:
            # On an error the list has the bodies before it, and the iterator continues behind the body.
            decoded.extend(map(reader.quick, waiting))
        except doubts:
            at = len(decoded) + len(unreadable)
            try:
                decoded.append(reader.decode(bodies[at]))
            except Unreadable:
                unreadable.append(at)
    return decoded


def _field(item: str, start: int, order_by: str) -> SortField:
    words = [(found[0], start + found.start()) for found in _WORD.finditer(item)]
    if not words:
        raise BadOrderBy(
            f"Cannot sort by {shown(order_by)}: a field is missing at character {start}. "
            "Write /field, /field DESC or /field DESC TEXT."
        )
    (path, at), *options = words
    try:
        parsed = parse_path(path)
    except BadPath as error:
        place = at + error.position
        raise BadOrderBy(
            f"Cannot sort by {shown(order_by)}: at character {place}, {path_reason(error)}."
        ) from error
    names = [word.upper() for word, _ in options]
    directed = names[:1] in (["ASC"], ["DESC"])
    as_text = names[directed:] == ["TEXT"]
    if len(names) > directed + as_text:
        word, place = options[directed + (names[directed] == "TEXT")]
        raise BadOrderBy(
            f"Cannot sort by {shown(order_by)}: {shown(word)} at character {place} is not an option. "
            "Write /field, /field DESC or /field DESC TEXT."
        )
    return SortField(parsed, names[:1] == ["DESC"], as_text)


# -- sort keys of one field ---------------------------------------------------------------------------


def _column(field: SortField, values: Sequence[Any], from_text: bool) -> list[str]:
    """Return the sort keys of the values of one field."""
    kinds = set(map(type, values))
    keys = None
    if not field.as_text and kinds <= _NUMBERS:
        keys = _simple_numbers(values)
    elif kinds == {str} and (field.as_text or not from_text):
        keys = _simple_texts(values)
    if keys is None:
        key_of = _as_text if field.as_text else _from_text if from_text else _value
        keys = [key_of(value) for value in values]
    return _inverted(keys) if field.descending else keys


def _simple_numbers(values: Sequence[Any]) -> list[str] | None:
    """Return the sort keys of numbers that floats have exactly, or None if some are others."""
    try:
        floats = np.array(values, np.float64)
    except OverflowError:
        return None
    if not (np.abs(floats) < _EXACT).all():
        return None
    bits = (floats + 0.0).view(np.int64)  # which makes -0.0 equal to 0.0
    codes = np.where(bits < 0, ~bits, bits ^ np.int64(-_SIGN))
    joined = codes.astype(">i8").tobytes().decode("latin-1")
    return [_NUMBER + joined[at : at + 8] for at in range(0, len(joined), 8)]


def _simple_texts(values: Sequence[str]) -> list[str] | None:
    """Return the sort keys of texts in ASCII, or None if some are others."""
    joined = "".join(values)
    if not joined.isascii() or "\x00" in joined or "" in values:
        return None
    return [f"{_TEXT}{value}{_END}" for value in values]


def _inverted(keys: list[str]) -> list[str]:
    return [key.encode("latin-1").translate(_INVERTED).decode("latin-1") for key in keys]


def _value(value: Any) -> str:
    """Return the sort key of any value of a body."""
    if type(value) is list:
        value = value[0] if value else None
    if isinstance(value, str):
        return _text_key(value.encode("utf-8", "surrogatepass")) if value else _NULL
    if isinstance(value, (int, float)):
        return _number_key(value)
    return _text_key(value) if value and isinstance(value, bytes) else _NULL


def _from_text(value: Any) -> str:
    """Return the sort key of a text that may be a number."""
    number = text_number(value) if isinstance(value, str) else None
    return _value(value) if number is None else _number_key(number)


def _as_text(value: Any) -> str:
    """Return the sort key of a value as text."""
    if type(value) is list:
        value = value[0] if value else None
    if not isinstance(value, (str, bytes)):
        value = text(scalar(value)) if not isinstance(value, list) else None
    return _value(value)


def _text_key(data: bytes) -> str:
    return _TEXT + data.replace(b"\x00", b"\x00\xff").decode("latin-1") + _END


def _number_key(value: float) -> str:
    """Return the sort key of a number: the nearest float, and from 2**53 on the exact difference from it."""
    if value != value:
        return _NOT_A_NUMBER
    try:
        nearest = float(value)
    except OverflowError:
        nearest = _FLOAT_MAX if value > 0 else -_FLOAT_MAX
    code = int.from_bytes(_FLOAT.pack(nearest + 0.0), "big")
    code = code ^ _ALL if code & _SIGN else code | _SIGN
    key = _NUMBER + code.to_bytes(8, "big").decode("latin-1")
    if _EXACT <= abs(nearest) < inf:
        key += _difference(int(value) - int(nearest))
    return key


def _difference(value: int) -> str:
    """Return an integer as text that compares like it: sign and size, then the digits in base 256."""
    magnitude = abs(value)
    size = (magnitude.bit_length() + 7) // 8
    data = magnitude.to_bytes(size, "big")
    if size >= _SHORT:
        data = size.to_bytes(4, "big") + data
    data = bytes([0x80 + min(size, _SHORT)]) + data
    if value < 0:
        data = data.translate(_INVERTED)
    return data.decode("latin-1")


# -- sort keys of records -----------------------------------------------------------------------------


class RecordSorter:
    """Makes distinct sort keys of records: the values of the sort order, then the rank of the record."""

    def __init__(self, order: SortOrder, topics: RecordTopics, publishers: PublisherTable) -> None:
        self._order = order
        self._topics = topics
        self._publishers = publishers
        self._values: dict[str, SortValues] = {}

    @property
    def needs_keys(self) -> bool:
        """Whether `keys` reads the canonical keys."""
        return self._topics.over_pattern

    def keys(self, rows: RecordRows, bodies: Sequence[bytes], keys: Sequence[bytes]) -> list[str]:
        """Return the sort key of each record, at least one. `keys` are their canonical keys."""
        values: list[str] = []
        for type_name, some in self._topics.by_type(keys):
            values_of = self._values.get(type_name)
            if values_of is None:
                values_of = self._values[type_name] = self._order.values(type_name)
            if some is None:
                values = values_of(bodies)
                break
            values = values or [""] * len(bodies)
            for at, value in zip(some, values_of([bodies[one] for one in some]), strict=True):
                values[at] = value
        return list(map("".join, zip(values, self._ranks(rows), strict=True)))

    def _ranks(self, rows: RecordRows) -> list[str]:
        """Return the rank of each record as text: order stamp, publisher and sequence."""
        columns = np.empty((len(rows.positions), 3), ">u8")
        columns[:, 0] = rows.order_stamps.view(U8) ^ np.uint64(_SIGN)
        columns[:, 1] = self._publishers.ids(rows.publishers)
        columns[:, 2] = rows.sequences
        joined = columns.tobytes().decode("latin-1")
        return [joined[at : at + _RANK_BYTES] for at in range(0, len(joined), _RANK_BYTES)]
