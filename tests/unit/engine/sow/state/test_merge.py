"""Merge of deltas into records: bytes that stay, values that cannot be merged, and limits."""

from __future__ import annotations

import json
from typing import Any

import bson
import msgspec
import pytest

from tickertape.base.errors import MessageTooLarge
from tickertape.base.limits import message_bytes_max
from tickertape.engine.sow.state.merge import Merger
from tickertape.payload import MESSAGE_TYPES, Unreadable
from tickertape.payload.limits import merge_nested_bytes_max

JSON, MESSAGEPACK, BSON, FIX, NVFIX = map(Merger, ("json", "messagepack", "bson", "fix", "nvfix"))


@pytest.mark.parametrize(
    ("old", "delta", "new"),
    [
        (b'{"a":1.10,"b":2}', b'{"b":3}', b'{"a":1.10,"b":3}'),
        (b'{"a":1}', b'{"c":3,"b":2}', b'{"a":1,"c":3,"b":2}'),
        (b'{"a":1,"b":2}', b'{"b":null,"a":1e999}', b'{"a":1e999,"b":null}'),
        (b'{"a":[1,2,3]}', b'{"a":[4]}', b'{"a":[4]}'),
        (b'{"a":[1,2,3]}', b'{"a":[4],"b":{}}', b'{"a":[4],"b":{}}'),
        (b'{"a":[{"x":1,"y":2}]}', b'{"a":[{"x":3}]}', b'{"a":[{"x":3}]}'),
        (b'{"a":{"x":1,"y":{"z":2}}}', b'{"a":{"y":{"w":3}}}', b'{"a":{"x":1,"y":{"z":2,"w":3}}}'),
        (b'{"a":{"x":1}}', b'{"a":5}', b'{"a":5}'),
        (b'{"a":5}', b'{"a":{"x":1}}', b'{"a":{"x":1}}'),
        (b'{"a":{"x":1}}', b'{"a":{}}', b'{"a":{"x":1}}'),
        (b'{"a":5}', b'{"a":{}}', b'{"a":{}}'),
        (b' { "a" : { "x" : [1, 2.50] } , "b" : 1 } ', b' {"b" : 2 }', b'{"a":{ "x" : [1, 2.50] },"b":2}'),
        (b'{"a":1,"b":2,"a":3}', b'{"c":4}', b'{"a":3,"b":2,"c":4}'),
        (b'{"a":1}', b'{"b":1,"b":2}', b'{"a":1,"b":2}'),
        ('{"é":"ü"}'.encode(), b'{"\\u00e9":"\\u00fc"}', '{"é":"\\u00fc"}'.encode()),
    ],
)  # fmt: skip
def test_json_delta_changes_fields_and_keeps_other_bytes(old: bytes, delta: bytes, new: bytes) -> None:
    assert JSON.merge(old, delta) == new


def test_messagepack_delta_keeps_the_encoding_of_other_values() -> None:
    long_one = b"\xd3" + bytes(7) + b"\x01"  # an integer in nine bytes
    timestamp = b"\xd7\xff" + (999_999_999 << 34 | 1).to_bytes(8, "big")
    old = b"\x84\xa1a" + long_one + b"\xa1b\x81\xa1t" + timestamp + b"\x05" + long_one + b"\xa1z\xc0"
    new = MESSAGEPACK.merge(old, msgspec.msgpack.encode({"b": {"u": 1}, 6: True}))
    assert new == (
        b"\x85\xa1a" + long_one + b"\xa1b\x82\xa1t" + timestamp + b"\xa1u\x01"
        b"\x05" + long_one + b"\xa1z\xc0" + b"\x06\xc3"
    )


def test_bson_delta_keeps_the_types_of_other_values() -> None:
    nested = {"d": bson.Decimal128("1.50"), "r": [bson.Regex("^a"), {"x": 1}]}
    old = {"a": bson.Int64(5), "b": nested}
    new = BSON.merge(bson.encode(old), bson.encode({"b": {"i": bson.ObjectId(bytes(12))}, "n": None}))
    expected = {"a": bson.Int64(5), "b": {**nested, "i": bson.ObjectId(bytes(12))}, "n": None}
    assert new == bson.encode(expected)


SOH = b"\x01"


@pytest.mark.parametrize(
    ("old", "delta", "new"),
    [
        ("35=D|55=IBM|44=10.50|", "44=11|", "35=D|55=IBM|44=11|"),
        ("35=D|55=IBM|", "38=5|44=", "35=D|55=IBM|38=5|44=|"),
        ("35=D|55=IBM", "38=5|", "35=D|55=IBM|38=5"),
        ("35=D|55=IBM|", "", "35=D|55=IBM|"),
        ("", "38=5", "38=5"),
        # entries of a group remain together
        ("268=2|269=0|270=1|269=1|270=2|", "269=0|270=5|269=1|270=6|", "268=2|269=0|270=5|269=1|270=6|"),
        (
            "268=1|269=0|270=1|", "268=2|269=0|270=5|269=1|270=6|",
            "268=2|269=0|270=5|269=1|270=6|",
        ),
        ("268=2|269=0|270=1|269=1|270=2|", "268=1|269=0|270=5|", "268=1|269=0|270=5|"),
        ("1=a|1=b|2=x|1=c|", "1=d|", "1=d|2=x|"),
        ("1=a|", "1=b|1=b|3=x|1=b|", "1=b|1=b|3=x|1=b|"),
    ],
)  # fmt: skip
def test_fix_delta_replaces_all_values_of_a_tag(old: str, delta: str, new: str) -> None:
    bodies = [text.encode().replace(b"|", SOH) for text in (old, delta, new)]
    for merger in (FIX, NVFIX):
        assert merger.merge(bodies[0], bodies[1]) == bodies[2]


