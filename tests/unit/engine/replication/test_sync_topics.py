"""Links for which acknowledgements wait, by topic."""

from __future__ import annotations

import pytest

from tickertape.engine.limits import routed_topics_kept_max
from tickertape.engine.replication.link_facts import OutgoingLink
from tickertape.engine.replication.links import sync_topics
from tickertape.engine.replication.links.sync_topics import SyncTopics
from tickertape.engine.replication.routes import ReplicationRule
from tickertape.engine.runtime.durability import NO_LINKS
from tickertape.wire.sow_command import SOW_TOPIC


def _link(name: str, **rules: bool) -> OutgoingLink:
    """Return a link to a destination, with a rule for each topic: synchronous or not."""
    return OutgoingLink(
        destination=name,
        rules=tuple(ReplicationRule(topic=topic, sync=sync) for topic, sync in rules.items()),
    )


def test_link_without_synchronous_rule_has_no_number() -> None:
    topics = SyncTopics([_link("a", orders=False), _link("b", orders=True)], ())
    assert topics.numbers == {"b": 0}
    assert topics.links.names == ("b",)


def test_topic_has_the_links_with_a_synchronous_first_rule() -> None:
    first = OutgoingLink(
        destination="c",
        rules=(ReplicationRule(topic="or.*", sync=False), ReplicationRule(topic=".*", sync=True)),
    )
    topics = SyncTopics([_link("a", orders=True), _link("b", trades=True), first], ())
    assert topics.numbers == {"a": 0, "b": 1, "c": 2}
    assert topics.links_of(["orders"]) == topics.links.link_set([0])
    assert topics.links_of(["trades"]) == topics.links.link_set([1, 2])
    assert topics.links_of(["prices"]) == topics.links.link_set([2])
    assert topics.links_of([]) == NO_LINKS


def test_frame_has_the_links_of_all_topics() -> None:
    topics = SyncTopics([_link("a", orders=True), _link("b", trades=True), _link("c", quotes=True)], ())
    assert topics.links_of(["orders", "trades", "elsewhere"]) == topics.links.link_set([0, 1])


def test_delete_of_records_has_all_synchronous_links() -> None:
    topics = SyncTopics([_link("a", orders=True), _link("b", trades=True)], ())
    assert topics.links_of([SOW_TOPIC]) == topics.links.link_set([0, 1])


def test_internal_and_derived_topics_have_no_links() -> None:
    topics = SyncTopics([OutgoingLink(destination="a", rules=(ReplicationRule(topic=".*", sync=True),))], "v")
    assert topics.links_of(["$queue", "/tickertape/events", "v"]) == NO_LINKS
    assert topics.links_of(["w"]) == topics.links.link_set([0])


def test_cache_of_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert routed_topics_kept_max > 10
    monkeypatch.setattr(sync_topics, "routed_topics_kept_max", 10)
    topics = SyncTopics([OutgoingLink(destination="a", rules=(ReplicationRule(topic="t.*", sync=True),))], ())
    for number in range(100):
        assert topics.links_of([f"t{number}"]) == topics.links.link_set([0])
        assert topics.links_of([f"s{number}"]) == NO_LINKS
        assert len(topics._of_topic) <= 10


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("orders", True),
        ("trades", False),
        ("^ord", True),
        ("^tr", False),
        ("p/1", True),
        ("^p/", True),
        (".*", True),
    ],
)
def test_topics_that_may_have_a_synchronous_link_have_a_horizon(topic: str, *, expected: bool) -> None:
    link = OutgoingLink(
        destination="b",
        rules=(
            ReplicationRule(topic="trades", sync=False),
            ReplicationRule(topic="^p/", sync=True),
            ReplicationRule(topic=".*", sync=False),
        ),
    )
    topics = SyncTopics([_link("a", orders=True), link], ())
    assert (topics.horizon_of(topic) is not None) == expected


END = 100


def test_horizon_of_a_pattern_waits_for_the_links_of_all_topics() -> None:
    topics = SyncTopics([_link("a", orders=True), _link("b", trades=True)], ())
    horizon, one = topics.horizon_of("^(orders|trades)$"), topics.horizon_of("orders")
    assert horizon is not None
    assert one is not None
    topics.links.durable(0, 50, "local")
    assert (horizon.position(END), one.position(END)) == (0, 50)
    topics.links.durable(1, 40, "local")
    assert (horizon.position(END), one.position(END)) == (40, 50)
    topics.links.downgrade(1)
    assert horizon.position(END) == 50
    topics.links.downgrade(0)
    assert horizon.position(END) == END


def test_horizon_of_a_pattern_with_any_n_waits_for_the_links_that_each_topic_needs() -> None:
    alike = SyncTopics([_link("a", orders=True), _link("b", orders=True)], (), 1)
    mixed = SyncTopics([_link("a", orders=True), _link("b", trades=True)], (), 1)
    for topics, expected in ((alike, 50), (mixed, 0)):
        topics.links.durable(0, 50, "local")
        horizon = topics.horizon_of(".*")
        assert horizon is not None
        assert horizon.position(END) == expected
