"""Expired messages are not delivered, independent of the wake-up order."""

from __future__ import annotations

from tests.helpers.queue_engine import QueueEngine
from tickertape.engine.runtime.queue_definition import QueueDefinition


def test_expired_message_is_not_delivered_before_the_expiry_step() -> None:
    world = QueueEngine(QueueDefinition("work", expiration=1.0))
    world.connect("p").publish("work", [b"1"])
    world.settle()
    consumer = world.connect("c")
    world.settle()
    world.mono += 2.0
    world.wall += 2_000_000
    consumer.subscribe("s", "work")  # no timer has fired yet
    while world.broker.has_work:
        world.work()
    world.settle()
    assert consumer.heard["s"] == []
    assert world.look("work").expired == {"expiration": 1}
