"""Ends of leases as deadlines of the engine."""

from __future__ import annotations

from tests.helpers.queue_engine import QueueEngine
from tickertape.engine.runtime.queue_definition import QueueDefinition


def test_lease_of_a_message_for_a_waiting_consumer_ends_without_another_input() -> None:
    world = QueueEngine(QueueDefinition("work", lease_period=5.0))
    consumer = world.connect("consumer")
    consumer.subscribe("s", "work")
    world.settle()
    world.wake(60.0)  # no other deadline is near
    world.connect("publisher").publish("work", [b"{}"])
    world.settle()
    granted = world.mono
    assert len(consumer.heard["s"]) == 1
    while len(consumer.heard["s"]) == 1:
        deadline = world.broker.next_deadline()
        assert deadline is not None
        assert deadline <= granted + 5.1
        world.wake(max(deadline - world.mono, 0.0))
        world.settle()
    assert world.mono >= granted + 4.9
