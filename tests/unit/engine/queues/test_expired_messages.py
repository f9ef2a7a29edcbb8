"""What has become too old is not handed out, whoever was woken first."""

from __future__ import annotations

from tests.helpers.queue_engine import QueueEngine
from tickertape.engine.runtime.queue_definition import QueueDefinition


def test_a_message_whose_time_has_come_is_not_delivered_before_it_expires() -> None:
    world = QueueEngine(QueueDefinition("work", expiration=1.0))
    world.connect("p").publish("work", [b"1"])
    world.settle()
    consumer = world.connect("c")
    world.settle()
    world.mono += 2.0
    world.wall += 2_000_000
    consumer.subscribe("s", "work")  # nobody was woken meanwhile
    while world.broker.has_work:
        world.work()
    world.settle()
    assert consumer.heard["s"] == []
    assert world.look("work").expired == {"expiration": 1}
