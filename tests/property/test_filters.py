"""Filters: the generated function agrees with a walk over the tree that compares arrays pair by pair."""

from __future__ import annotations

import json
import re
from typing import Any

import bson
import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers.bodies import values_of
from tests.helpers.filter_interpreter import Interpreter
from tests.helpers.filter_texts import NUMBERS, TEXTS, WORDS, FilterTexts
from tickertape.base.errors import BadFilter, BadPath
from tickertape.filter import compile_filter
from tickertape.filter.language.ast import fields
from tickertape.filter.language.parser import parse
from tickertape.payload import MessageType, message_type

NAMES = ("a", "b", "c")
TEXT_VALUES = st.sampled_from(TEXTS)
NUMBER_VALUES = st.sampled_from(NUMBERS)
SCALARS = st.sampled_from([*WORDS, *TEXTS, *NUMBERS])
VALUES = (
    SCALARS
    | st.lists(SCALARS, max_size=5)
    | st.lists(TEXT_VALUES, max_size=5)
    | st.lists(NUMBER_VALUES, max_size=5)
)
WIDE = st.sampled_from([2**63, 2**64 - 1])
ODD = st.sampled_from([{"k": 1}, [{"k": 1}, 2], [[1], 2]])
BINARY = st.sampled_from([b"", b"abc", b"\xff", b"24"])


@st.composite
def filters(draw: st.DrawFn) -> str:
    return FilterTexts(lambda options: draw(st.sampled_from(options))).filter()


FILTERS = filters()


def bodies(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(NAMES), values, max_size=3)


def agrees(kind: MessageType, body: bytes, text: str) -> None:
    try:
        found = compile_filter(text, kind)
    except BadFilter as error:
        # too many scans, or a path that FIX does not have
        if re.search("more than|fields of (nv)?fix", str(error)):
            return
        raise
    written = parse(text)
    paths = fields(written)
    try:
        reader = kind.reader(paths)
    except BadPath:
        if kind.name in ("fix", "nvfix"):
            return  # conditions that are always false are dropped, with paths that FIX does not have
        raise
    values = dict(zip(paths, values_of(reader, reader.decode(body)), strict=True))
    expected = Interpreter(values.__getitem__).truth(written) is True
    assert found.matches(body) is expected, (found.source, values)


@example({"a": [2**53 + 1]}, "/a = 9007199254740992.0")
@example({"a": ["x", None]}, "NOT /a = 'y'")
@given(bodies(VALUES | ODD | WIDE), FILTERS)
def test_filter_on_json_equals_the_interpreter(document: dict[str, Any], text: str) -> None:
    agrees(message_type("json"), json.dumps(document, ensure_ascii=False).encode(), text)


@given(bodies(VALUES | ODD | WIDE | BINARY | st.lists(BINARY, max_size=2) | st.just(float("nan"))), FILTERS)
def test_filter_on_messagepack_equals_the_interpreter(document: dict[str, Any], text: str) -> None:
    agrees(message_type("messagepack"), msgspec.msgpack.encode(document), text)


@given(bodies(VALUES | ODD | BINARY | st.just(float("inf"))), FILTERS)
def test_filter_on_bson_equals_the_interpreter(document: dict[str, Any], text: str) -> None:
    agrees(message_type("bson"), bson.encode(document), text)


@given(st.lists(st.tuples(st.sampled_from(NAMES), TEXT_VALUES), max_size=6), FILTERS)
def test_filter_on_nvfix_equals_the_interpreter(pairs: list[tuple[str, str]], text: str) -> None:
    body = "".join(f"{name}={value}\x01" for name, value in pairs).encode()
    agrees(message_type("nvfix"), body, text)


@given(st.lists(st.tuples(st.sampled_from(["1", "2", "35"]), TEXT_VALUES), max_size=6), FILTERS)
def test_filter_on_fix_equals_the_interpreter(pairs: list[tuple[str, str]], text: str) -> None:
    for name, tag in zip(("/c/k", *(f"/{n}" for n in NAMES)), ("/35", "/1", "/2", "/35"), strict=True):
        text = text.replace(name, tag)
    body = "".join(f"{name}={value}\x01" for name, value in pairs).encode()
    agrees(message_type("fix"), body, text)
