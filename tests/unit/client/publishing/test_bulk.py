"""Splitting of bulk publishes: no message is lost, and no chunk exceeds the limit."""

from __future__ import annotations

import struct
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.base.errors import BadMessage, UsageError
from tickertape.base.limits import message_cost_bytes
from tickertape.client.publishing.bulk import Chunk, chunks_from_arrow, chunks_of_messages

BODIES = st.lists(st.binary(max_size=300), max_size=40)


def check(chunks: list[Chunk], bodies: list[bytes], limit: int) -> None:
    found: list[bytes] = []
    for number, chunk in enumerate(chunks):
        batch = chunk.make(publisher=7, first_sequence=1 + number)
        batch.verify()
        assert (batch.count, batch.body_bytes) == (chunk.messages, chunk.body_bytes)
        assert chunk.messages == 1 or batch.cost <= limit
        found += batch.bodies_list()
    assert found == bodies
    for first, second in pairwise(chunks):  # no chunk is split without need
        together = first.body_bytes + second.body_bytes
        assert together + message_cost_bytes * (first.messages + second.messages) > limit


@given(BODIES, st.integers(1, 2_000))
def test_chunks_of_messages_keep_all_bodies_within_the_limit(bodies: list[bytes], limit: int) -> None:
    check(list(chunks_of_messages("orders", iter(bodies), lambda: limit)), bodies, limit)


@given(BODIES, st.integers(1, 2_000), st.integers(0, 5), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_chunks_of_arrow_arrays_keep_all_bodies_within_the_limit(
    bodies: list[bytes], limit: int, skipped: int, kind: pa.DataType
) -> None:
    array = pa.array([b"skipped"] * skipped + bodies, kind)[skipped:]
    check(list(chunks_from_arrow("orders", array, None, lambda: limit)), bodies, limit)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary_view()])
def test_arrow_text_and_binary_types_are_accepted(kind: pa.DataType) -> None:
    array = pa.array(["a", "", "ccc"], pa.string()).cast(kind)
    check(list(chunks_from_arrow("orders", array, None, lambda: 1_000)), [b"a", b"", b"ccc"], 1_000)


def test_arrow_tables_readers_and_chunked_arrays_are_accepted() -> None:
    table = pa.table({"id": [1, 2, 3], "data": [b"a", b"b", b"c"]})
    sources = [
        table,
        table.to_reader(max_chunksize=2),
        table.to_batches()[0],
        pa.concat_tables([table[:1], table[1:]]),
        table["data"],
    ]
    for source in sources:
        chunks = list(chunks_from_arrow("orders", source, None, lambda: 1_000))
        assert [body for chunk in chunks for body in chunk.make().bodies_list()] == [b"a", b"b", b"c"]


def test_arrow_array_with_falling_offsets_raises() -> None:
    offsets = pa.py_buffer(struct.pack("<4i", 0, 3, 2, 5))
    array = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"hello")])
    with pytest.raises(BadMessage, match="offset 2"):
        list(chunks_from_arrow("orders", array, None, lambda: 1_000))


@pytest.mark.parametrize(
    ("source", "column", "error"),
    [
        (pa.table({"a": [b"1"], "b": [b"2"]}), None, UsageError),
        (pa.table({"a": [b"1"]}), "data", UsageError),
        (pa.table([[b"1"], [b"2"]], ["data", "data"]), None, UsageError),
        (object(), None, UsageError),
        (pa.array([1]), None, BadMessage),
        (pa.array([b"1", None]), None, BadMessage),
        (pa.array([[b"1"]]), None, BadMessage),
    ],
)
def test_arrow_source_without_bodies_raises(
    source: object, column: str | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        list(chunks_from_arrow("orders", source, column, lambda: 1_000))
