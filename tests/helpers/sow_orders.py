"""A server with records of orders for tests of queries in the engine."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.helpers.sow_engine import publish
from tests.helpers.sow_peer import QueryWorld, Result, SowPeer
from tests.simulation.engine_peer import Peer
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.wire.commands import Ack

ORDERS = SowDefinition("orders", key=("/id",))
LABELLED = SowDefinition("labelled")
REGIONS = SowDefinition("regions", key=("/id",), pattern="^region/")


def body(key: object, value: object = 0) -> bytes:
    """Return the body of an order."""
    return msgspec.json.encode({"id": key, "v": value})


def orders_world(*more: SowDefinition, records: int = 10, **world: Any) -> tuple[QueryWorld, Peer, SowPeer]:
    """Return a server with `records` records of orders, each published twice."""
    made = QueryWorld(ORDERS, *more, **world)
    publisher = made.connect("publisher")
    for value in range(2):
        for key in range(records):
            publish(publisher, [("orders", body(key, value))])
    made.settle()
    return made, publisher, made.reader()


def ask(world: QueryWorld, peer: SowPeer, topic: str = "orders", **fields: Any) -> Result:
    """Return the whole result of a query that is accepted."""
    number = peer.query("q", topic, **fields)
    world.settle()
    assert peer.answer(number) == Ack(id=number)
    return peer.results["q"]
