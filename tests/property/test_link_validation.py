"""Validation of links compared with a naive evaluation of single topics."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.helpers.link_facts import facts, incoming, origin
from tickertape.base.names import is_pattern
from tickertape.engine.replication.link_facts import LinkFacts, SowFacts, TopicFacts
from tickertape.engine.replication.routes import ReplicationRule
from tickertape.engine.replication.validation import mismatches
from tickertape.filter.pattern_overlap import may_overlap

TOPICS: Final = ("a", "a/1", "a/2", "ab", "b", "b/1", "c")
PATTERNS: Final = (".*", "^a", "^a/", "^a/1", "^b", "1$", "^(a|b)$")

RULES = st.lists(
    st.builds(
        ReplicationRule, topic=st.sampled_from(TOPICS + PATTERNS), filter=st.none(), sync=st.booleans()
    ),
    max_size=4,
)
TABLES = st.builds(
    SowFacts,
    name=st.sampled_from(TOPICS),
    pattern=st.none() | st.sampled_from(PATTERNS),
    key=st.sampled_from([(), ("/a",)]),
    key_domain=st.sampled_from(["x", "y"]),
)
SOW = st.lists(TABLES, max_size=3, unique_by=lambda table: table.name)
RECORDED = st.none() | st.lists(st.sampled_from(TOPICS + PATTERNS), max_size=4).map(tuple)


def with_earlier_patterns(tables: list[SowFacts]) -> tuple[SowFacts, ...]:
    """Return the tables with the patterns of earlier ones, as the configuration has them."""
    found: list[SowFacts] = []
    for table in tables:
        pattern = table.pattern
        earlier = [
            one.pattern for one in found if one.pattern and pattern and may_overlap(one.pattern, pattern)
        ]
        found.append(msgspec.structs.replace(table, earlier_patterns=tuple(earlier)))
    return tuple(found)


KNOWN = st.builds(
    TopicFacts,
    recorded=RECORDED,
    message_types=st.dictionaries(st.sampled_from(TOPICS), st.just("fix"), max_size=2),
    sow=SOW.map(with_earlier_patterns),
)


def matches(topic: str, name: str) -> bool:
    return re.search(name, topic) is not None if is_pattern(name) else topic == name


def rule_of(rules: list[ReplicationRule], topic: str) -> ReplicationRule | None:
    return next((rule for rule in rules if matches(topic, rule.topic)), None)


def has(known: TopicFacts, topic: str) -> bool:
    return known.recorded is None or any(matches(topic, name) for name in known.recorded)


def owner(known: TopicFacts, topic: str) -> object:
    """Return the parts of a SOW topic that decide about the records of a topic, or None."""
    named = [table for table in known.sow if table.name == topic]
    patterned = [table for table in known.sow if table.pattern is not None and matches(topic, table.pattern)]
    table = next(iter([*named, *patterned]), None)
    if table is None:
        return None
    return (table.name, table.key, table.key_domain if table.key else "")


@pytest.mark.slow
@given(RULES, RULES, KNOWN, KNOWN)
def test_topics_of_a_link_without_mismatches_are_alike_at_both_servers(
    rules: list[ReplicationRule], back: list[ReplicationRule], here: TopicFacts, there: TopicFacts
) -> None:
    found = {
        one.check for one in mismatches(facts_of("a", "b", rules, here), facts_of("b", "a", back, there))
    }
    for topic in TOPICS:
        rule, answer = rule_of(rules, topic), rule_of(back, topic)
        if rule is None or not has(here, topic):
            continue
        event("replicated topic")
        assert "txlog" in found or has(there, topic)
        assert "replicate" in found or answer is not None
        assert "sync_type" in found or not rule.sync or answer is None or answer.sync
        assert "message_type" in found or here.message_type(topic) == there.message_type(topic)
        assert "sow" in found or owner(here, topic) == owner(there, topic)


@given(SOW, st.data())
def test_records_of_a_link_without_mismatches_are_alike_with_tables_in_any_order_or_missing(
    tables: list[SowFacts], data: st.DataObject
) -> None:
    some = data.draw(st.permutations(tables))[: data.draw(st.integers(0, len(tables)))]
    here, there = (TopicFacts(sow=with_earlier_patterns(one)) for one in (tables, some))
    every = [ReplicationRule(topic=".*", sync=True)]
    found = mismatches(facts_of("a", "b", every, here), facts_of("b", "a", every, there))
    alike = [owner(here, topic) == owner(there, topic) for topic in TOPICS]
    event(f"alike: {all(alike)}")
    assert found or all(alike)
    assert tables != some or not found


@given(RULES, KNOWN)
def test_servers_with_equal_configurations_fit(rules: list[ReplicationRule], known: TopicFacts) -> None:
    assert mismatches(facts_of("a", "b", rules, known), facts_of("b", "a", rules, known)) == []


@given(RULES, RULES, st.sampled_from(["", "^c$", "d", ".*"]))
def test_synchronous_topics_of_a_link_without_mismatches_pass_every_group(
    rules: list[ReplicationRule], received: list[ReplicationRule], pass_through: str
) -> None:
    link = incoming("c", origin("d"), rules=tuple(received) or (NOTHING,))
    source = facts("a", "b", *(rules or [NOTHING]), pass_through=pass_through, incoming=(link,))
    found = {one.check for one in mismatches(source, facts_of("b", "a", rules, TopicFacts()))}
    left_out = [name for name in ("c", "d") if not (pass_through and re.search(pass_through, name))]
    for topic in TOPICS:
        rule = rule_of(rules, topic)
        if left_out and rule is not None and rule.sync and rule_of(received, topic) is not None:
            event("synchronous topic")
            assert "sync_pass_through" in found
    if not left_out:
        assert "sync_pass_through" not in found


NOTHING: Final = ReplicationRule(topic="never used", sync=False)


def facts_of(name: str, other: str, rules: list[ReplicationRule], known: TopicFacts) -> LinkFacts:
    """Return the facts of a server with these rules, or one for a topic without messages."""
    return facts(name, other, *(rules or [NOTHING]), topics=known)
