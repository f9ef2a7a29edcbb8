"""Facts of the topics of a server, and patterns of persistent topics."""

from __future__ import annotations

import pytest

from tickertape.engine.replication.link_facts import SowFacts, TopicFacts, TopicIndex
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.runtime.topic_catalog import TopicCatalog


def test_facts_of_a_catalog_have_configured_topics_without_queues() -> None:
    catalog = TopicCatalog(
        recorded=frozenset({"orders", "^trades/", "work source"}),
        validated={"orders": "fix", "blobs": "binary"},
        message_types={"orders": "fix", "blobs": "binary"},
        queues=[QueueDefinition("work", underlying="work source")],
        sow=[
            SowDefinition("orders", pattern="^o", key=("/1",), key_domain="x", missing_key="null"),
            SowDefinition("trades/x", pattern="^t", earlier_patterns=("^o",)),
        ],
    )
    facts = TopicFacts.of(catalog)
    assert facts == TopicFacts(
        recorded=("^trades/", "orders", "work source"),
        message_types={"orders": "fix", "blobs": "binary"},
        validated=("orders",),
        sow=(
            SowFacts(name="orders", key=("/1",), key_domain="x", missing_key="null", pattern="^o"),
            SowFacts(name="trades/x", key_domain="trades/x", pattern="^t", earlier_patterns=("^o",)),
        ),
    )
    assert facts.names == {"orders", "work source", "blobs", "trades/x"}
    assert TopicFacts.of(TopicCatalog()) == TopicFacts()


def test_topics_have_the_default_message_type_without_a_table() -> None:
    facts = TopicFacts(message_types={"blobs": "binary"}, validated=("blobs", "x"))
    assert [facts.message_type(topic) for topic in ("blobs", "x")] == ["binary", "json"]
    assert [facts.validates(topic) for topic in ("blobs", "x", "y")] == [False, True, False]


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (SowFacts(name="a"), SowFacts(name="a"), True),
        (SowFacts(name="a"), SowFacts(name="b"), False),
        (SowFacts(name="a", pattern="^x"), SowFacts(name="xy"), True),
        (SowFacts(name="a", pattern="^x"), SowFacts(name="y"), False),
        (SowFacts(name="a", pattern="^x"), SowFacts(name="b", pattern="^xy"), True),
        (SowFacts(name="a", pattern="^x"), SowFacts(name="b", pattern="^y"), False),
    ],
)
def test_sow_topics_may_share_topics_of_names_and_patterns(
    one: SowFacts, other: SowFacts, shared: bool
) -> None:
    assert one.may_share(other) is other.may_share(one) is shared


def test_patterns_of_persistent_topics_within_a_pattern() -> None:
    some = TopicIndex(TopicFacts(recorded=("a/1", "^a/", "^b", "z$")))
    assert some.patterns_within("^a") == ["^a/", "z$"]
    assert some.patterns == ["^a/", "^b", "z$"]
    assert [some.has(topic) for topic in ("a/1", "a/2", "c")] == [True, True, False]
    every = TopicIndex(TopicFacts())
    assert every.patterns_within("^a") == ["^a"]
    assert every.patterns is None
    assert every.has("c")
