"""Filter index: the same matches as a separate evaluation of each filter."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from tickertape.filter import Filter, FilterInputs, compile_filter
from tickertape.filter.index import filter_index as index_module
from tickertape.filter.index.columns import ColumnReading, ValueColumns
from tickertape.filter.index.filter_index import FilterIndex
from tickertape.filter.limits import filter_piece_steps_max, index_piece_messages_max, index_values_max
from tickertape.payload import message_type

JSON = message_type("json")


def _filter(text: str) -> Filter:
    return compile_filter(text, JSON)


def _index(*texts: str) -> FilterIndex[str]:
    index: FilterIndex[str] = FilterIndex(JSON)
    for text in texts:
        index.add(text, _filter(text))
    return index


def _bodies(*documents: Any) -> list[bytes]:
    return [json.dumps(document).encode() for document in documents]


def _found(
    index: FilterIndex[str], bodies: list[bytes], context: FilterInputs | None = None
) -> dict[str, list[int]]:
    return {key: indices.tolist() for key, indices in index.match(bodies, context)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/s = 'a'", [0]),
        ("/s IN ('a', 'b') AND /n > 2", [1]),
        ("/s = 'a' OR /s = 'c'", [0, 3]),
        ("/s = 'a' OR /n = 7", [0, 2]),
        ("/n = '7'", [2]),
        ("/n = 1 AND /s = 'a'", [0]),
        ("/n BETWEEN 2 AND 7", [1, 2, 3]),
        ("/n > 1 AND /n < 7", [1, 3]),
        ("/n >= 2 AND /m <= 1", [1]),
        ("3 < /n", [2, 3]),
        ("/s LIKE '^[ab]'", [0, 1]),
        ("/s LIKE 'a'", [0]),
        ("/s LIKE '^b'", [1]),
        ("/s BEGINS WITH ('b', 'c') AND /n > 2", [1, 3]),
        ("/s IS NULL", [2]),
        ("NOT /s = 'a'", [1, 3]),
        ("/n < /m", []),
        ("/n > /m", [1]),
        ("1 = 1", [0, 1, 2, 3]),
        ("1 = 2", []),
        ("/s = 'a' AND /n / 1 = 1 AND ABS(/n) + /n = 2", [0]),
    ],
)
def test_index_finds_every_kind_of_filter(text: str, expected: list[int]) -> None:
    bodies = _bodies({"s": "a", "n": 1}, {"s": "b", "n": 3, "m": 1}, {"n": 7}, {"s": "c", "n": 3.5})
    others = ["/s = 'zz'", "/n > 1000", "/s LIKE 'nothing'"]
    assert _found(_index(text, *others), bodies) == ({text: expected} if expected else {})
    alone = _filter(text)
    assert [at for at, body in enumerate(bodies) if alone.matches(body)] == expected


def test_index_finds_values_that_are_equal_in_the_filter_language() -> None:
    index = _index("/v = 24", "/v = '24'", "/v = 'x'", "/v = TRUE", "/v = 18446744073709551616")
    bodies = _bodies(
        {"v": 24}, {"v": "24.0"}, {"v": 24.0}, {"v": ["y", "24", "x"]}, {"v": True}, {"v": "1"}, {"v": 2**64},
        {"v": None}, {"v": ""}, {"v": []}, {"v": {"v": 24}}, {"v": [[24]]},
    )  # fmt: skip
    assert _found(index, bodies) == {
        "/v = 24": [0, 1, 2, 3],
        "/v = '24'": [0, 1, 2, 3],
        "/v = 'x'": [3],
        "/v = TRUE": [4, 5],
        "/v = 18446744073709551616": [6],
    }


def test_index_compares_other_values_with_intervals_like_a_filter() -> None:
    texts = ["/v > 5", "/v < 5", "/v BETWEEN 5 AND 70", "/v > 5 AND /w = 1"]
    values = ["abc", "7", " 7", [1, 9], [], None, {"a": 1}, 2**70, -(2**70), 2**53 + 1, True, "1e999"]
    bodies = _bodies(*[{"v": value, "w": 1} for value in values])
    expected = {text: [at for at, body in enumerate(bodies) if _filter(text).matches(body)] for text in texts}
    assert _found(_index(*texts), bodies) == expected


def test_equal_filters_share_an_entry_and_each_key_gets_matches() -> None:
    index: FilterIndex[int] = FilterIndex(JSON)
    for key, text in enumerate(["/a = 1", "/a=1", "( /a = 1 )", "/a = 2"]):
        index.add(key, _filter(text))
    assert {key: indices.tolist() for key, indices in index.match(_bodies({"a": 1}))} == {
        0: [0],
        1: [0],
        2: [0],
    }
    index.discard(1)
    assert sorted(key for key, _ in index.match(_bodies({"a": 1}))) == [0, 2]
    assert len(index) == 3
    assert 1 not in index


def test_filters_are_added_and_removed() -> None:
    index = _index("/a = 1", "/b > 1", "/c LIKE 'x'", "/a = /b")
    bodies = _bodies({"a": 2, "b": 2, "c": "x"})
    assert _found(index, bodies) == {"/b > 1": [0], "/c LIKE 'x'": [0], "/a = /b": [0]}
    for text in ("/b > 1", "/c LIKE 'x'", "/a = /b", "no such key"):
        index.discard(text)
    assert _found(index, bodies) == {}
    index.add("later", _filter("/a IN (2, 3) AND /c LIKE 'x'"))
    assert _found(index, bodies) == {"later": [0]}
    with pytest.raises(ValueError, match="is already in the index"):
        index.add("later", _filter("/a = 2"))


def test_index_matches_many_bodies_in_pieces() -> None:
    index = _index("/n = 7", "/n >= 2040", "/s LIKE '[05]$'")
    count = 2 * index_piece_messages_max + 3
    found = _found(index, _bodies(*[{"n": n, "s": f"{n}"} for n in range(count)]))
    assert found == {
        "/n = 7": [7],
        "/n >= 2040": list(range(2040, count)),
        "/s LIKE '[05]$'": list(range(0, count, 5)),
    }


def test_index_matches_filters_that_read_the_topic_name() -> None:
    index = _index("TOPIC_NAME() = 't'", "/a = 1 AND TOPIC_NAME() = 't'", "/a = 1")
    assert index.needs == {"topics"}
    found = _found(index, [*_bodies({"a": 1}, {"a": 1}), b"no json"], FilterInputs(topics=["t", "u", "t"]))
    assert found == {"TOPIC_NAME() = 't'": [0, 2], "/a = 1 AND TOPIC_NAME() = 't'": [0], "/a = 1": [0, 1]}


def test_index_refuses_filters_that_depend_on_the_subscriber() -> None:
    with pytest.raises(ValueError, match="depends on the subscriber"):
        _index("/a = CLIENT_NAME()")


def test_unreadable_body_is_counted_once_and_matches_filters_of_other_fields() -> None:
    index = _index("/a = 1", "/b = 1", "/b > 0", "/a = 1 AND /b = 1", "1 = 1")
    bodies = [b"no json", b'{"a":"\xff","b":1}', b'{"a":1,"b":1}']
    matches = index.match(bodies)
    assert {key: indices.tolist() for key, indices in matches} == {
        "/a = 1": [2], "/b = 1": [1, 2], "/b > 0": [1, 2], "/a = 1 AND /b = 1": [2], "1 = 1": [0, 1, 2],
    }  # fmt: skip
    assert matches.unreadable == 2


def test_index_leaves_too_costly_arrays_to_the_filter() -> None:
    texts = ["/a BETWEEN 'x' AND 'z'", "/a LIKE '9$'", "/a LIKE '^x' AND /a LIKE '8$'", "/b = 1", "/a = 'x3'"]
    bodies = _bodies({"a": [f"x{n}" for n in range(5_000)], "b": 1}, {"a": ["x9"], "b": 1}, {"a": ["x8"]})
    expected: dict[str, list[int]] = {}
    for text in texts:
        alone = _filter(text)
        hits = [at for at, body in enumerate(bodies) if alone.matches(body)]
        if hits:
            expected[text] = hits
    assert _found(_index(*texts), bodies) == expected
    assert _filter(texts[1]).matches(bodies[0]) is False


def test_index_reads_many_fields_with_several_readers() -> None:
    texts = [f"/f{n} = {n}" for n in range(300)]
    assert _found(_index(*texts), _bodies({"f3": 3, "f299": 299}, {"f200": 200})) == {
        "/f3 = 3": [0], "/f200 = 200": [1], "/f299 = 299": [0],
    }  # fmt: skip


def _wide(number: int) -> str:
    return " OR ".join(f"/f{number}_{field} = 1" for field in range(90))


def test_added_filter_keeps_the_readers_of_other_filters() -> None:
    index = _index(*map(_wide, range(9)))
    assert _found(index, _bodies({"f4_7": 1}, {"f8_89": 1})) == {_wide(4): [0], _wide(8): [1]}
    made = index._reading.readers_made
    assert made == 4  # of 256 fields each
    index.add("more", _filter(_wide(9)))
    assert _found(index, _bodies({"f9_0": 1})) == {"more": [0]}
    assert index._reading.readers_made <= made + 2
    for number in range(8):
        index.discard(_wide(number))
    assert _found(index, _bodies({"f8_0": 1, "f9_0": 1, "f1_0": 1})) == {_wide(8): [0], "more": [0]}
    assert len(index._reading) == 180
    assert sum(len(reader.paths) for reader in index._reading._readers) <= 360


def test_index_reads_many_fields_of_many_bodies_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    read = ColumnReading.columns

    def reading(self: ColumnReading, bodies: Sequence[bytes]) -> Generator[int, None, ValueColumns]:
        held.append(len(bodies) * len(self))
        return read(self, bodies)

    index = _index(*map(_wide, range(12)))
    bodies = _bodies(*[{f"f{number % 12}_3": 1} for number in range(400)])
    index.match(bodies[:12])  # compiles the filters before the measurement
    monkeypatch.setattr(ColumnReading, "columns", reading)
    with index.search() as search:
        steps = list(search.look_at(bodies, None, 0))
        assert [len(own) for _, own in search.matches()] == [34] * 4 + [33] * 8
    assert max(held) <= index_values_max
    assert len(held) == 2
    assert max(steps) < filter_piece_steps_max + 2_000
    assert sum(steps) > 12 * 90 * 400


def test_filters_with_too_many_fields_are_evaluated_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "index_paths_max", 200)
    index = _index(*map(_wide, range(5)))
    bodies = [*_bodies(*[{f"f{number}_3": 1} for number in range(5)]), b"{"]
    matches = index.match(bodies)
    assert {key: own.tolist() for key, own in matches} == {_wide(number): [number] for number in range(5)}
    assert (len(index._reading), matches.unreadable) == (180, 1)
    for number in (0, 4):
        index.discard(_wide(number))
    index.add("new", _filter(_wide(6)))
    assert len(index._reading) == 180
    assert _found(index, _bodies({"f6_1": 1}, {"f2_0": 1})) == {"new": [0], _wide(2): [1]}


def test_changes_during_a_search_take_effect_after_the_search() -> None:
    index = _index("/a = 1", "/a > 0")
    bodies = _bodies({"a": 1})
    with index.search() as search:
        steps = search.look_at(bodies, None, 0)
        next(steps)
        index.discard("/a = 1")
        index.add("new", _filter("/a < 5"))
        index.add("brief", _filter("/a < 6"))
        index.discard("brief")
        for _ in steps:
            pass
        assert sorted(key for key, _ in search.matches()) == ["/a = 1", "/a > 0"]
        with pytest.raises(RuntimeError, match="already in progress"), index.search():
            pass
    assert _found(index, bodies) == {"/a > 0": [0], "new": [0]}


@pytest.mark.parametrize(
    ("texts", "document"),
    [
        ([f"/a LIKE '^{n}.*9'" for n in range(50)], {"a": "9" * 20_000}),
        ([f"/a < {n}" for n in range(1_500)], {"a": [f"{n}" for n in range(50)]}),
        ([f"/a + {n} = /b" for n in range(1_000)], {"a": 1, "b": 2}),
    ],
)
def test_search_of_a_costly_body_yields_in_bounded_steps(texts: list[str], document: Any) -> None:
    index: FilterIndex[str] = FilterIndex(JSON)
    for number, text in enumerate(texts):
        index.add(f"{number}", _filter(text))
    with index.search() as search:
        steps = list(search.look_at(_bodies(document), None, 0))
    assert sum(steps) >= len(texts)
    assert max(steps) < filter_piece_steps_max + 2_000
    assert len(steps) > 1
