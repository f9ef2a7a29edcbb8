"""Patterns of SOW topics: the SOW topic of a topic, and patterns without a common topic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tickertape.base.names import is_pattern
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.filter import compile_topic_pattern
from tickertape.filter.pattern_overlap import covers, literal_start, may_overlap

TOPICS = st.text("ab/", min_size=1, max_size=4)
PIECES = st.sampled_from(
    ["a", "b", "/", "a?", "b*", "a+", "b{0,1}", ".", "[ab]", "(a|b)", "$", "\\Qa\\E", "(?i)A"]
)
PATTERNS = st.builds(
    lambda start, pieces: start + "".join(pieces),
    st.sampled_from(["^", "", "(^)"]),
    st.lists(PIECES, max_size=4),
).filter(is_pattern)


@given(PATTERNS, PATTERNS, st.lists(TOPICS, max_size=20))
def test_patterns_that_match_one_topic_may_overlap(one: str, other: str, topics: list[str]) -> None:
    first, second = compile_topic_pattern(one), compile_topic_pattern(other)
    for topic in topics:
        if first.search(topic):
            assert topic.startswith(literal_start(one))
            assert not second.search(topic) or may_overlap(one, other)
            assert second.search(topic) or not covers(other, one)


@given(
    st.dictionaries(TOPICS, st.none() | PATTERNS, max_size=5),
    st.none() | st.frozensets(TOPICS),
    st.lists(TOPICS, min_size=1, max_size=20),
)
def test_topic_belongs_to_the_first_sow_topic_with_the_name_or_a_matching_pattern(
    tables: dict[str, str | None], recorded: frozenset[str] | None, topics: list[str]
) -> None:
    sow = [SowDefinition(name, pattern=text) for name, text in tables.items()]
    catalog = TopicCatalog(recorded, sow=sow)
    for topic in [*topics, *tables]:
        persistent = recorded is None or topic in recorded
        matching = [
            one
            for one in sow
            if one.pattern is not None and persistent and compile_topic_pattern(one.pattern).search(topic)
        ]
        named = [one for one in sow if one.name == topic]
        assert catalog.sow_of(topic) == next(iter([*named, *matching]), None)
