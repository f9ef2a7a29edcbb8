"""JSON and MessagePack: values, odd bodies, huge numbers, deep nesting, and body checks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from tests.helpers.bodies import values_of
from tickertape.payload import Unreadable, message_type, parse_path

pack = msgspec.msgpack.encode


def read(name: str, body: bytes, *paths: str) -> list[Any]:
    reader = message_type(name).reader([parse_path(path) for path in paths])
    return values_of(reader, reader.decode(body))


@pytest.mark.parametrize(
    ("body", "path", "value"),
    [
        (b'{"a":24}', "/a", 24),
        (b'{"a":"24"}', "/a", "24"),
        (b'{"a":""}', "/a", ""),
        (b'{"a":true}', "/a", True),
        (b'{"a":null}', "/a", None),
        (b'{"a":1.5e3}', "/a", 1500.0),
        (b'{"a":18446744073709551615}', "/a", 2**64 - 1),
        (b'{"a":123456789012345678901234567890}', "/a", 123456789012345678901234567890),
        (b'{"a":"\\ud83d\\ude00"}', "/a", "😀"),
        (b'{"a":{"b":{}}}', "/a/b", {}),
        (b'{"a":[1,[2]]}', "/a", [1, [2]]),
        (b'{"a":[1,[2]]}', "/a[1][0]", 2),
        (b'{"a":[1]}', "/a[1]", None),
        (b'{"a":5}', "/a[0]", None),
        (b'{"a":5}', "/a/b", None),
        (b'{"a":null}', "/a/b", None),
        (b'{"legs":[{"px":1},{"qty":2},{"px":3},4,{"px":null}]}', "/legs/px", [1, 3, None]),
        (b'{"legs":[{"px":[1,2]},{"px":3}]}', "/legs/px", [1, 2, 3]),
        (b'{"legs":[{"px":[1,2]},{"px":[3]}]}', "/legs/px[0]", [1, 3]),
        (b'{"legs":[{"px":1},{"px":3}]}', "/legs[1]/px", 3),
        (b'{"legs":[{"qty":1}]}', "/legs/px", None),
        (b'{"legs":[[{"px":1}]]}', "/legs/px", None),
        (b'[{"a":1},{"a":2}]', "/a", [1, 2]),
        (b"7", "/a", None),
        (b'{"a":1,"a":{"b":2}}', "/a/b", 2),
        (b'{"a":{"b":2},"a":1}', "/a/b", None),
        (b' \n{"a":1}\n ', "/a", 1),
    ],
)
def test_json_path_reads_the_expected_value(body: bytes, path: str, value: Any) -> None:
    (found,) = read("json", body, path)
    assert found == value
    assert type(found) is type(value)


def test_json_paths_with_a_common_prefix_are_read_together() -> None:
    body = b'{"a":[{"b":1,"c":[5,6]},{"b":2}],"d":{"e":{"f":1}},"g":1}'
    paths = ("/a", "/a/b", "/a[0]/c", "/a[0]/c[1]", "/a/b", "/d/e/f", "/d/e", "/g")
    assert read("json", body, *paths) == [
        [{"b": 1, "c": [5, 6]}, {"b": 2}], [1, 2], [5, 6], 6, [1, 2], 1, {"f": 1}, 1,
    ]  # fmt: skip


BAD_JSON = [
    b"", b"{", b'{"a":1}x', b'{"a":1,}', b'{"z":nul}', b'{"z":"\n"}', b'{"z":"\\ud800"}', b'{"a":"\xff"}',
    b"\xef\xbb\xbf{}", b"{'a':1}", b'{"z":01}', b"\x00", b'{"a":{"b":1}', b'{"a":5,"z":[}',
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_JSON, ids=repr)
@pytest.mark.parametrize("paths", [("/a",), ("/a/b",), ("/a[0]", "/q")], ids=str)
def test_invalid_json_body_is_unreadable(body: bytes, paths: tuple[str, ...]) -> None:
    with pytest.raises(Unreadable):
        read("json", body, *paths)
    with pytest.raises(Unreadable):
        message_type("json").check(body)


def test_invalid_utf_8_is_unreadable_when_the_field_is_read_or_checked() -> None:
    body = b'{"a":1,"z":"\xff"}'
    assert read("json", body, "/a") == [1]
    for path in ("/z", "/z/y"):
        with pytest.raises(Unreadable):
            read("json", body, path, "/z")
    with pytest.raises(Unreadable, match="utf-8"):
        message_type("json").check(body)


@pytest.mark.parametrize("number", [b"1e999", b"1" * 5000], ids=["float", "integer"])
def test_json_number_out_of_range_is_unreadable_when_the_field_is_read(number: bytes) -> None:
    body = b'{"a":1,"z":' + number + b"}"
    assert read("json", body, "/a") == [1]
    with pytest.raises(Unreadable, match="out of range"):
        read("json", body, "/z")


@pytest.mark.parametrize("depth", [100, 100_000])
@pytest.mark.parametrize("path", ["/a", "/z", "/a/b", "/a[0]"])
def test_deep_documents_are_read_or_unreadable(depth: int, path: str) -> None:
    for name, body in (
        ("json", b'{"a":' + b"[" * depth + b"]" * depth + b"}"),
        ("json", b'{"a":' + b'{"b":' * depth + b"1" + b"}" * depth + b"}"),
        ("messagepack", b"\x81\xa1a" + b"\x91" * depth + b"\x01"),
    ):
        if depth < 1000:
            message_type(name).check(body)
            read(name, body, path)
        else:
            with pytest.raises(Unreadable, match="recursion"):
                message_type(name).check(body)
            with pytest.raises(Unreadable, match="recursion"):
                read(name, body, path)


def test_unreadable_bodies_are_reported_together() -> None:
    json = message_type("json")
    assert json.unreadable([b"{}", b"{", '"é"'.encode(), b'"\xff"']) == ([1, 3], "Input data was truncated")
    assert json.unreadable([b"{}"] * 3) == ([], "")
    packed = message_type("messagepack")
    assert packed.unreadable([pack({}), b"\xc1", b""])[0] == [1, 2]


def test_reader_without_paths_still_rejects_unreadable_bodies() -> None:
    for name in ("json", "messagepack", "fix", "nvfix", "bson"):
        reader = message_type(name).reader([])
        assert reader.access == ()
        with pytest.raises(Unreadable):
            reader.decode(b"\xffx")


# -- MessagePack --------------------------------------------------------------------------------------

MOMENT = datetime(2026, 11, 20, 10, 0, 0, 250_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"\xff\x00", b"\xff\x00"),
        (-1, -1),
        (2**64 - 1, 2**64 - 1),
        (1.5, 1.5),
        ({1: 2}, {1: 2}),
        (MOMENT, "2026-11-20T10:00:00.250000Z"),
        (MOMENT.astimezone(timezone(timedelta(hours=2))), "2026-11-20T10:00:00.250000Z"),
        ([MOMENT, 1], ["2026-11-20T10:00:00.250000Z", 1]),
        (datetime(99, 1, 2, tzinfo=UTC), "0099-01-02T00:00:00.000000Z"),
        (msgspec.msgpack.Ext(5, b"xyz"), b"xyz"),
        ([msgspec.msgpack.Ext(-5, b"xyz")], [b"xyz"]),
    ],
    ids=lambda value: repr(value).partition(" object at ")[0],  # the same in every process
)
def test_messagepack_field_reads_as_the_expected_value(value: Any, found: Any) -> None:
    body = pack({"a": value, "b": [value], "c": {"d": value}, "e": "f"})
    once, listed, first, nested, text = read("messagepack", body, "/a", "/b", "/b[0]", "/c/d", "/e")
    assert (once, first, nested, text) == (found, found, found, "f")
    if not isinstance(value, list):
        assert listed == [found]
    assert all(type(one) is type(found) for one in (once, first, nested))


def test_messagepack_keys_other_than_text_are_not_fields() -> None:
    body = pack({1: "one", b"a": "bytes", "a": 7, (1, 2): 3})
    assert read("messagepack", body, "/a", "/1") == [7, None]
    assert read("messagepack", b"\x82" + pack(b"k") + pack(1) + pack("a") + pack({"b": 2}), "/a/b") == [2]


@pytest.mark.parametrize(
    "body",
    [b"", b"\x80\x80", b"\xc1", b"\x81\xa1a", b"\x81\xa1a\xa1\xff", b"\x81\x80\x01", b"\xdd\xff\xff\xff\xff",
     b"\x81\xa1a\xc7\x0c\xff" + b"\xff" * 12],
    ids=repr,
)  # fmt: skip
def test_invalid_messagepack_body_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        read("messagepack", body, "/a")
    with pytest.raises(Unreadable):
        message_type("messagepack").check(body)
