"""Cache of predicate results: repeated values, within one limit for all tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import numpy as np
import pytest

from tickertape.filter import compile_filter
from tickertape.filter.functions.arrays import Arrays
from tickertape.filter.index import predicates
from tickertape.filter.index.predicates import PredicateCache, SeenValues, Test
from tickertape.filter.index.terms import Single, terms_of
from tickertape.filter.index.value_cache import ValueCache
from tickertape.filter.limits import index_prefix_characters_max
from tickertape.payload import message_type


def _condition(text: str) -> Single:
    (found,) = terms_of(compile_filter(text, message_type("json")).tree).singles
    return found


def _true(table: PredicateCache, row: int, values: list[Any], met: SeenValues | None = None) -> list[int]:
    """Return the indexes of the values that satisfy the condition of a row."""
    asking = table.found(np.array([row]), values, met or table.met(values), set())
    while True:
        try:
            next(asking)
        except StopIteration as done:
            return [at for _, places in done.value for at in places.tolist()]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the values that conditions were evaluated for."""
    found: list[Any] = []

    make = predicates.test_of

    def noting(condition: Any) -> Test:
        test = make(condition)

        def noted(value: Any, arrays: Arrays) -> bool:
            found.append(value)
            return test(value, arrays)

        return noted

    monkeypatch.setattr(predicates, "test_of", noting)
    return found


def test_repeated_value_is_evaluated_at_most_twice(asked: list[Any]) -> None:
    table = PredicateCache(ValueCache())
    row = table.add(_condition("/a LIKE '^b.*'"))
    values = [f"{letter}{number}" for number in range(20) for letter in "ab"]
    for _ in range(50):
        assert _true(table, row, values) == [at for at, value in enumerate(values) if value[0] == "b"]
    assert max(map(asked.count, values)) == 2


def test_alternating_texts_with_one_hash_slot_are_recognised() -> None:
    memory = ValueCache()
    salt = 0
    place = hash("one") % (1 << 16)
    other = next(text for n in range(1 << 22) if hash(text := str(n)) % (1 << 16) == place)
    assert not memory.is_met_again(salt, "one")
    assert not memory.is_met_again(salt, other)
    for _ in range(3):
        assert memory.is_met_again(salt, "one")
        assert memory.is_met_again(salt, other)


def test_texts_seen_once_are_not_cached(asked: list[Any]) -> None:
    table = PredicateCache(ValueCache())
    row = table.add(_condition("/a LIKE '^b.*'"))
    _true(table, row, [None] * 100)
    before = table.remembered_bytes
    for number in range(300):
        values = [f"b{number}/{at}" for at in range(100)]
        assert _true(table, row, values) == [*range(100)]
    assert len(asked) == 30_100
    assert table.remembered_bytes == before


def test_prefixes_are_looked_up_instead_of_evaluated_one_by_one(asked: list[Any]) -> None:
    table = PredicateCache(ValueCache())
    prefixes = [*map(str, range(1_000)), "é", "9" * index_prefix_characters_max]
    rows = {prefix: table.add(_condition(f"/a LIKE '^{prefix}'")) for prefix in prefixes}
    several = table.add(_condition("/a BEGINS WITH ('98', '7', 'é')"))
    values = [*map(str, range(950, 1_150)), "", "é1", "x", "9" * 100]
    for prefix in prefixes[:50:7] + prefixes[90:100] + prefixes[-2:]:
        expected = [at for at, value in enumerate(values) if value.startswith(prefix)]
        assert _true(table, rows[prefix], values) == expected
    expected = [at for at, value in enumerate(values) if value.startswith(("98", "7", "é"))]
    assert _true(table, several, values) == expected
    assert not asked
    assert _true(table, rows["98"], [98, "98", ["1", "98"], None, True]) == [0, 1, 2]
    assert len(asked) == 4
    for prefix in prefixes[::2]:
        table.discard(_condition(f"/a LIKE '^{prefix}'"))
    table.discard(_condition("/a BEGINS WITH ('98', '7', 'é')"))
    assert sum(map(len, table._prefixes.values())) == len(prefixes) // 2
    assert _true(table, rows["99"], values) == [at for at, v in enumerate(values) if v.startswith("99")]


def test_long_prefixes_are_evaluated_one_by_one(asked: list[Any]) -> None:
    table = PredicateCache(ValueCache())
    prefix = "x" * (index_prefix_characters_max + 1)
    row = table.add(_condition(f"/a LIKE '^{prefix}'"))
    assert _true(table, row, [prefix, prefix[1:], prefix + "y"]) == [0, 2]
    assert len(asked) == 3


def test_shared_value_cache_stays_below_the_memory_limit() -> None:
    memory = ValueCache(400_000)
    rng = Random(3)
    tables = [PredicateCache(memory) for _ in range(6)]
    rows = [table.add(_condition(f"/a LIKE '^{number}'")) for number, table in enumerate(tables)]
    most = 0
    for _ in range(1_500):
        number = rng.randrange(6)
        values = [f"{rng.randrange(1_000)}" for _ in range(40)]
        expected = [at for at, value in enumerate(values) if value[0] == str(number)]
        assert _true(tables[number], rows[number], values) == expected
        most = max(most, memory.bytes)
    assert 200_000 < most <= 400_000 * 17 // 16
    del tables
    assert memory.bytes == 0


def test_results_stay_correct_when_the_cache_is_cleared_during_a_search() -> None:
    table = PredicateCache(ValueCache())
    row = table.add(_condition("/a LIKE '^b'"))
    values = ["b", "c", 7, "b", "bb"] * 20
    for _ in range(3):
        _true(table, row, values)
    met = table.met(values)
    table.forget()
    assert table.remembered_bytes == 0
    assert _true(table, row, values, met) == [at for at, value in enumerate(values) if str(value)[0] == "b"]


def test_added_and_removed_conditions_keep_separate_results() -> None:
    rng = Random(4)
    table = PredicateCache(ValueCache(2_000))
    rows: dict[str, int] = {}
    values: Iterable[Any] = ["a", "b", "ab", "ba", 7, None, "7", "x" * 300 + "b"]
    patterns = ["^a", "b$", "7", "^.$", "x+b", "^b", "a", "[0-9]", "z"]
    alone = {text: compile_filter(f"/a LIKE '{text}'", message_type("json")) for text in patterns}
    for _ in range(60):
        text = rng.choice(patterns)
        if text in rows:
            table.discard(_condition(f"/a LIKE '{text}'"))
            del rows[text]
        else:
            rows[text] = table.add(_condition(f"/a LIKE '{text}'"))
        some = rng.choices([*values], k=rng.randint(1, 90))
        for pattern, row in rows.items():
            bodies = [json.dumps({"a": value}).encode() for value in some]
            assert _true(table, row, some) == alone[pattern].select(bodies)
    assert len(table) == len(rows)
