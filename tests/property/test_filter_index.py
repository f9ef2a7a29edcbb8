"""Filter index against single filters: equal matches while filters are added and removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.base.errors import BadFilter
from tickertape.filter import Filter, FilterInputs, compile_filter
from tickertape.filter.index import columns, predicates, search
from tickertape.filter.index import filter_index as index_module
from tickertape.filter.index.filter_index import FilterIndex
from tickertape.filter.limits import index_cells_max
from tickertape.payload import message_type

TEXTS = [
    "",
    "x",
    "abc",
    "abd",
    "b",
    "24",
    "24.0",
    "007",
    "7",
    "-1",
    "1e2",
    "5.",
    "NaN",
    "é",
    "1 ",
    "z\n",
    "x" * 300,
]
NUMBERS = [0, 1, 2, 5, 7, 24, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 0.5, 24.0, 7.5, -0.0, 1e300]
FIELDS = ["/a", "/b", "/c", "/a[0]", "/c/k"]
CONSTANTS = ["'b'", "24", "'24'", "7", "'abc'", "1", "TRUE", "0.5", "''", "NULL", "9007199254740993", "'x'"]
BOUNDS = ["0", "1", "5", "24", "-1", "0.5", "9007199254740993", "'7'"]
PATTERNS = ["b", "^a", "c$", "[0-9]+", "(?i)X", "^.$", "z|7", "^x"]


def _term(rng: Random, flat: bool) -> str:
    pick: Callable[[list[str]], str] = rng.choice
    fields = FIELDS[:3] if flat else FIELDS
    one, constant, low = pick(fields), pick(CONSTANTS), pick(BOUNDS)
    return pick(
        [
            f"{one} = {constant}",
            f"{constant} = {one}",
            f"{one} IN ({constant}, {pick(CONSTANTS)})",
            f"({one} = {constant} OR {pick(fields)} = {pick(CONSTANTS)})",
            f"{one} {pick(['<', '<=', '>', '>='])} {low}",
            f"{low} {pick(['<', '<=', '>', '>='])} {one}",
            f"{one} BETWEEN {low} AND {pick(BOUNDS)}",
            f"{one} LIKE '{pick(PATTERNS)}'",
            f"{one} NOT LIKE '{pick(PATTERNS)}'",
            f"{one} BEGINS WITH ('a', {constant})",
            f"{one} != {constant}",
            f"{one} IS NULL",
            f"NOT ({one} > {low})",
            f"LENGTH({one}) + 1 > {low}",
            f"{one} < {pick(fields)}",
            "TOPIC_NAME() = 't'",
        ]
    )


def _filter_text(rng: Random, flat: bool) -> str:
    conjunctions = [
        " AND ".join(_term(rng, flat) for _ in range(rng.choice((1, 1, 2, 3, 10))))
        for _ in range(rng.choice((1, 1, 1, 2)))
    ]
    return " OR ".join(f"({one})" for one in conjunctions)


def _value(rng: Random, depth: int = 1) -> Any:
    chance = rng.random()
    if chance < 0.8 or not depth:
        return rng.choice([*TEXTS, *NUMBERS, None, True, False])
    if chance < 0.92:
        return [_value(rng, 0) for _ in range(rng.randrange(5))]
    return rng.choice([{"k": _value(rng, 0)}, [[1], {"k": 1}, 2], [{"k": "b"}, {"k": 7}]])


def _body(rng: Random, kind: str) -> bytes:
    if rng.random() < 0.05:
        return b"\xc1 nothing"
    if kind == "nvfix":
        names = rng.choices("abc", k=rng.randrange(5))
        return "".join(f"{name}={rng.choice(TEXTS)}\x01" for name in names).encode()
    document = {name: _value(rng) for name in "abc" if rng.random() < 0.8}
    if kind == "json":
        if rng.random() < 0.05:
            return b'{"a":"\xff","b":24}'
        return json.dumps(document).encode()
    small = json.dumps(document).replace(str(2**64), "3")  # MessagePack has no larger integers
    return msgspec.msgpack.encode(json.loads(small))


def _agree(index: FilterIndex[int], have: dict[int, Filter], bodies: list[bytes], topics: list[str]) -> None:
    expected = {}
    unreadable = set()
    for key, one in have.items():
        hits = []
        for at, body in enumerate(bodies):
            before = one.unreadable
            if one.matches(body, FilterInputs(topics=topics[at : at + 1])):
                hits.append(at)
            if one.unreadable > before:
                unreadable.add(at)
        if hits:
            expected[key] = hits
    matches = index.match(bodies, FilterInputs(topics=topics))
    found = {key: indices.tolist() for key, indices in matches}
    assert found == expected, [
        (have[key].text, [bodies[at] for at in {*found.get(key, []), *expected.get(key, [])}])
        for key in have
        if found.get(key) != expected.get(key)
    ]
    assert matches.unreadable == len(unreadable)


def _live(seed: int, kind: str) -> None:
    rng = Random(seed)
    index: FilterIndex[int] = FilterIndex(message_type(kind))
    have: dict[int, Filter] = {}
    for step in range(3):
        for number in range(rng.choice((1, 4, 12))):
            try:
                one = compile_filter(_filter_text(rng, kind == "nvfix"), index.type)
            except BadFilter:
                continue  # too many parts that read whole texts
            have[step * 100 + number] = one
            index.add(step * 100 + number, one)
        for key in [key for key in have if rng.random() < 0.3]:
            index.discard(key)
            del have[key]
        bodies = [_body(rng, kind) for _ in range(rng.choice((1, 6)))]
        _agree(index, have, bodies, [rng.choice("tu") for _ in bodies])
    assert len(index) == len(have)


@pytest.mark.parametrize("kind", ["json", "messagepack", "nvfix"])
@given(seed=st.integers(0, 2**32))
def test_filter_index_matches_like_single_filters(kind: str, seed: int) -> None:
    _live(seed, kind)


def test_filter_index_with_a_tiny_cache_matches_like_single_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicates, "index_cells_max", 64)
    monkeypatch.setattr(predicates, "index_piece_messages_max", 8)
    assert index_cells_max > 64
    for seed in range(25):
        _live(seed, "json")


@pytest.mark.parametrize("paths", [0, 2, 4])
def test_filter_index_with_fewer_fields_than_the_filters_matches_like_single_filters(
    paths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "index_paths_max", paths)
    monkeypatch.setattr(search, "index_values_max", 6)
    for seed in range(5):
        _live(seed, "json")


@pytest.mark.parametrize("kind", ["json", "messagepack", "nvfix"])
def test_filter_index_with_small_readers_matches_like_single_filters(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "paths_per_reader_max", 2)
    for seed in range(5):
        _live(seed, kind)
