"""Commands that have filters compiled: one for a connection and turn, in their order, nobody else waits."""

from __future__ import annotations

from random import Random

from tickertape.base.interfaces import Now
from tickertape.server.network.command_scheduler import CommandScheduler, Incoming
from tickertape.wire.commands import Flush, Subscribe
from tickertape.wire.connection import Received

NOW = Now(1.0, 1)


class World:
    """What the turns hand on; a subscribe with a filter is one that has something compiled."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.compiled = 0
        self.unread: set[int] = set()
        self.turns = CommandScheduler(self._take)

    def _take(self, conn: int, incoming: Incoming, now: Now) -> bool:
        assert isinstance(incoming, Received)
        assert isinstance(incoming.command, Subscribe | Flush)
        assert now is NOW
        self.taken.append((conn, incoming.command.id))
        self.compiled += isinstance(incoming.command, Subscribe)
        return isinstance(incoming.command, Subscribe)

    def came(self, conn: int, number: int, *, compiles: bool) -> None:
        subscribe = Subscribe(id=number, sub_id="s", topic="t", filter="/a = 1", credit=1)
        if self.turns.received(conn, Received(subscribe if compiles else Flush(id=number), None), NOW):
            assert conn not in self.unread
            self.unread.add(conn)

    def step(self) -> None:
        served = self.turns.step(NOW)
        if served is not None:
            self.unread.remove(served)


def test_a_connection_has_one_filter_compiled_in_a_turn_and_others_go_on() -> None:
    world = World()
    for number in range(5):
        world.came(1, number, compiles=True)
    world.came(2, 0, compiles=False)
    assert world.taken == [(1, 0), (2, 0)]
    assert world.unread == {1}
    world.came(2, 1, compiles=True)
    world.came(2, 2, compiles=False)
    for turn in range(1, 8):
        before = world.compiled
        world.step()
        assert world.compiled <= before + 1, turn
    assert [number for conn, number in world.taken if conn == 1] == [0, 1, 2, 3, 4]
    assert [number for conn, number in world.taken if conn == 2] == [0, 1, 2]
    assert world.taken.index((2, 2)) < world.taken.index((1, 3))
    assert not world.unread
    assert not world.turns.has_work


def test_what_needs_nothing_compiled_never_waits() -> None:
    world = World()
    for number in range(300):
        world.came(1, number, compiles=False)
    assert len(world.taken) == 300
    assert not world.turns.has_work


def test_what_comes_behind_a_filter_waits_and_is_taken_in_bounded_turns() -> None:
    world = World()
    for number in range(300):
        world.came(1, number, compiles=not number)
    assert len(world.taken) == 1
    steps = 0
    while world.turns.has_work:
        before = len(world.taken)
        world.step()
        assert len(world.taken) - before <= 64
        steps += 1
    assert world.taken == [(1, number) for number in range(300)]
    assert steps >= 5


def test_nothing_is_taken_of_a_connection_that_is_gone() -> None:
    world = World()
    for number in range(3):
        world.came(1, number, compiles=True)
    left = [incoming.command for incoming in world.turns.drop(1) if isinstance(incoming, Received)]
    assert [command.id for command in left if isinstance(command, Subscribe)] == [1, 2]
    assert world.turns.drop(2) == []
    world.step()
    assert (world.taken, world.turns.has_work) == ([(1, 0)], False)


def test_whatever_comes_keeps_its_order() -> None:
    rng = Random(5)
    world = World()
    sent: dict[int, list[int]] = {conn: [] for conn in range(4)}
    for number in range(2_000):
        conn = rng.randrange(4)
        if conn not in world.unread or rng.random() < 0.2:  # what was read before may still come
            world.came(conn, number, compiles=rng.random() < 0.3)
            sent[conn].append(number)
        if rng.random() < 0.5:
            world.step()
    while world.turns.has_work:
        world.step()
    assert {conn: [n for c, n in world.taken if c == conn] for conn in sent} == sent
    assert not world.unread
