"""Sets of topics: names, patterns, both, and their cache."""

from __future__ import annotations

import pytest

from tickertape.base.errors import BadTopic
from tickertape.filter import TopicSet, compile_topic_pattern
from tickertape.filter.limits import recorded_topics_kept_max

TOPICS = ["orders", "orders/ny", "fx/eur/spot", "fx/eur/forward", "FX/eur", "my orders", "", "fx"]


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["orders"],
        ["^orders/"],
        ["orders", "^fx/.*/spot$"],
        ["^fx|ny$", "(?i)^fx", "s$", "orders"],
        ["(?:a{5}){9}b|spot", "(?:b{5}){9}c|ny"],
    ],
)
def test_topic_set_contains_topics_of_names_and_patterns(names: list[str]) -> None:
    topics = TopicSet(names)
    patterns = [compile_topic_pattern(name) for name in names if not name.isalpha()]
    for topic in TOPICS * 2:
        assert (topic in topics) == (topic in names or any(p.search(topic) for p in patterns))


def test_patterns_that_are_too_costly_together_are_matched_one_by_one() -> None:
    names = [f"{letter}.{{8}}{letter}" for letter in "abcdefgh"]
    topics = TopicSet(names)
    assert len(topics._patterns) > 1
    assert "xxa12345678a" in topics
    assert "h12345678h" in topics
    assert "h12345678a" not in topics


def test_flags_of_one_pattern_do_not_affect_another() -> None:
    topics = TopicSet(["(?i)^fx", "^orders$"])
    assert "FX" in topics
    assert "ORDERS" not in topics


def test_invalid_topic_pattern_is_refused() -> None:
    with pytest.raises(BadTopic, match=r"look-ahead"):
        TopicSet(["orders", "(?=a)"])


def test_too_many_patterns_are_refused_before_compilation() -> None:
    with pytest.raises(BadTopic, match=r"Too many topic patterns: 65\. Use at most 64"):
        TopicSet([*(f"^{number}" for number in range(64)), "(?=a)"])


def test_topic_set_cache_is_bounded() -> None:
    topics = TopicSet(["^a"])
    for number in range(recorded_topics_kept_max + 10):
        assert f"a{number}" in topics
        assert len(topics._known) <= recorded_topics_kept_max
