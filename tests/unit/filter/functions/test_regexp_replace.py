"""REGEXP_REPLACE: results and costs."""

from __future__ import annotations

import re
from random import Random

import pytest

from tickertape.base.errors import BadFilter
from tickertape.filter import compile_filter
from tickertape.filter.contained_errors import DEFECTS
from tickertape.filter.functions.arrays import Arrays, TooCostly
from tickertape.filter.functions.regexp_replace import MATCH_WORK, reads_ahead, replacing
from tickertape.filter.index.filter_index import FilterIndex
from tickertape.filter.limits import array_work_max, text_result_characters_max
from tickertape.payload import message_type

JSON = message_type("json")


@pytest.mark.parametrize(
    "pattern",
    [
        "a",
        "a+",
        "a*",
        "b?",
        "(a|b)c",
        "^a",
        "c$",
        r"\b",
        r"\bab",
        "(?i)A",
        "[^a]",
        "é",
        ".",
        "",
        "ab|a",
        "a(bc)*",
    ],
)
def test_regexp_replace_agrees_with_python(pattern: str) -> None:
    rng = Random(pattern)
    replace = replacing(pattern)
    for _ in range(200):
        text = "".join(rng.choices("aabbcé ", k=rng.randrange(1, 12)))
        by = rng.choice(["", "x", r"\q", "aa", "é"])
        expected = re.sub(pattern, by.replace("\\", "\\\\"), text, flags=re.ASCII) or None
        assert replace(text, by, Arrays()) == expected, text


@pytest.mark.parametrize(
    ("value", "by", "expected"),
    [
        (None, "x", None),
        ("", "x", None),
        (12, "x", "x2"),
        ("1", None, None),
        ("12", None, "2"),
        ("1", 7.0, "7"),
    ],
)
def test_regexp_replace_converts_arguments(value: object, by: object, expected: str | None) -> None:
    assert replacing("1")(value, by, Arrays()) == expected


def test_regexp_replace_gives_null_above_the_longest_text() -> None:
    half = text_result_characters_max // 2
    assert replacing("a")("a" * 3 + "b", "x" * (half // 2), Arrays()) is not None
    assert replacing("a")("a" * 4 + "b", "x" * half, Arrays()) is None
    assert replacing("z")("b" * (text_result_characters_max + 1), "x", Arrays()) is None


@pytest.mark.parametrize("pattern", ["a", "[0-9]+", "(ab){3}", "a|bc", "(?i)x", "[^,]+", "ab*"])
def test_pattern_with_short_lookahead_is_charged_per_match(pattern: str) -> None:
    assert reads_ahead(pattern) is not None


@pytest.mark.parametrize("pattern", ["a.*b|c", "a(.*b)?", "<[^>]*>", "a$", r"a\b", "x|^b", ".*?a"])
def test_pattern_that_may_read_to_the_end_has_no_read_ahead_limit(pattern: str) -> None:
    assert reads_ahead(pattern) is None


def test_too_many_matches_raise_too_costly() -> None:
    most = array_work_max // MATCH_WORK
    assert replacing("a")("a" * most, "b", Arrays()) == "b" * most
    with pytest.raises(TooCostly):
        replacing("a")("a" * (most + 1), "b", Arrays())


def test_too_costly_body_is_counted_as_unreadable_by_filter_and_index() -> None:
    before = DEFECTS.count
    text = "REGEXP_REPLACE(/a, 'a', '') = 'b'"
    found = compile_filter(text, JSON)
    bodies = [b'{"a":"ab"}', b'{"a":"' + b"a" * 5_000 + b'b"}', b'{"a":"aaab"}']
    assert found.select(bodies) == [0, 2]
    assert found.unreadable == 1
    index: FilterIndex[int] = FilterIndex(JSON)
    index.add(1, compile_filter(text, JSON))
    index.add(2, compile_filter("/a ENDS WITH 'b'", JSON))
    matches = index.match(bodies)
    assert {key: at.tolist() for key, at in matches} == {1: [0, 2], 2: [0, 1, 2]}
    assert matches.unreadable == 1
    assert DEFECTS.count == before


def test_too_costly_constant_is_refused_with_the_position() -> None:
    with pytest.raises(BadFilter, match="too expensive") as caught:
        compile_filter(f"/a = REGEXP_REPLACE('{'a' * 3_000}', 'a', 'b')", JSON)
    assert caught.value.position == 5


def test_patterns_of_regexp_replace_count_in_the_filter_cost() -> None:
    with pytest.raises(BadFilter, match=r"too expensive\. Use fewer"):
        compile_filter("REGEXP_REPLACE(/a, 'a.{100}b', '') = 'x'", JSON)
    costly = "REGEXP_REPLACE(/a, '[ab]*a[ab]{8}c', '') = 'x' AND /b LIKE '[xy]*x[xy]{8}z'"
    with pytest.raises(BadFilter, match="too expensive in total"):
        compile_filter(costly, JSON)
