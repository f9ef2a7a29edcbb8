"""Many filters of consumers: one step looks at one piece for one of them."""

from __future__ import annotations

import pytest

from tests.simulation.queue_world import QueueWorld
from tickertape.engine.queue.definition import QueueDefinition
from tickertape.engine.queue.narrowing import Narrowing

FILTERS = ["/g = 'a'", "/g = 'b'", "/p > 1", "/b = 1", "/n % 5 != 0"]


def test_a_step_does_not_look_for_all_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Narrowing] = []
    step = Narrowing.step

    def counted(narrowing: Narrowing) -> None:
        looked.append(narrowing)
        step(narrowing)

    monkeypatch.setattr(Narrowing, "step", counted)
    world = QueueWorld(1, [QueueDefinition("q")])
    peer, publisher = world.connect("peer"), world.connect("publisher")
    for number, condition in enumerate(FILTERS):
        peer.consume(f"s{number}", "q", filter=condition)
    world.settle()
    looked.clear()
    publisher.put("q", [b'{"g":"a","p":2,"b":1,"n":1}'])
    while world.jobs:
        world.run_job()
    seen = len(looked)
    while world.broker.has_work:
        world.work()
        assert len(looked) - seen <= 1
        seen = len(looked)
    assert set(looked) == {
        narrowing for work in world.broker.queues.works for narrowing in work.delivering.narrowed.values()
    }
