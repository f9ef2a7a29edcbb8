"""Deadlines that the parts of the engine announce."""

from __future__ import annotations

from tests.simulation.engine_world import EngineWorld
from tests.simulation.journal_world import drive
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.publisher_ids import load_publishers


class Part:
    """A part with a deadline, which counts how often the clock asks for it."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.asked = 0

    def next_deadline(self) -> float | None:
        self.asked += 1
        return self.deadline


def test_clock_asks_only_announced_parts_for_a_deadline() -> None:
    first, second = Part(5.0), Part(7.0)
    clock = EngineClock(first)
    clock.announce(second)
    assert (clock.next_deadline(), clock.next_deadline()) == (5.0, 5.0)
    assert (first.asked, second.asked) == (1, 1)
    second.deadline = 3.0
    assert clock.next_deadline() == 5.0
    clock.announce(second)
    assert clock.next_deadline() == 3.0
    assert (first.asked, second.asked) == (1, 2)


def test_wake_asks_every_part_for_a_new_deadline() -> None:
    first, second = Part(5.0), Part(None)
    clock = EngineClock(first, second)
    assert clock.next_deadline() == 5.0
    first.deadline = None
    clock.announce_all()
    assert clock.next_deadline() is None
    assert (first.asked, second.asked) == (2, 2)


def test_new_engine_knows_the_retry_of_a_segment_on_a_full_disk() -> None:
    world = EngineWorld(1)
    journal = world.broker.journal
    journal.commits.preallocation.retry_at = world.mono + 1.0
    broker = world.make_broker(journal, drive(world.disk, load_publishers(journal)))
    assert broker.next_deadline() == world.mono + 1.0
