"""Merge of deltas against a recursive merge of decoded documents, and the laws of a merge."""

from __future__ import annotations

import json
from typing import Any

import bson
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.test_payload import BINARY, SCALARS, documents, objects
from tickertape.engine.sow.state.merge import Merger

JSON, MESSAGEPACK, BSON = Merger("json"), Merger("messagepack"), Merger("bson")


def merged(old: Any, delta: Any) -> Any:
    """Return the document after a delta: the definition."""
    if not isinstance(old, dict) or not isinstance(delta, dict):
        return delta
    new = {name: merged(old[name], value) if name in old else value for name, value in delta.items()}
    return {**old, **new}


def text(document: Any) -> str:
    """Return a document with the order of its fields."""
    return json.dumps(document)


ANY_DOCUMENT = documents(SCALARS) | objects(SCALARS)


@given(ANY_DOCUMENT, ANY_DOCUMENT, st.sampled_from([None, 1]))
def test_merge_of_json_equals_a_recursive_merge_with_the_order_of_fields(
    old: Any, delta: Any, indent: int | None
) -> None:
    bodies = [json.dumps(one, indent=indent, ensure_ascii=bool(indent)).encode() for one in (old, delta)]
    result = JSON.merge(bodies[0], bodies[1])
    assert text(json.loads(result)) == text(merged(old, delta))
    if not isinstance(old, dict) or not isinstance(delta, dict):
        assert result is bodies[1]


@given(documents(BINARY) | objects(BINARY), documents(BINARY) | objects(BINARY))
def test_merge_of_messagepack_equals_a_recursive_merge_with_the_order_of_fields(old: Any, delta: Any) -> None:
    result = MESSAGEPACK.merge(msgspec.msgpack.encode(old), msgspec.msgpack.encode(delta))
    assert repr(msgspec.msgpack.decode(result)) == repr(merged(old, delta))


@given(objects(BINARY), objects(BINARY))
def test_merge_of_bson_equals_a_recursive_merge_with_the_order_of_fields(old: Any, delta: Any) -> None:
    result = BSON.merge(bson.encode(old), bson.encode(delta))
    assert repr(bson.decode(result)) == repr(merged(old, delta))


TAGS = st.sampled_from(["1", "11", "35", "135"])
VALUES = st.text(st.characters(blacklist_characters="\x01", codec="utf-8"), max_size=4)
FIELDS = st.lists(st.tuples(TAGS, VALUES), max_size=8)


def in_fix(fields: list[tuple[str, str]], *, closed: bool) -> bytes:
    end = b"\x01" * (closed and bool(fields))
    return b"\x01".join(f"{tag}={value}".encode() for tag, value in fields) + end


def by_tag(fields: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for tag, value in fields:
        found.setdefault(tag, []).append(value)
    return found


def from_fix(body: bytes) -> list[tuple[str, str]]:
    fields = [field.decode().partition("=") for field in body.split(b"\x01") if field]
    return [(tag, value) for tag, _, value in fields]


@pytest.mark.parametrize("name", ["fix", "nvfix"])
@given(FIELDS, FIELDS, st.booleans(), st.booleans())
def test_merge_of_fix_replaces_all_values_of_a_tag(
    name: str, old: list[tuple[str, str]], delta: list[tuple[str, str]], closed: bool, delta_closed: bool
) -> None:
    result = Merger(name).merge(in_fix(old, closed=closed), in_fix(delta, closed=delta_closed))
    expected = by_tag(old) | by_tag(delta)
    assert list(by_tag(from_fix(result)).items()) == list(expected.items())
    if old and delta:
        assert result.endswith(b"\x01") == closed


# -- laws ---------------------------------------------------------------------------------------------


def of_type(name: str, document: dict[str, Any]) -> bytes:
    if name == "json":
        return json.dumps(document).encode()
    return msgspec.msgpack.encode(document) if name == "messagepack" else bson.encode(document)


def decoded(name: str, body: bytes) -> Any:
    if name == "json":
        return json.loads(body)
    return msgspec.msgpack.decode(body) if name == "messagepack" else bson.decode(body)


def read(name: str, body: bytes) -> str:
    return repr(decoded(name, body))


NAMES = pytest.mark.parametrize("name", ["json", "messagepack", "bson"])


@NAMES
@given(objects(SCALARS))
def test_merge_of_an_empty_delta_returns_the_record(name: str, old: dict[str, Any]) -> None:
    body = of_type(name, old)
    assert Merger(name).merge(body, of_type(name, {})) is body


@NAMES
@given(objects(SCALARS), objects(SCALARS))
def test_merge_of_the_same_delta_twice_changes_nothing(
    name: str, old: dict[str, Any], delta: dict[str, Any]
) -> None:
    merge = Merger(name).merge
    change = of_type(name, delta)
    once = merge(of_type(name, old), change)
    assert read(name, merge(once, change)) == read(name, once)
    assert read(name, merge(once, once)) == read(name, once)


def leaves(document: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Return the values that are not objects, by path."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for name, value in document.items():
        if isinstance(value, dict):
            found += leaves(value, (*path, name))
        else:
            found.append(((*path, name), value))
    return found


@NAMES
@given(objects(SCALARS), objects(SCALARS))
def test_values_of_the_later_delta_win(name: str, old: dict[str, Any], delta: dict[str, Any]) -> None:
    result = Merger(name).merge(of_type(name, old), of_type(name, delta))
    found = dict(leaves(decoded(name, result)))
    assert {path: repr(found[path]) for path, _ in leaves(delta)} == {
        path: repr(value) for path, value in leaves(delta)
    }


# A field is an object in all documents, or in none: `o` and `p` are objects.
TYPED = st.recursive(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), SCALARS | st.lists(SCALARS, max_size=3), max_size=3),
    lambda inner: st.builds(
        lambda values, nested: values | nested,
        st.dictionaries(st.sampled_from(["a", "b", "c"]), SCALARS, max_size=3),
        st.dictionaries(st.sampled_from(["o", "p"]), inner, max_size=2),
    ),
    max_leaves=8,
)


@NAMES
@given(TYPED, TYPED, TYPED)
def test_merge_of_objects_is_associative(
    name: str, a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]
) -> None:
    merge = Merger(name).merge
    first, second, third = (of_type(name, one) for one in (a, b, c))
    one_by_one = merge(merge(first, second), third)
    assert read(name, one_by_one) == read(name, merge(first, merge(second, third)))


@given(FIELDS, FIELDS, FIELDS)
def test_merge_of_fix_is_associative_and_idempotent_by_tag(
    a: list[tuple[str, str]], b: list[tuple[str, str]], c: list[tuple[str, str]]
) -> None:
    merge = Merger("fix").merge
    first, second, third = (in_fix(one, closed=True) for one in (a, b, c))
    one_by_one = merge(merge(first, second), third)
    assert by_tag(from_fix(one_by_one)) == by_tag(from_fix(merge(first, merge(second, third))))
    once = merge(first, second)
    assert merge(once, second) == once
