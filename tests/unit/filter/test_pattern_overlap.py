"""Overlap of topic patterns: literal starts, disjoint patterns, and patterns that cover others."""

from __future__ import annotations

import pytest

from tickertape.filter.pattern_overlap import covers, literal_start, may_overlap


@pytest.mark.parametrize(
    ("pattern", "start"),
    [
        ("^orders/", "orders/"),
        ("^orders/[0-9]", "orders/"),
        ("^orders$", "orders"),
        ("^orders+", "orders"),
        ("^orders*", "order"),
        ("^orders?", "order"),
        ("^orders{0}", "order"),
        ("^o?", ""),
        ("^*", ""),
        ("^", ""),
        ("^a.b", "a"),
        ("^a|b", ""),
        ("orders/", ""),
        ("(?i)^a", ""),
        ("^(?i)a", ""),
        ("^\\Qa", ""),
    ],
)
def test_literal_start_is_the_text_before_the_first_metacharacter(pattern: str, start: str) -> None:
    assert literal_start(pattern) == start


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("^a/", "^b/", False),
        ("^a/", "^a/b", True),
        ("^a", "^a/b", True),
        ("^a/", "/b$", True),
        ("^ab?", "^ac", True),
        ("^ab", "^ac", False),
    ],
)
def test_patterns_with_different_literal_starts_do_not_overlap(one: str, other: str, overlap: bool) -> None:
    assert may_overlap(one, other) is may_overlap(other, one) is overlap


@pytest.mark.parametrize(
    ("wider", "narrower", "covered"),
    [
        (".*", "^a", True),
        ("a|b", "a|b", True),
        ("^a", "^a/", True),
        ("^a", "^a/(bc)$", True),
        ("^a/", "^a", False),
        ("^a", "^a?", False),
        ("^a", "a", False),
        ("^a", "^a|b", False),
        ("^a.", "^a.b", False),
        ("^a", ".*", False),
    ],
)
def test_pattern_covers_equal_patterns_and_patterns_with_the_same_start(
    wider: str, narrower: str, covered: bool
) -> None:
    assert covers(wider, narrower) is covered
