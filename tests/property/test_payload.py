"""Message types: readers return the same values as a walk through the decoded document."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import bson
import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.helpers.bodies import Steps, look, selected, value_in_fix, values_of
from tickertape.base.errors import BadPath
from tickertape.payload import MessageType, Path, Select, Unreadable, message_type, parse_select
from tickertape.payload.paths import check_paths

NAMES = st.sampled_from(["a", "b", "c", "é"])
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.integers(-2, 2) | st.text(max_size=4)
BINARY = SCALARS | st.binary(max_size=4)


def documents(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
        max_leaves=20,
    )


def objects(scalars: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(NAMES, documents(scalars), max_size=4)


STEPS = st.builds(lambda first, more: (first, *more), NAMES, st.lists(NAMES | st.integers(0, 3), max_size=4))
PATHS = st.lists(STEPS, min_size=1, max_size=7)
FIELDS = st.builds(tuple, st.lists(NAMES, max_size=3))
ENTRIES = st.lists(st.tuples(st.booleans(), FIELDS), min_size=1, max_size=6)


def written(entries: list[tuple[bool, Steps]]) -> Select:
    return parse_select(",".join(("+" if keep else "-") + str(Path(path)) for keep, path in entries))


def agrees(kind: MessageType, body: bytes, document: Any, paths: list[Steps]) -> None:
    """Check that `decode` and `quick` return the values of a walk through `document`, with their types."""
    asked = [Path(steps) for steps in paths]
    try:
        check_paths(asked)
    except BadPath:
        assume(False)
    reader = kind.reader(asked)
    expected = [repr(look(document, steps)) for steps in paths]
    assert [repr(value) for value in values_of(reader, reader.decode(body))] == expected
    try:
        fields = reader.quick(body)
    except reader.doubts:
        return
    assert [repr(value) for value in values_of(reader, fields)] == expected


@given(documents(SCALARS) | objects(SCALARS), PATHS, st.sampled_from([None, 1]))
def test_json_reader_equals_a_walk_through_the_document(
    document: Any, paths: list[Steps], indent: int | None
) -> None:
    body = json.dumps(document, indent=indent, ensure_ascii=bool(indent)).encode()
    agrees(message_type("json"), body, json.loads(body), paths)


@given(st.lists(st.tuples(NAMES, documents(SCALARS)), max_size=6), PATHS)
def test_reader_of_a_duplicate_field_name_returns_the_last_value(
    fields: list[tuple[str, Any]], paths: list[Steps]
) -> None:
    text = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in fields)
    body = f"{{{text}}}".encode()
    agrees(message_type("json"), body, json.loads(body), paths)
    packed = bytes([0x80 + len(fields)]) + b"".join(
        msgspec.msgpack.encode(name) + msgspec.msgpack.encode(value) for name, value in fields
    )
    agrees(message_type("messagepack"), packed, msgspec.msgpack.decode(packed), paths)


@given(documents(BINARY) | objects(BINARY), PATHS)
def test_messagepack_reader_equals_a_walk_through_the_document(document: Any, paths: list[Steps]) -> None:
    body = msgspec.msgpack.encode(document)
    agrees(message_type("messagepack"), body, msgspec.msgpack.decode(body), paths)


@given(objects(BINARY), PATHS)
def test_bson_reader_equals_a_walk_through_the_document(document: Any, paths: list[Steps]) -> None:
    agrees(message_type("bson"), bson.encode(document), document, paths)


TAGS = st.sampled_from(["1", "11", "35", "351", "135"])
VALUES = st.text(st.characters(blacklist_characters="\x01", codec="utf-8"), max_size=5)
FIX_PATHS = st.lists(
    st.builds(tuple, st.tuples(TAGS) | st.tuples(TAGS, st.integers(0, 3))), min_size=1, max_size=6
)


@pytest.mark.parametrize("name", ["fix", "nvfix"])
@pytest.mark.parametrize("more", [0, 20], ids=["few", "many"])
@given(st.lists(st.tuples(TAGS, VALUES), max_size=8), FIX_PATHS, st.booleans())
def test_fix_reader_equals_a_walk_through_the_fields(
    name: str, more: int, fields: list[tuple[str, str]], paths: list[Steps], closed: bool
) -> None:
    body = b"\x01".join(f"{tag}={value}".encode() for tag, value in fields) + b"\x01" * (
        closed and bool(fields)
    )
    paths = paths + [(str(tag),) for tag in range(100, 100 + more)]
    reader = message_type(name).reader([Path(steps) for steps in paths])
    assert values_of(reader, reader.decode(body)) == [value_in_fix(body, steps) for steps in paths]


@given(objects(SCALARS) | st.lists(objects(SCALARS), max_size=3), ENTRIES)
def test_select_list_on_json_keeps_exactly_the_selected_fields_in_order(
    document: Any, entries: list[tuple[bool, Steps]]
) -> None:
    body = json.dumps(document).encode()
    left = message_type("json").projector(written(entries))(body)
    assert json.dumps(json.loads(left)) == json.dumps(selected(document, entries)), "the order too"


@example({"a": None}, [(False, ("a", "a"))])
@given(objects(BINARY), ENTRIES)
def test_select_list_keeps_the_same_fields_of_every_message_type(
    document: Any, entries: list[tuple[bool, Steps]]
) -> None:
    select, expected = written(entries), repr(selected(document, entries))
    packed = message_type("messagepack").projector(select)(msgspec.msgpack.encode(document))
    assert repr(msgspec.msgpack.decode(packed)) == expected
    binary = message_type("bson").projector(select)(bson.encode(document))
    assert repr(bson.decode(binary)) == expected


@given(st.sampled_from(["json", "messagepack", "bson", "fix", "nvfix"]), st.binary(max_size=40))
def test_message_types_given_any_bytes_read_or_report_unreadable(name: str, body: bytes) -> None:
    kind = message_type(name)
    reader = kind.reader([Path(("35",)), Path(("36", 0))])
    with contextlib.suppress(Unreadable):
        reader.decode(body)
    try:
        kind.check(body)
        readable = True
    except Unreadable:
        readable = False
    assert kind.unreadable([body, body])[0] == ([] if readable else [0, 1])
    left = kind.projector(parse_select("-/35"))(body)
    assert readable or left == body


def test_message_types_with_fields_refuse_invalid_bodies() -> None:
    for name in ("json", "messagepack", "bson", "fix", "nvfix"):
        kind = message_type(name)
        assert kind.name == name
        with pytest.raises(Unreadable):
            kind.check(b"\xff\xfe")
