"""Queues and browsers that share the read budget."""

from __future__ import annotations

import pytest

from tests.simulation.queue_world import QueuePeer, QueueWorld
from tickertape.engine.runtime.queue_definition import QueueDefinition

BODY = b'{"g":"a","x":"' + b"y" * 15_000 + b'"}'


def filled(queues: int, each: int) -> QueueWorld:
    """Queues whose messages are on disk only."""
    names = [f"q{number}" for number in range(queues)]
    world = QueueWorld(3, [QueueDefinition(name) for name in names], segment_bytes=1 << 20)
    world.broker.journal.view.tail_bytes_max = 1
    publisher = world.connect("publisher")
    assert isinstance(publisher, QueuePeer)
    for _ in range(each):
        for name in names:
            publisher.put(name, [BODY])
            world.settle()
    return world


@pytest.mark.parametrize("queues", [2, 4])
def test_queues_with_a_small_read_budget_deliver_all_messages(queues: int) -> None:
    world = filled(queues, 10)
    world.broker.reads.budgets.log.bytes_max = 20_000
    consumer = world.connect("consumer")
    assert isinstance(consumer, QueuePeer)
    for number in range(queues):
        consumer.consume(f"s{number}", f"q{number}", max_backlog=100)
    world.settle()
    assert len(consumer.got) == 10 * queues


def test_browsers_closed_during_a_read_release_the_read_budget() -> None:
    world = filled(1, 30)
    budget = world.broker.reads.budgets.log
    for number in range(200):
        peer = world.connect(f"peer{number}")
        assert isinstance(peer, QueuePeer)
        peer.consume("look", "q0", browse=True)
        world.work()
        world.hang_up(peer)
    world.settle()
    assert budget.held_bytes == 0
