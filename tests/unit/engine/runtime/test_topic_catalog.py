"""`TopicCatalog`: SOW topics by name and pattern, and reserved topics."""

from __future__ import annotations

import pytest

from tickertape.engine.limits import sow_topics_kept_max
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.filter.compiler.regex import PatternSet
from tickertape.journal.format.segment import CONTROL_TOPIC
from tickertape.wire.settlement import QUEUE_TOPIC
from tickertape.wire.sow_command import SOW_TOPIC

NAMED = SowDefinition("positions")
ORDERS = SowDefinition("orders", pattern="^orders/")
ALL_ORDERS = SowDefinition("all", pattern="^order")
PRICES = SowDefinition("prices", pattern="s/.*")
RECORDED = frozenset({"positions", "orders", "all", "^order"})


def name_of(catalog: TopicCatalog, topic: str) -> str | None:
    found = catalog.sow_of(topic)
    return None if found is None else found.name


def test_settlements_and_deletes_of_records_are_persistent_and_control_records_are_not() -> None:
    for recorded in (None, frozenset[str]()):
        catalog = TopicCatalog(recorded)
        found = [catalog.recorded(topic) for topic in (QUEUE_TOPIC, SOW_TOPIC, CONTROL_TOPIC)]
        assert found == [True, True, False]


def test_catalog_keeps_the_order_of_sow_topics() -> None:
    assert TopicCatalog(sow=[ORDERS, NAMED]).sow == (ORDERS, NAMED)
    assert TopicCatalog().sow == ()


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("positions", "positions"),
        ("position", None),
        ("orders", "orders"),
        ("orders/1", "orders"),
        ("order", "all"),
        ("an order", None),
        ("prices/eu", None),
        ("prices", "prices"),
    ],
)
def test_topic_belongs_to_an_equal_name_or_the_first_matching_pattern(topic: str, name: str | None) -> None:
    catalog = TopicCatalog(RECORDED, sow=[NAMED, ORDERS, ALL_ORDERS, PRICES])
    for _ in range(2):  # the second answer is a cached one
        assert name_of(catalog, topic) == name


def test_first_matching_pattern_in_the_configuration_has_the_topic() -> None:
    assert name_of(TopicCatalog(sow=[ALL_ORDERS, ORDERS]), "orders/1") == "all"


def test_pattern_matches_only_persistent_topics() -> None:
    catalog = TopicCatalog(RECORDED, sow=[PRICES, ORDERS])
    assert name_of(catalog, "orders/1") == "prices"
    assert name_of(catalog, "others/1") is None
    assert name_of(TopicCatalog(frozenset(), sow=[ORDERS]), "orders/1") is None


def test_queues_and_internal_topics_have_no_records() -> None:
    catalog = TopicCatalog(
        queues=[QueueDefinition("work", "orders/1")], sow=[SowDefinition("every", pattern=".*")]
    )
    names = [name_of(catalog, topic) for topic in ("work", "other", QUEUE_TOPIC, SOW_TOPIC, CONTROL_TOPIC)]
    assert names == [None, "every", None, None, None]


def test_patterns_are_searched_once_for_each_topic_and_the_cache_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[str] = []
    found = PatternSet.found

    def counted(patterns: PatternSet, text: str) -> list[int]:
        searched.append(text)
        return found(patterns, text)

    monkeypatch.setattr(PatternSet, "found", counted)
    catalog = TopicCatalog(sow=[NAMED, ORDERS])
    topics = [f"t{number}" for number in range(sow_topics_kept_max)]
    for _ in range(2):
        assert {name_of(catalog, topic) for topic in topics} == {None}
        assert name_of(catalog, "positions") == "positions"
    assert searched == topics
    assert name_of(catalog, "orders/1") == "orders"
    assert catalog._sow_of == {"positions": NAMED, "orders": ORDERS, "orders/1": ORDERS}


def test_clients_get_the_topics_that_check_bodies_or_keys() -> None:
    orders = SowDefinition("orders", key=("/id",))
    desks = SowDefinition("desks", key=("/id",), pattern="^desk/")
    catalog = TopicCatalog(validated={"trades": "json", "raw": "binary"}, sow=(orders, desks))
    assert catalog.validated_for_clients == ("^desk/", "desks", "orders", "trades")
