"""Small queries: answers in the step of their request, turns, and bounded work."""

from __future__ import annotations

import msgspec
import pytest

from tests.helpers.sow_engine import publish
from tests.helpers.sow_peer import QueryWorld, SowPeer
from tests.simulation.engine_peer import Peer
from tickertape.engine.runtime.sow_definition import SowDefinition

_ENCODE = msgspec.msgpack.encode


def body(key: object, value: object = 0) -> bytes:
    return msgspec.json.encode({"id": key, "v": value})


def _world(records: int = 10) -> tuple[QueryWorld, Peer, SowPeer]:
    world = QueryWorld(SowDefinition("orders", key=("/id",)), segment_bytes=1 << 21)
    publisher = world.connect("publisher")
    if records:
        publish(publisher, [("orders", body(key, 1)) for key in range(records)])
    world.settle()
    return world, publisher, world.reader()


def test_small_query_is_answered_in_the_step_of_the_request_and_leaves_no_work() -> None:
    world, _, peer = _world()
    assert not world.broker.has_work
    peer.query("q", "orders", canonical=(_ENCODE(3), _ENCODE(5)))
    assert peer.results["q"].bodies == [body(3, 1), body(5, 1)]
    assert peer.results["q"].ended is not None
    assert not world.broker.has_work
    assert world.broker.subscriptions.of(peer.conn) == {}


def test_small_queries_that_arrive_together_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _, peer = _world()
    frozen = world.now()
    monkeypatch.setattr(world, "now", lambda: frozen)
    names = "abcdef"
    for name in names:
        peer.query(name, "orders", canonical=(_ENCODE(3),))
    assert [name for name in names if peer.results[name].ended is not None] == ["a"]
    world.step()
    assert all(peer.results[name].ended is None for name in names[3:])
    world.settle()
    assert [peer.results[name].bodies for name in names] == [[body(3, 1)]] * 6


@pytest.mark.parametrize("size", [10, 100_000])
def test_query_of_few_large_bodies_takes_turns(size: int) -> None:
    world, publisher, peer = _world(records=0)
    for key in range(10):
        publish(publisher, [("orders", body(key, "x" * size))])
    world.settle()
    peer.query("q", "orders", credit=1 << 24)
    assert (peer.results["q"].ended is not None) == (size == 10)
    world.settle()
    assert len(peer.results["q"].records) == 10
