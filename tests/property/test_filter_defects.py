"""Filters with odd values and arguments: each is evaluated or refused, without a contained exception."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from random import Random
from typing import Any

import bson
import msgspec
import pytest
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.timestamp import Timestamp

from tests.helpers.filter_texts import NUMBERS, TEXTS, OddFilterTexts
from tests.helpers.tiers import parts
from tickertape.base.errors import BadFilter
from tickertape.filter import Filter, FilterInputs, compile_filter, compile_value
from tickertape.filter.contained_errors import DEFECTS
from tickertape.filter.functions.registry import FUNCTIONS
from tickertape.filter.index.filter_index import FilterIndex
from tickertape.payload import message_type

FILTERS = 160
FULL_PARTS = 125
"""A full run has this many times as many."""
SIGNATURES = [(f.name, f.signature, f.arguments[1]) for f in FUNCTIONS.values()]
ODD_VALUES: list[Any] = [
    None, [], {}, [None], [None, 2], [[], None], {"k": None}, {"k": {"k": [None, ""]}}, [{"k": []}, {}],
    [{"k": None}, {"k": 1}], 10**30, -(10**30), 2**64, 1e308, -1e308, 5e-324, -0.0, "NaN", "-inf", "1e400",
    "9999-12-31", "0001-01-01", "02-29", "2020-2020", "366", 253402300799, 253402300800, -62135596801, 1e18,
    "\x00", "\U0010ffff", "\ufffe", "ß\u01c5", "x" * 300, [1, "1", 1.0, True, None, "x"], ["", None, "x"],
]  # fmt: skip
BSON_VALUES: list[Any] = [
    DatetimeMS(2**62), DatetimeMS(-(2**62)), datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, tzinfo=UTC), Decimal128("NaN"),
    Decimal128("1E+6144"), Timestamp(2**32 - 1, 2**32 - 1), float("nan"), float("inf"),
    b"\xff", bson.Int64(2**63 - 1), bson.MinKey(), bson.Regex("("), bson.ObjectId(), bson.Code("x", {"a": 1}),
]  # fmt: skip


def _documents(values: list[Any]) -> list[dict[str, Any]]:
    rng = Random(7)
    return [{name: rng.choice(values) for name in ("a", "b", "c")} for _ in range(40)]


@cache
def _bodies(kind: str) -> list[bytes]:
    values = [*ODD_VALUES, *TEXTS, *NUMBERS]
    if kind == "json":
        deep = b'{"a":' + b"[" * 900 + b"]" * 900 + b',"b":' + b'{"k":' * 900 + b"1" + b"}" * 900 + b"}"
        odd = [
            deep,
            b'{"a":"\\ud800"}',
            b'{"a":' + b"9" * 5_000 + b"}",
            b'{"a":1e999}',
            b"[]",
            b"null",
            b'"x"',
        ]
        return [
            *(json.dumps(one).encode() for one in _documents(values)),
            *odd,
            b"",
            b"\xff",
            b'{"a":"\xff"}',
        ]
    small = [v for v in values if v.__class__ is not int or -(2**63) <= v < 2**63]
    if kind == "messagepack":
        some: list[Any] = [*small, float("nan"), float("inf"), b"\xff", msgspec.msgpack.Ext(5, b"x")]
        return [*map(msgspec.msgpack.encode, _documents(some)), b"\xc1", b"", b"\x90", b"\x93\xc0\xc0\xc0"]
    return [*map(bson.encode, _documents([*small, *BSON_VALUES])), b"", b"\x05\0\0\0\0", b"\x05\0\0\0"]


def _made(texts: OddFilterTexts, kind: str, count: int) -> list[Filter]:
    found: list[Filter] = []
    before = DEFECTS.count
    for _ in range(count):
        text = texts.filter()
        position = 0
        try:
            found.append(compile_filter(text, message_type(kind)))
            compile_value(text, message_type(kind))(_bodies(kind))
        except BadFilter as error:
            position = error.position
        assert 0 <= position <= len(text), text
        assert DEFECTS.count == before, (DEFECTS.last, text)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", parts(FULL_PARTS))
@pytest.mark.parametrize("kind", ["json", "messagepack", "bson"])
def test_filter_with_any_values_raises_no_exception(kind: str, part: int) -> None:
    before = DEFECTS.count
    rng = Random(f"{kind} {part}")
    texts = OddFilterTexts(rng.choice, SIGNATURES)
    bodies = _bodies(kind)
    size = len(bodies)
    context = FilterInputs(["t"] * size, ["1|1|"] * size, [None] * size, [""] * size, None, "c", "", 1e12)
    taken = 0
    for _ in range(FILTERS // 20):
        index: FilterIndex[int] = FilterIndex(message_type(kind))
        expected = {}
        for number, one in enumerate(_made(texts, kind, 20)):
            taken += 1
            hits = one.select(bodies, context)
            assert DEFECTS.count == before, (DEFECTS.last, one.text)
            if not one.needs & {"user", "client_name", "client_version"}:
                index.add(number, one)
                expected.update({number: hits} if hits else {})
        found = {key: indices.tolist() for key, indices in index.match(bodies, context)}
        assert DEFECTS.count == before, DEFECTS.last
        assert found == expected
    assert taken > FILTERS // 8