def test_nvfix_delta_merges_by_name() -> None:
    assert NVFIX.merge(b"symbol=IBM\x01note=a=b\x01", b"symbol=AAPL\x01") == b"symbol=AAPL\x01note=a=b\x01"


# -- deltas that are published as they are ------------------------------------------------------------

BODIES = {
    "json": b'{"a":1}',
    "messagepack": msgspec.msgpack.encode({"a": 1}),
    "nvfix": b"a=1\x01",
    "fix": b"1=1\x01",
    "bson": bson.encode({"a": 1}),
    "binary": b"\xff",
}


@pytest.mark.parametrize("name", MESSAGE_TYPES)
def test_delta_without_a_record_is_the_record(name: str) -> None:
    delta = bytes(bytearray(BODIES[name]))
    assert Merger(name).merge(None, delta) is delta
    assert Merger(name).merge(None, b"{") == b"{"


def test_type_without_fields_does_not_merge() -> None:
    assert not Merger("binary").merges
    assert all(Merger(name).merges for name in MESSAGE_TYPES if name != "binary")
    delta = b"\x01\x02"
    assert Merger("binary").merge(b"\x01", delta) is delta


@pytest.mark.parametrize("delta", [b"[]", b'"x"', b"1", b" null", b"[{}]"])
def test_delta_without_an_object_is_published_unchanged(delta: bytes) -> None:
    assert JSON.merge(b'{"a":1}', delta) is delta
    packed = msgspec.msgpack.encode(json.loads(delta))
    assert MESSAGEPACK.merge(BODIES["messagepack"], packed) is packed


@pytest.mark.parametrize("name", ["json", "messagepack", "fix", "nvfix", "bson"])
def test_delta_replaces_a_record_that_has_no_fields(name: str) -> None:
    delta = BODIES[name]
    for old in (b"\xff\xfe", b"1", b"[1]", b""):
        assert Merger(name).merge(old, delta) is delta


@pytest.mark.parametrize("name", ["json", "messagepack", "fix", "nvfix", "bson"])
def test_delta_that_is_invalid_for_the_type_is_refused(name: str) -> None:
    merger = Merger(name)
    for delta in (b"\xc1", b"{]", b"\xff\xfe"):
        with pytest.raises(Unreadable):
            merger.merge(BODIES[name], delta)
    with pytest.raises(Unreadable):
        merger.merge(b"\xc1", b"\xc1")


# -- depth and size -----------------------------------------------------------------------------------


def nested(depth: int, inner: Any = 1) -> bytes:
    return b'{"a":' * depth + msgspec.json.encode(inner) + b"}" * depth


def nested_bson(depth: int, inner: bytes) -> bytes:
    body = inner
    for _ in range(depth):
        body = (len(body) + 8).to_bytes(4, "little") + b"\x03a\0" + body + b"\0"
    return body


@pytest.mark.parametrize("depth", [1, 30, 500])
def test_deep_objects_are_merged_at_every_depth(depth: int) -> None:
    bodies = [nested(depth, inner) for inner in ({"x": 1}, {"y": 2}, {"x": 1, "y": 2})]
    assert JSON.merge(bodies[0], bodies[1]) == bodies[2]
    old, delta, new = ({"x": 1}, {"y": 2}, {"x": 1, "y": 2})
    pack = msgspec.msgpack.encode
    assert MESSAGEPACK.merge(b"\x81\xa1a" * depth + pack(old), b"\x81\xa1a" * depth + pack(delta)) == (
        b"\x81\xa1a" * depth + pack(new)
    )
    depth = min(depth, 90)
    assert BSON.merge(
        nested_bson(depth, bson.encode(old)), nested_bson(depth, bson.encode(delta))
    ) == nested_bson(depth, bson.encode(new))


def test_delta_nested_deeper_than_the_parser_permits_is_refused() -> None:
    with pytest.raises(Unreadable):
        JSON.merge(b'{"a":1}', nested(10_000))
    with pytest.raises(Unreadable):
        MESSAGEPACK.merge(BODIES["messagepack"], b"\x81\xa1a" * 10_000 + b"\x01")
    with pytest.raises(Unreadable):
        BSON.merge(BODIES["bson"], nested_bson(10_000, bson.encode({})))
    assert JSON.merge(nested(10_000), b'{"a":1}') == b'{"a":1}'


def test_work_of_deep_and_large_objects_is_bounded() -> None:
    inner = "x" * (4 << 20)
    body = nested(merge_nested_bytes_max // len(inner) // 2 - 1, {"x": inner})
    assert json.loads(JSON.merge(body, body)) == json.loads(body)
    body = nested(merge_nested_bytes_max // len(inner) // 2 + 1, {"x": inner})
    assert len(body) < message_bytes_max
    with pytest.raises(MessageTooLarge, match=r"Cannot merge the delta: .*Publish the whole message\."):
        JSON.merge(body, body)


def test_field_that_changes_between_object_and_value_makes_a_merge_not_associative() -> None:
    a, b, c = b'{"x":{"k":1}}', b'{"x":5}', b'{"x":{"l":2}}'
    assert JSON.merge(JSON.merge(a, b), c) == b'{"x":{"l":2}}'
    assert JSON.merge(a, JSON.merge(b, c)) == b'{"x":{"k":1,"l":2}}'
