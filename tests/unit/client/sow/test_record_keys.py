"""Generated keys that a client computes: equal to those of the engine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.client.sow.record_keys import RecordKeys, keys_of
from tickertape.engine.sow.state.keys import KeyReader
from tickertape.payload.canonical import generated_key
from tickertape.wire.commands import GroupBegin

SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), st.text()
)


def group(topic: str = "orders", **fields: Any) -> GroupBegin:
    return GroupBegin(
        sub_id="q", topic=topic, as_of="0", position=0, **{"key": ("/id",), "domain": topic} | fields
    )


def keys(*groups: GroupBegin, whole: bool = True) -> RecordKeys:
    return keys_of(groups, whole=whole)


@given(st.lists(SCALARS, min_size=1, max_size=3), st.booleans())
def test_key_equals_the_key_of_the_engine(parts: list[Any], over_pattern: bool) -> None:
    fields = tuple(f"/k{number}" for number in range(len(parts)))
    body = msgspec.json.encode({f"k{number}": part for number, part in enumerate(parts)} | {"x": [1]})
    reader = KeyReader(fields, "json", topic_in_key=over_pattern)
    column = reader.read([body], topics=["orders/1"] if over_pattern else None)
    found = keys(group(key=fields, domain="d", pattern="^orders/" if over_pattern else ""))
    key = None if column.bad else generated_key("d", column.keys[0])
    assert found.key("orders/1", body) == key


def test_nested_and_repeated_paths_are_read() -> None:
    found = keys(group(key=("/a/b", "/c[1]")))
    expected = KeyReader(("/a/b", "/c[1]"), "json").read([b'{"a":{"b":1},"c":[0,"x"]}'])
    body = b'{"c":[0,"x",2],"a":{"b":1.0}}'
    assert found.key("orders", body) == generated_key("orders", expected.keys[0])


@pytest.mark.parametrize("body", [b"", b"{", b'{"id":[1]}', b'{"id":{}}', b"\xff"])
def test_body_without_a_valid_key_has_none(body: bytes) -> None:
    assert keys(group()).key("orders", body) is None


def test_absent_field_is_null_in_a_whole_body_only() -> None:
    null = KeyReader(("/id",), "json", missing="null").read([b"{}"]).keys[0]
    assert keys(group()).key("orders", b"{}") == generated_key("orders", null)
    assert keys(group(), whole=False).key("orders", b"{}") is None
    assert keys(group(), whole=False).key("orders", b'{"id":1}') is not None


def test_explicit_keys_are_not_computed() -> None:
    assert keys(group(key=(), explicit=True)).key("orders", b'{"id":1}') is None


def test_each_topic_has_separate_keys() -> None:
    found = keys(
        group("orders"),
        group("regions", key=("/name",), pattern="^region/"),
        group("orders/x", key=("/other",)),
    )
    body = b'{"id":1,"name":"n","other":2}'
    assert found.key("orders", body) == keys(group("orders")).key("orders", body)
    assert found.key("orders/x", body) == keys(group("orders/x", key=("/other",))).key("orders/x", body)
    over_pattern = keys(group("regions", key=("/name",), pattern="^region/"))
    assert found.key("region/eu", body) == over_pattern.key("region/eu", body)
    assert found.key("unknown", body) is None


def test_message_type_of_the_topic_is_used() -> None:
    body = b"id=7\x01x=1\x01"
    found = keys(group(types={"nvfix": ("orders",)}))
    expected = KeyReader(("/id",), "nvfix").read([body])
    assert found.key("orders", body) == generated_key("orders", expected.keys[0])


def test_fields_and_types_of_a_newer_server_give_no_key() -> None:
    assert keys(group(key=("not a path",))).key("orders", b'{"id":1}') is None
    assert keys(group(types={"new": ("orders",)})).key("orders", b'{"id":1}') is None
    assert keys(group("a"), group("b", pattern="^[")).key("c", b'{"id":1}') is None
