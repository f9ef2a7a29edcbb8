"""Types of columns from JSON bodies."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.base.errors import BadMessage, BadQuery
from tickertape.client.limits import sql_columns_max, sql_depth_max, sql_struct_fields_max
from tickertape.client.sql.columns import columns_of


def column(*values: Any) -> pa.Array:
    return columns_of("t", [json.dumps({"v": value}).encode() for value in values])["v"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, -(2**63), 2**63 - 1], pa.int64()),
        ([2**63, -1], pa.decimal128(38, 0)),
        ([10**38 - 1, 1 - 10**38], pa.decimal128(38, 0)),
        ([1.5, None], pa.float64()),
        ([1, 2.5, 2**60 + 1], pa.float64()),
        (["a", None], pa.string()),
        ([True, None, False], pa.bool_()),
        ([None, None], pa.null()),
        ([[1], None, [2, 3], []], pa.large_list(pa.int64())),
        ([[1, 2.5]], pa.large_list(pa.float64())),
        ([{"a": 1}, None, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([{"a": {"b": [None]}}], pa.struct([("a", pa.struct([("b", pa.large_list(pa.null()))]))])),
    ],
    ids=lambda value: str(value)[:30],
)
def test_column_type_represents_all_values(values: list[Any], kind: pa.DataType) -> None:
    array = column(*values)
    array.validate(full=True)
    assert array.type == kind


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1, "x"], ["1", '"x"']),
        ([True, 1, None], ["true", "1", None]),
        ([{"a": 1}, [1]], ['{"a":1}', "[1]"]),
        ([{}, None], ["{}", None]),
        ([10**38, 1], [str(10**38), "1"]),
        ([10**400, 1.5], [str(10**400), "1.5"]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_values_of_different_kinds_are_json_text(values: list[Any], texts: list[str | None]) -> None:
    assert column(*values).to_pylist() == texts


def test_object_with_too_many_fields_is_json_text() -> None:
    fields = {f"k{i}": i for i in range(sql_struct_fields_max)}
    assert pa.types.is_struct(column(fields).type)
    wide = {**fields, "more": 1}
    assert [json.loads(text) for text in column(wide).to_pylist()] == [wide]


def test_nesting_above_the_limit_is_json_text() -> None:
    def nested(levels: int) -> Any:
        return [nested(levels - 1)] if levels else 1

    kind = column(nested(sql_depth_max)).type
    for _ in range(sql_depth_max - 1):
        kind = kind.value_type
    assert kind == pa.string()


def test_too_many_fields_of_a_table_are_refused() -> None:
    fields = {f"k{i}": i for i in range(sql_columns_max)}
    assert len(columns_of("t", [json.dumps(fields).encode()])) == sql_columns_max
    wide = json.dumps({**fields, "more": 1}).encode()
    with pytest.raises(BadQuery, match=r"^Cannot query 't': its records have 1,025 .* parameter `types`\.$"):
        columns_of("t", [wide])
    assert columns_of("t", [wide], {"more": pa.int8()})["more"].to_pylist() == [1]


def test_columns_have_the_order_of_first_occurrence() -> None:
    columns = columns_of("t", [b'{"b":1}', b'{"a":1,"b":2}', b"[1]", b"7"])
    assert {name: array.to_pylist() for name, array in columns.items()} == {
        "b": [1, 2, None, None],
        "a": [None, 1, None, None],
    }


def test_explicit_types_define_the_columns() -> None:
    bodies = [b'{"t":"2026-11-20T09:00:00","q":"7","x":1}', b'{"q":8}']
    columns = columns_of("t", bodies, {"q": pa.int32(), "t": pa.timestamp("us"), "no": pa.string()})
    assert list(columns) == ["q", "t", "no"]
    assert columns["q"].type == pa.int32()
    assert columns["t"].type == pa.timestamp("us")
    assert columns["q"].to_pylist() == [7, 8]
    assert (columns["t"].null_count, columns["no"].null_count) == (1, 2)
    mixed = columns_of("t", bodies, {"q": pa.string()})
    assert mixed["q"].to_pylist() == ["7", "8"]


def test_explicit_type_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BadQuery, match=r"^Cannot query 't': the field 'q' does not have the type int8: "):
        columns_of("t", [b'{"q":1.5}'], {"q": pa.int8()})


@pytest.mark.parametrize("body", [b"", b"8=FIX", b"\xff", b'{"a":"\xff"}', b"[" * 10_000])
def test_body_that_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadMessage, match=r"^Cannot query 't': the body of a record is not JSON: "):
        columns_of("t", [b"{}", body])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def as_read(array: pa.Array) -> list[Any]:
    return [json.loads(json.dumps(value, default=int)) for value in array.to_pylist()]


def equal(value: Any, read: Any) -> bool:
    """Compare a value with its column: JSON text, or the value with null for absent fields."""
    if isinstance(read, str) and not isinstance(value, str):
        return bool(json.loads(read) == value)
    if isinstance(value, str) and isinstance(read, str) and read != value:
        return bool(json.loads(read) == value)
    if isinstance(value, dict) and isinstance(read, dict):
        return all(equal(value.get(name), part) for name, part in read.items()) and set(value) <= set(read)
    if isinstance(value, list) and isinstance(read, list):
        return len(value) == len(read) and all(map(equal, value, read))
    return bool(value == read) or (isinstance(read, float) and float(value) == read)


@given(st.lists(JSON, min_size=1, max_size=6))
def test_column_keeps_every_value(values: list[Any]) -> None:
    array = column(*values)
    array.validate(full=True)
    assert all(map(equal, values, as_read(array)))
