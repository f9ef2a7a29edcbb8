"""Queries that the engine refuses, and queries during a clean stop."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.sow_orders import REGIONS, ask, body, orders_world
from tests.helpers.sow_peer import QueryWorld, SowPeer
from tests.simulation.engine_world import EngineWorld
from tickertape.wire.commands import Ack, Sow


def _refused(world: QueryWorld, peer: SowPeer, topic: str = "orders", **fields: Any) -> tuple[str, str]:
    number = peer.query("q", topic, **fields)
    world.settle()
    answer = peer.answer(number)
    assert "q" not in world.broker.subscriptions.of(peer.conn)
    assert len(world.broker.services.records) == 0
    assert peer.results["q"].groups == []
    return answer.code, answer.text


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("bad_topic", {"topic": "other"}),
        ("bad_topic", {"topic": "$sow"}),
        ("bad_option", {"skip_n": 3}),
        ("bad_option", {"options": "fully_durable"}),
        ("bad_option", {"options": "conflation=1s"}),
        ("bad_option", {"options": "replace"}),
        ("bad_option", {"options": "select"}),
        ("bad_option", {"options": "timestamp=1"}),
        ("bad_filter", {"filter": "/id ="}),
        ("bad_filter", {"filter": "SOW_KEY() = 'a' OR /id = 1", "follow": True}),
        ("bad_filter", {"filter": "SOW_KEY() = 'a'", "follow": True, "topic": "^"}),
        ("bad_order_by", {"order_by": "id"}),
        ("bad_command", {"keys": ("a",), "canonical": (b"b",)}),
        ("bad_command", {"credit": 1}),
        ("not_built", {"bookmark": "0"}),
        ("not_built", {"follow": True, "keys": ("a",)}),
    ],
)
def test_invalid_query_is_refused_without_a_trace(code: str, fields: dict[str, Any]) -> None:
    world, _, peer = orders_world(REGIONS, recorded=frozenset({"orders", "regions", "^region/", "other"}))
    found, text = _refused(world, peer, **fields)
    assert found == code, text
    assert text
    assert ask(world, peer).bodies == [body(key, 1) for key in range(10)]


def test_query_of_a_server_without_sow_topics_is_refused() -> None:
    world = EngineWorld(1)
    peer = world.connect("reader")
    peer.send(Sow(id=7, sub_id="q", topic="positions", credit=4096))
    answer = peer.answers[7]
    assert isinstance(answer, Ack)
    assert answer.code == "bad_topic"
    assert "this server has no SOW topic" in answer.text


def test_query_under_an_id_in_use_is_refused() -> None:
    world, _, peer = orders_world()
    peer.subscribe("q", "orders", bookmark="0|1|")
    number = peer.query("q", "orders", follow=True, refused=True)
    world.settle()
    assert peer.answer(number).code == "subscription_exists"


def test_query_during_a_clean_stop_is_refused_and_a_started_one_ends() -> None:
    world, _, peer = orders_world(records=100)
    peer.query("q", "orders", credit=1_000)
    for _ in range(30):
        world.step()
    world.broker.close(world.now())
    assert world.broker.subscriptions.owed(peer.conn)
    number = peer.query("late", "orders")
    assert peer.answer(number).code == "not_ready"
    world.settle()
    assert len(peer.results["q"].records) == 100
    assert not world.broker.subscriptions.owed(peer.conn)
