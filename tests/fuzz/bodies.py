"""Fuzz targets of message types: decoding of bodies, paths and select lists.

Must never expect more of a body than that it is read or `Unreadable` with a short text, which is allowed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import bson
import msgspec

from tests.fuzz.target import Target, brief, taken, texts
from tests.helpers.bodies import values_of
from tickertape.base.errors import BadOption, BadPath
from tickertape.payload import Unreadable, message_type, parse_path, parse_select

_PATHS: Final = ("/a", "/a/b", "/a[0]/b", "/c", "/d/e/f", "/d/e", "/g[1][0]", "/a/b/c")
_TAGS: Final = ("/35", "/35[1]", "/55", "/8", "/44", "/1", "/2", "/3", "/4", "/5", "/6")
_SELECT: Final = "[-/,+/a/b,+/c,+/d,-/d/e]"
_TAG_SELECT: Final = "[-/35,-/1]"
_VALUES: Final = {type(None), bool, int, float, str, bytes, list, dict}
_DOCUMENTS: Final[tuple[dict[str, Any], ...]] = (
    {"a": [{"b": 1}, {"b": [2.5, "x"]}, 3], "c": "é", "d": {"e": {"f": -1}}, "g": [0, [1]]},
    {"z": "y" * 40, "a": {"b": {"c": 1.5}}, "c": None, "d": True, "g": 2**40},
)


def short(error: Unreadable) -> None:
    """Check that the text of an error is short."""
    assert len(str(error)) < 300


def within(position: int, text: str) -> None:
    """Check that a position is inside the text."""
    assert 0 <= position <= len(text)


def body(name: str, data: bytes) -> str:
    """Read a body: plain values, the same by `quick`. It is checked, and a selection of it is readable."""
    fix = name in {"fix", "nvfix"}
    kind = message_type(name)
    reader = kind.reader([parse_path(path) for path in (_TAGS if fix else _PATHS)])
    outcome = "read"
    try:
        values = values_of(reader, reader.decode(data))
    except Unreadable as error:
        short(error)
        outcome = "unreadable"
    else:
        assert {*map(type, values)} <= _VALUES
        assert {type(one) for value in values if type(value) is list for one in value} <= _VALUES
        try:
            assert repr(values_of(reader, reader.quick(data))) == repr(values)
        except reader.doubts:
            outcome = "read the long way"
    project = kind.projector(parse_select(_TAG_SELECT if fix else _SELECT))
    try:
        kind.check(data)
    except Unreadable as error:
        short(error)
        assert project(data) == data
        raise
    assert outcome != "unreadable" or name == "json", "but for numbers that no float holds"
    with taken():
        left = project(data)
        kind.check(left)
        assert len(left) <= 6 * len(data)
    return f"{outcome}, of the type"


def fields(data: bytes) -> str:
    """Parse a path or select list: a short `BadPath` or `BadOption`, or a value that round-trips."""
    text = data.decode("utf-8", "replace")
    outcome = "refused"
    try:
        path = parse_path(text)
    except BadPath as error:
        brief(error)
        within(error.position, text)
    else:
        assert parse_path(str(path)) == path
        for name in ("json", "messagepack", "bson"):
            message_type(name).reader([path])
        outcome = "path"
    try:
        select = parse_select(text)
    except BadOption as error:
        brief(error)
    else:
        assert parse_select(str(select)) == select
        message_type("json").projector(select)(b'{"a":{"b":1}}')
        outcome = "select"
    return outcome


def _json() -> Sequence[bytes]:
    return [json.dumps(document, ensure_ascii=False).encode() for document in _DOCUMENTS]


def _messagepack() -> Sequence[bytes]:
    more = {"a": datetime(2026, 11, 20, tzinfo=UTC), "c": [msgspec.msgpack.Ext(5, b"x")], "d": {1: b"\xff"}}
    return [msgspec.msgpack.encode(document) for document in (*_DOCUMENTS, more)]


def _bson() -> Sequence[bytes]:
    more = {"a": bson.ObjectId(bytes(12)), "c": [bson.Regex("x")], "d": {"e": bson.Decimal128("1")}}
    return [bson.encode(document) for document in (*_DOCUMENTS, more)]


_FIX: Final = ("8=FIX.4.2\x0135=D\x0155=IBM\x0135=é\x0144=\x01", "1=2\x013=4", "")

BODY_TARGETS: Final[dict[str, Target]] = {
    "json": Target(
        functools.partial(body, "json"),
        _json,
        allowed=(Unreadable,),
        words=(b'"a":', b"1e999", b"[{", b"\xff", b"\\ud800"),
    ),
    "messagepack": Target(
        functools.partial(body, "messagepack"),
        _messagepack,
        allowed=(Unreadable,),
        words=(b"\xd6\xff", b"\xc7\x0c\xff", b"\xdd\xff"),
    ),
    "bson": Target(
        functools.partial(body, "bson"),
        _bson,
        allowed=(Unreadable,),
        words=(b"\x02a\x00", b"\x03d\x00", b"\x00"),
        cost=2,
    ),
    "fix": Target(
        functools.partial(body, "fix"), texts(*_FIX), allowed=(Unreadable,), words=(b"\x01", b"=", b"35=")
    ),
    "nvfix": Target(
        functools.partial(body, "nvfix"), texts(*_FIX), allowed=(Unreadable,), words=(b"\x01", b"=", b"35=")
    ),
    "fields": Target(
        fields,
        texts("/a/b[0]/@c", "[-/,+/a/b,-/c]", "-/a"),
        words=(b"/", b"[", b"]", b"+/", b"-/", b",", b"[0]", b" "),
        cost=4,
    ),
}
