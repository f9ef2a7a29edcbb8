"""Scheduler of commands that compile filters: bounded turns, in order, without delay for others."""

from __future__ import annotations

from random import Random

from tickertape.base.interfaces import Now
from tickertape.engine.limits import turn_effort_max
from tickertape.server.network.command_scheduler import CommandScheduler, Incoming
from tickertape.wire.commands import Flush, Subscribe
from tickertape.wire.connection import Received

NOW = Now(1.0, 1)


class Scheduled:
    """A scheduler and its taken commands. A subscribe with a filter compiles."""

    def __init__(self, effort: int = turn_effort_max) -> None:
        self.effort = effort
        self.taken: list[tuple[int, int]] = []
        self.compiled = 0
        self.unread: set[int] = set()
        self.turns = CommandScheduler(self._take)

    def _take(self, conn: int, incoming: Incoming, now: Now) -> int:
        assert isinstance(incoming, Received)
        assert isinstance(incoming.command, Subscribe | Flush)
        self.taken.append((conn, incoming.command.id))
        self.compiled += isinstance(incoming.command, Subscribe)
        return self.effort * isinstance(incoming.command, Subscribe)

    def receive(self, conn: int, number: int, *, compiles: bool, now: Now = NOW) -> None:
        subscribe = Subscribe(id=number, sub_id="s", topic="t", filter="/a = 1", credit=1)
        if self.turns.received(conn, Received(subscribe if compiles else Flush(id=number), None), now):
            assert conn not in self.unread
            self.unread.add(conn)

    def step(self) -> None:
        served = self.turns.step(NOW)
        if served is not None:
            self.unread.remove(served)


def test_scheduler_compiles_one_filter_per_turn_and_serves_other_connections() -> None:
    scheduled = Scheduled()
    for number in range(5):
        scheduled.receive(1, number, compiles=True)
    scheduled.receive(2, 0, compiles=False)
    assert scheduled.taken == [(1, 0), (2, 0)]
    assert scheduled.unread == {1}
    scheduled.receive(2, 1, compiles=True)
    scheduled.receive(2, 2, compiles=False)
    for turn in range(1, 8):
        before = scheduled.compiled
        scheduled.step()
        assert scheduled.compiled <= before + 1, turn
    assert [number for conn, number in scheduled.taken if conn == 1] == [0, 1, 2, 3, 4]
    assert [number for conn, number in scheduled.taken if conn == 2] == [0, 1, 2]
    assert scheduled.taken.index((2, 2)) < scheduled.taken.index((1, 3))
    assert not scheduled.unread
    assert not scheduled.turns.waiting


def test_turns_end_when_the_same_effort_is_spent() -> None:
    scheduled = Scheduled(effort=5)
    for number in range(30):
        scheduled.receive(1, number, compiles=True)
    in_turn = [len(scheduled.taken)]
    while scheduled.turns.waiting:
        scheduled.step()
        in_turn.append(len(scheduled.taken) - sum(in_turn))
    assert in_turn == [13, 13, 4]
    assert scheduled.taken == [(1, number) for number in range(30)]


def test_commands_that_arrive_later_are_another_turn() -> None:
    scheduled = Scheduled(effort=5)
    for number in range(30):
        scheduled.receive(1, number, compiles=True, now=Now(float(number), 1))
    assert len(scheduled.taken) == 30
    assert not scheduled.turns.waiting


def test_commands_without_filter_never_wait() -> None:
    scheduled = Scheduled()
    for number in range(300):
        scheduled.receive(1, number, compiles=False)
    assert len(scheduled.taken) == 300
    assert not scheduled.turns.waiting


def test_commands_behind_a_filter_wait_and_are_taken_in_bounded_turns() -> None:
    scheduled = Scheduled()
    for number in range(300):
        scheduled.receive(1, number, compiles=not number)
    assert len(scheduled.taken) == 1
    steps = 0
    while scheduled.turns.waiting:
        before = len(scheduled.taken)
        scheduled.step()
        assert len(scheduled.taken) - before <= 64
        steps += 1
    assert scheduled.taken == [(1, number) for number in range(300)]
    assert steps >= 5


def test_waiting_commands_of_a_dropped_connection_are_returned_not_taken() -> None:
    scheduled = Scheduled()
    for number in range(3):
        scheduled.receive(1, number, compiles=True)
    left = [incoming.command for incoming in scheduled.turns.drop(1) if isinstance(incoming, Received)]
    assert [command.id for command in left if isinstance(command, Subscribe)] == [1, 2]
    assert scheduled.turns.drop(2) == []
    scheduled.step()
    assert (scheduled.taken, list(scheduled.turns.waiting)) == ([(1, 0)], [])


def test_random_commands_keep_the_order_of_each_connection() -> None:
    rng = Random(5)
    scheduled = Scheduled()
    sent: dict[int, list[int]] = {conn: [] for conn in range(4)}
    for number in range(2_000):
        conn = rng.randrange(4)
        if (
            conn not in scheduled.unread or rng.random() < 0.2
        ):  # commands read before the pause may still arrive
            scheduled.receive(conn, number, compiles=rng.random() < 0.3)
            sent[conn].append(number)
        if rng.random() < 0.5:
            scheduled.step()
    while scheduled.turns.waiting:
        scheduled.step()
    assert {conn: [n for c, n in scheduled.taken if c == conn] for conn in sent} == sent
    assert not scheduled.unread
