"""Every type of BSON, as bytes written by hand: read, filtered, selected, and damaged."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import bson
import pytest

from tests.helpers.bodies import values_of
from tickertape.filter import compile_filter
from tickertape.filter.index.filter_index import FilterIndex
from tickertape.payload import Unreadable, message_type, parse_path, parse_select

BSON = message_type("bson")


def element(kind: int, name: str, value: bytes) -> bytes:
    return bytes([kind]) + name.encode() + b"\0" + value


def document(*elements: bytes) -> bytes:
    inside = b"".join(elements)
    return struct.pack("<i", len(inside) + 5) + inside + b"\0"


def string(text: str) -> bytes:
    data = text.encode() + b"\0"
    return struct.pack("<i", len(data)) + data


OBJECT_ID = bytes(range(12))
INNER = document(element(0x10, "k", struct.pack("<i", 7)))
TEXTS = document(element(0x02, "0", string("x")), element(0x0A, "1", b""), element(0x10, "2", b"\2\0\0\0"))
TYPES: list[tuple[str, int, bytes, Any, str]] = [
    ("double", 0x01, struct.pack("<d", 2.5), 2.5, "/v > 2 AND /v < 3"),
    ("double NaN", 0x01, struct.pack("<d", float("nan")), None, "/v IS NAN"),
    ("double infinite", 0x01, struct.pack("<d", float("inf")), float("inf"), "/v > 1e308"),
    ("string", 0x02, string("Straße"), "Straße", "/v LIKE '^Stra' AND LENGTH(/v) = 6"),
    ("string with NUL", 0x02, string("a\0b"), "a\0b", "LENGTH(/v) = 3"),
    ("empty string", 0x02, string(""), "", "/v IS NULL"),
    ("document", 0x03, INNER, {"k": 7}, "/v/k = 7 AND /v IS NOT NULL"),
    ("array", 0x04, TEXTS, ["x", None, 2], "/v = 2 AND /v[0] = 'x' AND /v[1] IS NULL"),
    ("binary", 0x05, struct.pack("<iB", 3, 0) + b"abc", b"abc", "/v = 'abc'"),
    ("binary, old", 0x05, struct.pack("<iBi", 7, 2, 3) + b"abc", b"abc", "/v = 'abc'"),
    ("binary, UUID", 0x05, struct.pack("<iB", 16, 4) + b"\xff" * 16, b"\xff" * 16, "/v IS NOT NULL"),
    ("binary, of a user", 0x05, struct.pack("<iB", 1, 0x80) + b"1", b"1", "/v = 1"),
    ("undefined", 0x06, b"", None, "/v IS NULL"),
    ("object id", 0x07, OBJECT_ID, OBJECT_ID.hex(), f"/v = '{OBJECT_ID.hex()}'"),
    ("false", 0x08, b"\0", False, "NOT /v"),
    ("true", 0x08, b"\1", True, "/v = 1"),
    ("date", 0x09, struct.pack("<q", 1_795_165_200_500), "2026-11-20T09:00:00.500000Z",
     "STRPTIME(/v, '%Y-%m-%dT%H:%M:%S.%fZ') = 1795165200.5"),
    ("date before 1970", 0x09, struct.pack("<q", -1), "1969-12-31T23:59:59.999000Z", "/v BEGINS WITH '1969'"),
    ("last date", 0x09, struct.pack("<q", 2**63 - 1), 2**63 - 1, "/v = 9223372036854775807"),
    ("first date", 0x09, struct.pack("<q", -(2**63)), -(2**63), "/v < 0"),
    ("null", 0x0A, b"", None, "/v IS NULL"),
    ("regular expression", 0x0B, b"^a(\0im\0", "^a(", "/v = '^a('"),
    ("DBPointer", 0x0C, string("c") + OBJECT_ID, {}, "/v IS NOT NULL AND /none IS NULL"),
    ("code", 0x0D, string("f()"), "f()", "/v = 'f()'"),
    ("symbol", 0x0E, string("s"), "s", "/v = 's'"),
    ("code with scope", 0x0F, struct.pack("<i", 4 + len(string("g")) + len(INNER)) + string("g") + INNER, "g",
     "/v = 'g'"),
    ("int32", 0x10, struct.pack("<i", -(2**31)), -(2**31), "/v = -2147483648"),
    ("timestamp", 0x11, struct.pack("<II", 3, 1_795_165_200), "2026-11-20T09:00:00.000000Z",
     "/v LIKE '^2026'"),
    ("last timestamp", 0x11, b"\xff" * 8, "2106-02-07T06:28:15.000000Z", "/v > '2106'"),
    ("int64", 0x12, struct.pack("<q", 2**53 + 1), 2**53 + 1, "/v = 9007199254740993"),
    ("decimal128", 0x13, bson.Decimal128("10.50").bid, "10.50", "/v = 10.5 AND /v * 2 = 21"),
    ("decimal128 NaN", 0x13, bson.Decimal128("NaN").bid, "NaN", "/v IS NOT NULL AND /v = 'NaN'"),
    ("decimal128, large", 0x13, bson.Decimal128("1E+6144").bid, str(bson.Decimal128("1E+6144")),
     "LENGTH(/v) > 5"),
    ("MinKey", 0xFF, b"", {}, "/v IS NOT NULL"),
    ("MaxKey", 0x7F, b"", {}, "/v IS NOT NULL"),
]  # fmt: skip


def bodies(kind: int, value: bytes) -> bytes:
    rest = element(0x10, "n", struct.pack("<i", 1))
    inner = document(element(kind, "v", value))
    return document(element(kind, "v", value), rest, element(0x04, "a", document(element(0x03, "0", inner))))


@pytest.mark.parametrize(
    ("kind", "value", "found", "text"), [case[1:] for case in TYPES], ids=[c[0] for c in TYPES]
)
def test_every_type_is_read_filtered_and_selected(kind: int, value: bytes, found: Any, text: str) -> None:
    body = bodies(kind, value)
    BSON.check(body)
    reader = BSON.reader([parse_path("/v"), parse_path("/a/v"), parse_path("/n")])
    once, below, number = values_of(reader, reader.decode(body))
    assert number == 1
    if "IS NAN" in text:
        assert once != once
    else:
        assert (once, type(once)) == (found, type(found))
        assert below == (found if isinstance(found, list) else [found])
    one = compile_filter(text, BSON)
    assert (one.matches(body), compile_filter("/n = 2", BSON).matches(body)) == (True, False)
    index: FilterIndex[str] = FilterIndex(BSON)
    for other in (text, "/n = 1", f"({text}) AND /n = 1", f"NOT ({text})"):
        index.add(other, compile_filter(other, BSON))
    assert {key for key, _ in index.match([body])} == {text, "/n = 1", f"({text}) AND /n = 1"}
    assert one.unreadable == 0
    left = BSON.projector(parse_select("-/n"))(body)
    cut = values_of(reader, reader.decode(left))
    assert repr(cut) == repr([once, below, None])
    if kind not in (0x06, 0x0C, 0x0E):  # deprecated types are written as their replacements
        assert element(kind, "v", value) in left
        assert BSON.projector(parse_select("+/"))(body) == body


def test_damaged_bodies_are_read_or_unreadable_and_nothing_else() -> None:
    rng = Random(3)
    select = BSON.projector(parse_select("-/n"))
    reader = BSON.reader([parse_path("/v"), parse_path("/a/v[0]")])
    one = compile_filter("/v = 1 OR /a/v LIKE 'x' OR NOT /n > 1", BSON)
    unreadable = 0
    for _, kind, value, _, _ in TYPES:
        whole = bodies(kind, value)
        damaged = [whole[:at] for at in range(len(whole))]
        for _ in range(100):
            other = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                other[rng.randrange(len(other))] = rng.choice(
                    [0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF, rng.randrange(256)]
                )
            damaged.append(bytes(other))
        before = one.unreadable
        for body in damaged:
            one.matches(body)
            try:
                reader.decode(body)
                BSON.check(body)
                select(body)
            except Unreadable:
                unreadable += 1
                assert select(body) == body
        assert one.unreadable - before == sum(map(_is_unreadable, damaged))
    assert unreadable > 1_000


def _is_unreadable(body: bytes) -> bool:
    try:
        BSON.check(body)
    except Unreadable:
        return True
    return False


def test_repeated_bson_name_uses_the_last_value() -> None:
    body = document(element(0x10, "v", b"\1\0\0\0"), element(0x10, "v", b"\2\0\0\0"))
    assert compile_filter("/v = 2", BSON).matches(body)
