"""Queues when the log is full or closed."""

from __future__ import annotations

import pytest

from tests.simulation.queue_world import QueuePeer, QueueWorld
from tickertape.engine.runtime.queue_definition import QueueDefinition

BODY = b'{"g":"a","x":"' + b"y" * 1_500 + b'"}'


def test_dead_letters_that_do_not_fit_the_log_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    world = QueueWorld(1, [QueueDefinition("q", dead_letter="dead")])
    publisher = world.connect("publisher")
    keys = [key for _ in range(100) for key in publisher.put("q", [BODY])]
    world.settle()
    journal = world.broker.journal
    monkeypatch.setattr(journal.commits, "can_accept", lambda size: size <= 100_000)
    publisher.settle("q", "expire", keys)
    world.settle()
    work = next(iter(world.broker.queues.workers))
    assert len(work.queue.state.doomed) == 100
    monkeypatch.setattr(journal.commits, "can_accept", lambda _: True)
    world.wake(1.1)
    world.settle()
    assert not work.queue.state.doomed
    assert work.queue.state.buried == 100


@pytest.mark.parametrize("closed", [False, True])
def test_settlement_found_after_a_stop_is_not_executed(closed: bool) -> None:
    world = QueueWorld(1, [QueueDefinition("q")])
    world.broker.journal.view.tail_bytes_max = 1
    publisher = world.connect("publisher")
    assert isinstance(publisher, QueuePeer)
    keys = []
    for _ in range(10):
        keys += publisher.put("q", [BODY])
        world.settle()
    publisher.settle("q", "ack", [keys[0]])
    slow = world.reads[:]
    assert slow
    world.reads.clear()
    world.broker.close(world.now())
    world.collect()
    if closed:
        world.settle()
    world.reads += slow
    world.settle()
    assert world.broker.journal.commits.accepted_end == world.broker.journal.commits.persisted_end
    assert world.broker.queues.snapshots(world.moment)[0].acknowledged == 0
