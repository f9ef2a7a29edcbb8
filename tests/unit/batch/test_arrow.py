"""Arrow both ways, without copies and without an early import."""

from __future__ import annotations

import re
import struct
import subprocess
import sys

import pyarrow as pa
import pytest

from tickertape.base.errors import BadMessage, BadTopic, UsageError
from tickertape.batch import BatchBuilder, MessageBatch, batch_from_arrow, batch_from_bodies, merge
from tickertape.batch.arrow import array_pieces, body_arrays


def test_to_arrow_gives_the_default_columns_and_types() -> None:
    batch = batch_from_bodies("t", [b"1", b"22"], publisher=2**64 - 1, first_sequence=5, timestamp=1_000_000)
    record = batch.to_arrow()
    record.validate(full=True)
    assert record.schema == pa.schema(
        [
            ("topic", pa.dictionary(pa.int32(), pa.string())),
            ("publisher", pa.uint64()),
            ("sequence", pa.uint64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("data", pa.binary()),
        ]
    )
    assert record.column("topic").to_pylist() == ["t", "t"]
    assert record.column("publisher").to_pylist() == [2**64 - 1] * 2
    assert record.column("sequence").to_pylist() == [5, 6]
    assert record.column("timestamp").cast(pa.int64()).to_pylist() == [1_000_000] * 2
    assert record.column("data").to_pylist() == [b"1", b"22"]


def test_to_arrow_does_not_copy_bodies_and_offsets() -> None:
    encoded = batch_from_bodies("t", [b"1", b"22"]).encode()
    batch = MessageBatch.parse(encoded)
    whole = pa.py_buffer(encoded)
    _, offsets, data = batch.to_arrow(["data"]).column(0).buffers()
    assert data.address == whole.address + batch.head_bytes
    assert whole.address < offsets.address < data.address


def test_arrow_tables_of_batches_with_different_topics_can_be_joined() -> None:
    batches = [batch_from_bodies("a", [b"1"]), batch_from_bodies("b", [b"2"])]
    table = pa.Table.from_batches([*(b.to_arrow() for b in batches), merge(batches).to_arrow()])
    assert table.column("topic").to_pylist() == ["a", "b", "a", "b"]


def test_to_arrow_fills_missing_optional_columns_with_null_or_zero() -> None:
    names = ["kind", "sow_key", "correlation_id", "expiration_ms"]
    plain = batch_from_bodies("t", [b"1"]).to_arrow(names)
    assert plain.to_pylist() == [{"kind": 0, "sow_key": None, "correlation_id": None, "expiration_ms": None}]
    builder = BatchBuilder()
    builder.add("t", b"1", key="k", kind=1)
    builder.add("t", b"2", expiration_ms=5, correlation_id="é")
    record = builder.build().to_arrow(names)
    record.validate(full=True)
    assert record.schema == plain.schema
    assert record.column("sow_key").to_pylist() == ["k", None]
    assert record.column("correlation_id").to_pylist() == [None, "é"]
    assert record.column("expiration_ms").to_pylist() == [None, 5]
    assert record.column("kind").to_pylist() == [1, 0]


def test_to_arrow_refuses_unknown_column_and_lists_the_known() -> None:
    with pytest.raises(UsageError, match=r"Unknown column 'body'\. Use topic, publisher"):
        batch_from_bodies("t", [b"1"]).to_arrow(["data", "body"])


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view()],
)
def test_every_kind_of_binary_array_is_accepted(kind: pa.DataType) -> None:
    array = pa.array(["xx", "a", "", "bcd", "yy"]).cast(kind).slice(1, 3)
    batch = MessageBatch.parse(
        batch_from_arrow("t", array, publisher=1, first_sequence=2, timestamp=3).encode()
    )
    batch.verify()
    assert batch.bodies_list() == [b"a", b"", b"bcd"]
    assert batch.run(0)[:4] == (1, 2, 3, 3)


def test_array_of_empty_values_gives_empty_bodies() -> None:
    assert batch_from_arrow("t", pa.array([b"", b""], pa.binary())).bodies_list() == [b"", b""]


def test_arrow_arrays_without_valid_bodies_are_refused() -> None:
    with pytest.raises(BadMessage, match="of type int64"):
        batch_from_arrow("t", pa.array([1, 2]))
    with pytest.raises(BadMessage, match="1 of 2 values are null"):
        batch_from_arrow("t", pa.array([b"a", None]))
    with pytest.raises(UsageError, match="at least one"):
        batch_from_arrow("t", pa.array([], pa.binary()))
    with pytest.raises(BadTopic):
        batch_from_arrow("t" * 2000, pa.array([b"a"]))


@pytest.mark.parametrize(
    ("names", "column", "error"),
    [
        ([], None, "the table has 0 columns of this name. Use a table with one column of bodies."),
        (["body", "id"], "bdy", "of this name. Did you mean 'body'? Use body or id."),
        (["body", "data", "data"], None, "the table has 2 columns of this name. Use body."),
        (
            ["data", "data"],
            "data",
            "the table has 2 columns of this name. Use a table with one column of bodies.",
        ),
    ],
)
def test_body_column_that_is_not_unique_is_refused(names: list[str], column: str | None, error: str) -> None:
    table = pa.table([pa.array([b"{}"])] * len(names), names=names)
    with pytest.raises(UsageError, match=re.escape(error)):
        list(body_arrays(table, column))


def test_pyarrow_is_imported_only_when_asked_for() -> None:
    code = "import sys, tickertape.batch; sys.exit('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=False)
    assert done.returncode == 0


def array_with(kind: pa.DataType, offsets: list[int], data: bytes = b"hello") -> pa.Array:
    code = "q" if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) else "i"
    places = pa.py_buffer(struct.pack(f"<{len(offsets)}{code}", *offsets))
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, places, pa.py_buffer(data)])


@pytest.mark.parametrize(
    "array",
    [
        array_with(pa.binary(), [0, 3, 2, 5]),
        array_with(pa.string(), [0, 3, 2, 5]),
        array_with(pa.binary(), [0, -3, 5]),
        array_with(pa.binary(), [0, -(2**31), 5]),
        array_with(pa.binary(), [0, 100, 5])[:1],
        array_with(pa.large_binary(), [0, 3, 2, 5]),
        array_with(pa.large_string(), [0, 3, 2, 5]),
        array_with(pa.large_binary(), [0, 2**40, 5]),
        array_with(pa.large_binary(), [0, 2**40, 5])[:1],
        pa.Array.from_buffers(
            pa.binary_view(),
            1,
            [None, pa.py_buffer(struct.pack("<i4sii", 20, b"hell", 0, 3)), pa.py_buffer(b"hello")],
        ),
    ],
)
def test_array_with_invalid_offsets_is_refused(array: pa.Array) -> None:
    # Arrow accepts them: it checks the offsets only on validate(full=True).
    with pytest.raises(BadMessage, match="Cannot publish an Arrow array"):
        list(array_pieces(array, 1_000))
    with pytest.raises(BadMessage, match="Cannot publish an Arrow array"):
        batch_from_arrow("t", array)


def test_array_slice_with_a_nonzero_first_offset_is_accepted() -> None:
    array = array_with(pa.large_binary(), [2, 2, 4, 5])[1:]
    assert batch_from_arrow("t", array).bodies_list() == [b"ll", b"o"]
    assert [piece.to_pylist() for piece in array_pieces(array, 1)] == [[b"ll"], [b"o"]]
