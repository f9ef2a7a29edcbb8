"""Queues with a different priority for each message."""

from __future__ import annotations

from random import Random

import pytest

from tests.helpers.queue_engine import QueueEngine
from tickertape.engine.queues.dispatch import QueueDispatch
from tickertape.engine.runtime.queue_definition import QueueDefinition


@pytest.mark.parametrize("from_disk", [False, True])
def test_many_priorities_are_delivered_together_highest_first(
    from_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = QueueEngine(QueueDefinition("q", priority="/p"), segment_bytes=1 << 20)
    if from_disk:
        world.broker.journal.view.tail_bytes_max = 1
    publisher = world.connect("publisher")
    priorities = Random(3).sample(range(10_000), 600)
    for number in range(0, 600, 50):
        publisher.publish("q", [b'{"p":%d}' % p for p in priorities[number : number + 50]])
        world.settle()
    steps: list[int] = []
    deliver = QueueDispatch.deliver

    def counted(delivering: QueueDispatch) -> bool:
        steps.append(1)
        return deliver(delivering)

    monkeypatch.setattr(QueueDispatch, "deliver", counted)
    peer = world.connect("consumer")
    peer.subscribe("s", "q", options="max_backlog=600", credit=1 << 20)
    world.settle()
    ranked = [b'{"p":%d}' % p for p in sorted(priorities, reverse=True)]
    assert [heard.body for heard in peer.heard["s"]] == ranked
    assert from_disk or len(steps) <= 5


def test_credit_for_a_few_messages_delivers_the_highest_priorities() -> None:
    world = QueueEngine(QueueDefinition("q", priority="/p"))
    publisher = world.connect("publisher")
    publisher.publish("q", [b'{"p":%d,"x":"%s"}' % (p, b"y" * 300) for p in range(50)])
    world.settle()
    peer = world.connect("consumer")
    peer.subscribe("s", "q", options="max_backlog=50", credit=2_000)
    while world.broker.has_work:
        world.work()
    heard = [heard.body for heard in peer.heard["s"]]
    assert 1 < len(heard) < 10
    assert heard == [b'{"p":%d,"x":"%s"}' % (p, b"y" * 300) for p in range(49, 49 - len(heard), -1)]
