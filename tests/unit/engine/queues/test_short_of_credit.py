"""A consumer with too little credit for the next message does not block other consumers."""

from __future__ import annotations

import pytest

from tests.simulation import queue_world
from tests.simulation.queue_world import QueuePeer, QueueWorld
from tickertape.engine.runtime.queue_definition import FAIRNESS, Fairness, QueueDefinition

LARGE = b'{"x":"' + b"y" * 600 + b'"}'
SMALL = b'{"x":1}'


def stuck(world: QueueWorld, filter: str | None, monkeypatch: pytest.MonkeyPatch) -> QueuePeer:
    """Return a consumer with free backlog and about 360 bytes of credit that is not renewed."""
    slow = world.connect("slow")
    assert isinstance(slow, QueuePeer)
    monkeypatch.setattr(slow, "give_credit", lambda sub_id: slow.owed_credit.update({sub_id: 0}))
    monkeypatch.setattr(queue_world, "CREDIT", 1_000)
    slow.consume("slow", "q", max_backlog=100, filter=filter)
    monkeypatch.setattr(queue_world, "CREDIT", 1 << 20)
    world.settle()
    return slow


@pytest.mark.parametrize("filter", [None, "TRUE"])
@pytest.mark.parametrize("fairness", FAIRNESS)
def test_other_consumers_receive_messages_above_the_credit_of_one_consumer(
    fairness: Fairness, filter: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = QueueWorld(1, [QueueDefinition("q", fairness=fairness)])
    publisher = world.connect("publisher")
    slow = stuck(world, filter, monkeypatch)
    publisher.put("q", [LARGE])
    world.settle()
    assert len(slow.got) == 1
    quick = world.connect("quick")
    quick.consume("quick", "q", max_backlog=100)
    world.settle()
    for _ in range(10):
        publisher.put("q", [LARGE])
    world.settle()
    assert (len(slow.got), len(quick.got)) == (1, 10)


def test_consumer_with_little_credit_receives_a_smaller_later_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = QueueWorld(1, [QueueDefinition("q", fairness="fast")])
    publisher = world.connect("publisher")
    slow = stuck(world, None, monkeypatch)
    publisher.put("q", [LARGE])
    world.settle()
    quick = world.connect("quick")
    quick.consume("quick", "q", max_backlog=1)
    world.settle()
    publisher.put("q", [LARGE, SMALL])
    world.settle()
    assert (len(slow.got), len(quick.got)) == (2, 1)
