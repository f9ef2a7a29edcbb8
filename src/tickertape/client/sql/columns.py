"""Typed Arrow columns from JSON bodies: a column for each field, with the type of all its values.

pyarrow is imported at the first conversion, so that clients start without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tickertape.base.errors import BadMessage, BadQuery
from tickertape.base.text_format import said, shown
from tickertape.client.limits import sql_columns_max, sql_depth_max, sql_struct_fields_max

if TYPE_CHECKING:
    import pyarrow as pa

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode
_NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NUMBERS: Final = {int, float}
_INT64_END: Final = 1 << 63
_DECIMAL_END: Final = 10**38
"""End of the integers of Arrow's type decimal128."""


def columns_of(
    name: str, bodies: Sequence[bytes], types: Mapping[str, pa.DataType] | None = None
) -> dict[str, pa.Array]:
    """Return a column for each field of the JSON `bodies`, in the order of their first occurrence.

    A body that is not an object has no fields. The type of a column is inferred from all its values:

    * Integers are int64, or decimal128(38, 0) beyond 64 bits. Integers and floats together are float64.
    * Objects are structs, and arrays lists.
    * Values of different kinds are their JSON as a string. So are objects without fields, with more than
      `sql_struct_fields_max` fields, or nested deeper than `sql_depth_max`.
    * A column without any value has the type null.

    With `types` the columns are exactly those of `types`. Strings are parsed, and others become their JSON if
    the type is a string. `name` is the table, for error texts.

    Raises `BadMessage` for a body that is not JSON, and `BadQuery` for more than `sql_columns_max` fields and
    for values that `types` cannot represent.
    """
    records = _records(name, bodies)
    if types is not None:
        return {field: _converted(name, field, records, kind) for field, kind in types.items()}
    fields = _names(records)
    if len(fields) > sql_columns_max:
        raise BadQuery(
            f"Cannot query {shown(name)}: its records have {len(fields):,} fields, and a table has at most "
            f"{sql_columns_max:,}. Select the columns with the parameter `types`."
        )
    return {field: _column(_values(records, field), 1) for field in fields}


def _records(name: str, bodies: Sequence[bytes]) -> list[dict[str, Any]]:
    try:
        documents = [_decode(body) for body in bodies]
    except _NOT_JSON as error:
        raise BadMessage(
            f"Cannot query {shown(name)}: the body of a record is not JSON: {said(error)}. Use topics of "
            "message type json."
        ) from error
    return [document if type(document) is dict else {} for document in documents]


def _converted(name: str, field: str, records: Sequence[dict[str, Any]], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    values = _values(records, field)
    column = _column(values, 1)
    if column.type == pa.string():  # also JSON of values of different kinds
        plain = [value if isinstance(value, str) else text for value, text in _texts(values)]
        column = pa.array(plain, pa.string())
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise BadQuery(
            f"Cannot query {shown(name)}: the field {shown(field)} does not have the type {kind}: "
            f"{said(error)}. Use another type."
        ) from error


def _names(objects: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(objects)))


def _values(objects: Sequence[dict[str, Any] | None], field: str) -> list[Any]:
    return [None if one is None else one.get(field) for one in objects]


def _column(values: Sequence[Any], depth: int) -> pa.Array:
    import pyarrow as pa

    kinds = set(map(type, values)) - {NoneType}
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {str}:
        return pa.array(values, pa.string())
    if kinds == {bool}:
        return pa.array(values, pa.bool_())
    if kinds == {int}:
        return _integers(values)
    if kinds == _NUMBERS or kinds == {float}:
        return _floats(values)
    if kinds == {dict} and depth < sql_depth_max:
        return _structs(values, depth)
    if kinds == {list} and depth < sql_depth_max:
        return _lists(values, depth)
    return _json(values)


def _integers(values: Sequence[int | None]) -> pa.Array:
    import pyarrow as pa

    given = [value for value in values if value is not None]
    low, high = min(given), max(given)
    if low >= -_INT64_END and high < _INT64_END:
        return pa.array(values, pa.int64())
    if low > -_DECIMAL_END and high < _DECIMAL_END:
        return pa.array(values, pa.decimal128(38, 0))
    return _json(values)


def _floats(values: Sequence[float | None]) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    except OverflowError:  # an integer above the largest float
        return _json(values)


def _structs(values: Sequence[dict[str, Any] | None], depth: int) -> pa.Array:
    import pyarrow as pa

    fields = _names([value for value in values if value is not None])
    if not 0 < len(fields) <= sql_struct_fields_max:
        return _json(values)
    columns = [_column(_values(values, field), depth + 1) for field in fields]
    return pa.StructArray.from_arrays(columns, fields, mask=_missing(values))


def _lists(values: Sequence[list[Any] | None], depth: int) -> pa.Array:
    import pyarrow as pa

    offsets, end = [0], 0
    for value in values:
        end += 0 if value is None else len(value)
        offsets.append(end)
    elements = _column(list(chain.from_iterable(value for value in values if value is not None)), depth + 1)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), elements, mask=_missing(values))


def _json(values: Sequence[Any]) -> pa.Array:
    """Return the JSON of each value as a string."""
    import pyarrow as pa

    return pa.array([text for _, text in _texts(values)], pa.string())


def _texts(values: Sequence[Any]) -> Iterator[tuple[Any, str | None]]:
    """Yield each value with its JSON, or None."""
    for value in values:
        yield value, None if value is None else _encode(value).decode()


def _missing(values: Sequence[Any]) -> pa.Array:
    import pyarrow as pa

    return pa.array([value is None for value in values], pa.bool_())
