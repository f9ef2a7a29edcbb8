"""BSON: values of every type, unreadable bodies, and selections that keep types."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS

from tests.helpers.bodies import values_of
from tickertape.payload import Unreadable, message_type, parse_path, parse_select


def read(body: bytes, *paths: str) -> list[Any]:
    reader = message_type("bson").reader([parse_path(path) for path in paths])
    return values_of(reader, reader.decode(body))


BSON_VALUES = [
    (2**40, 2**40),
    (bson.Int64(5), 5),
    (b"\x00", b"\x00"),
    (bson.Binary(b"0123456789abcdef", 4), b"0123456789abcdef"),
    (datetime(2026, 11, 20, 10, 0, 0, 250_000, tzinfo=UTC), "2026-11-20T10:00:00.250000Z"),
    (DatetimeMS(2**60), 2**60),
    (bson.ObjectId("0123456789abcdef01234567"), "0123456789abcdef01234567"),
    (bson.Decimal128("10.50"), "10.50"),
    (bson.Code("f()"), "f()"),
    (bson.Regex("^a"), "^a"),
    (bson.Timestamp(0, 1), "1970-01-01T00:00:00.000000Z"),
    (bson.MinKey(), {}),
    (bson.DBRef("c", 1), {}),
    (None, None),
    ({"q": 1}, {"q": 1}),
]


@pytest.mark.parametrize(("value", "found"), BSON_VALUES, ids=lambda value: repr(value)[:30])
def test_bson_field_reads_as_the_expected_value(value: Any, found: Any) -> None:
    body = bson.encode({"a": value, "b": [value, 1], "c": {"d": value}})
    once, listed, first, nested = read(body, "/a", "/b", "/b[0]", "/c/d")
    assert (once, first, nested) == (found, found, found)
    assert listed == [found, 1]
    assert all(type(one) is type(found) for one in (once, first, nested, listed[0]))


def nested(depth: int) -> bytes:
    body = b"\x05\0\0\0\0"
    for _ in range(depth):
        body = struct.pack("<i", len(body) + 8) + b"\x03a\0" + body + b"\0"
    return body


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", bson.encode({"a": 1})[:-1], bson.encode({"a": 1}) + b"\0", nested(3000),
     bson.encode({"a": "é"}).replace("é".encode(), b"\xff\xff"), b"\x05\0\0\0\x01"],
    ids=["empty", "json", "cut", "longer", "deep", "not UTF-8", "no end"],
)  # fmt: skip
def test_invalid_bson_body_is_unreadable(body: bytes) -> None:
    kind = message_type("bson")
    with pytest.raises(Unreadable):
        read(body, "/a")
    with pytest.raises(Unreadable):
        kind.check(body)
    assert kind.unreadable([bson.encode({}), body])[0] == [1]
    assert kind.projector(parse_select("-/a"))(body) == body


def test_bson_selection_keeps_every_type() -> None:
    document = {f"f{n}": value for n, (value, _) in enumerate(BSON_VALUES)}
    body = bson.encode(document)
    kind = message_type("bson")
    assert kind.projector(parse_select("+/,-/none"))(body) == body
    del document["f3"]
    assert kind.projector(parse_select("-/f3"))(body) == bson.encode(document)
    listed = bson.encode({"a": [{"b": bson.Int64(1), "c": 2}, bson.Int64(3)], "d": 4})
    assert kind.projector(parse_select("-/a/c"))(listed) == bson.encode(
        {"a": [{"b": bson.Int64(1)}, bson.Int64(3)], "d": 4}
    )
