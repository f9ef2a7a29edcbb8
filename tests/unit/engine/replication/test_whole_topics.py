"""Whole topics: rules, filters, unknown origins, and the cache."""

from __future__ import annotations

import pytest

from tickertape.engine.replication.destination import whole_topics
from tickertape.engine.replication.destination.whole_topics import WholeTopics
from tickertape.engine.replication.link_facts import OriginFacts
from tickertape.engine.replication.origins import Origin, Origins
from tickertape.engine.replication.routes import ReplicationRule, RuleSet
from tickertape.wire.settlement import QUEUE_TOPIC
from tickertape.wire.sow_command import SOW_TOPIC

A, B = b"a" * 16, b"b" * 16


def rules(*rows: tuple[str, str | None]) -> RuleSet:
    """Return rules of topics and filters."""
    return RuleSet(ReplicationRule(topic=topic, filter=text, sync=False) for topic, text in rows)


EVERYTHING = rules((".*", None))


def origin(log: bytes, *digests: bytes) -> OriginFacts:
    """Return an origin of a link."""
    return OriginFacts(instance=log.hex(), group="group", log=log, digests=digests)


def with_rows_of(*logs: bytes) -> Origins:
    """Return the origins of a log with messages of other logs."""
    origins = Origins()
    for log in logs:
        origins.add(Origin(log, log.hex(), "group", (log,)))
    return origins


def opened(*links: tuple[RuleSet, bytes]) -> WholeTopics:
    """Return the topics after these links."""
    whole = WholeTopics(with_rows_of(*(log for _, log in links)))
    for made, log in links:
        whole.opened(made, [origin(log, *made.digests())])
    return whole


def test_all_topics_are_whole_in_a_log_without_other_origins() -> None:
    whole = WholeTopics(Origins())
    assert "t" in whole
    assert SOW_TOPIC in whole


def test_links_of_everything_bring_all_topics_whole() -> None:
    whole = opened((EVERYTHING, A), (EVERYTHING, B))
    assert "t" in whole
    assert SOW_TOPIC in whole


def test_topic_of_no_rule_or_with_a_filter_is_partial() -> None:
    whole = opened((rules(("a", None), ("b", "/x = 1"), ("^c", None)), A))
    assert [topic for topic in ("a", "b", "c1", "d", SOW_TOPIC) if topic in whole] == ["a", "c1"]


def test_topic_that_one_of_two_links_brings_is_partial() -> None:
    whole = opened((EVERYTHING, A), (rules(("a", None)), B))
    assert "a" in whole
    assert "b" not in whole


def test_origin_of_no_link_since_the_start_makes_all_topics_partial() -> None:
    whole = WholeTopics(with_rows_of(A, B))
    assert "t" not in whole
    whole.opened(EVERYTHING, [origin(A)])
    assert "t" not in whole
    whole.opened(EVERYTHING, [origin(B)])
    assert "t" in whole


def test_new_origin_in_the_log_drops_cached_results() -> None:
    origins = with_rows_of(A)
    whole = WholeTopics(origins)
    whole.opened(EVERYTHING, [origin(A)])
    assert "t" in whole
    origins.add(Origin(B, "b", "group", (B, A)))
    assert "t" not in whole


def test_origin_that_passed_other_rules_makes_all_topics_partial() -> None:
    whole = WholeTopics(with_rows_of(A, B))
    whole.opened(EVERYTHING, [origin(A), origin(B, b"other rules")])
    assert "t" not in whole


def test_rules_of_an_earlier_connection_count_for_the_rows_in_the_log() -> None:
    whole = opened((rules(("a", None)), A))
    whole.opened(EVERYTHING, [origin(A)])
    assert "b" not in whole


def test_settlements_count_as_whole() -> None:
    assert QUEUE_TOPIC in opened((rules(("a", None)), A))


def test_cached_topics_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_topics, "routed_topics_kept_max", 3)
    whole = opened((rules(("t1", None)), A))
    assert [f"t{number}" in whole for number in range(8)] == [number == 1 for number in range(8)]
    assert len(whole._whole) <= 3


def test_rules_above_the_bound_make_all_topics_partial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_topics, "link_rule_sets_kept_max", 1)
    whole = opened((EVERYTHING, A))
    assert "t" in whole
    whole.opened(rules((".*", None), ("a", "/x = 1")), [origin(A)])
    assert "t" in whole, "these rules are equal"
    whole.opened(rules(("t", None)), [origin(A)])
    assert "t" not in whole
