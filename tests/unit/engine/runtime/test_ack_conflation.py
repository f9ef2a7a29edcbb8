"""Conflation of persisted acknowledgements: number, time and covered frames."""

from __future__ import annotations

import pytest

from tests.helpers.engine_parts import make_session
from tickertape.base.errors import BadOption
from tickertape.engine.limits import ack_conflation_frames_max
from tickertape.engine.runtime.ack_conflation import AckConflation, ack_conflation_of
from tickertape.engine.sessions.session import Session
from tickertape.wire.commands import Command, Persisted


class Conflated:
    """Ack conflation of two sessions, one with an interval of half a second."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Command]] = []
        self.conflation = AckConflation()
        self.plain, self.slow = (make_session(conn) for conn in (1, 2))
        self.slow.ack_conflation = 0.5

    def persisted(self, session: Session, frame: int, mono: float, sequence: int = 0) -> None:
        command = Persisted(frame=frame, sequence=sequence or frame)
        if self.conflation.persisted(session, command, mono):
            self.sent.append((session.conn, command))

    def wake(self, mono: float) -> None:
        self.sent += self.conflation.due(mono)

    def release(self, conn: int) -> None:
        held = self.conflation.release(conn)
        if held is not None:
            self.sent.append((conn, held))

    def frames(self) -> list[tuple[int, int]]:
        taken, self.sent[:] = self.sent[:], []
        return [(conn, command.frame) for conn, command in taken if isinstance(command, Persisted)]


def test_session_without_ack_conflation_receives_every_acknowledgement() -> None:
    world = Conflated()
    for frame in range(1, 4):
        world.persisted(world.plain, frame, 10.0)
    assert world.frames() == [(1, 1), (1, 2), (1, 3)]
    assert world.conflation.next_deadline() is None


def test_first_acknowledgement_is_immediate_and_later_ones_once_an_interval() -> None:
    world = Conflated()
    for number in range(1, 1_001):
        mono = 10.0 + number / 1_000
        world.wake(mono)
        world.persisted(world.slow, number, mono)
    assert [frame for _, frame in world.frames()] == [1, 500]
    assert world.conflation.next_deadline() == pytest.approx(11.001)
    world.wake(12.0)
    assert world.frames() == [(2, 1_000)]
    assert world.conflation.next_deadline() is None
    world.persisted(world.slow, 1_001, 13.0)
    assert world.frames() == [(2, 1_001)], "a quiet publisher does not wait"


def test_conflated_acknowledgement_covers_the_highest_sequence() -> None:
    world = Conflated()
    world.persisted(world.slow, 1, 10.0)
    world.persisted(world.slow, 2, 10.1, sequence=90)
    world.persisted(world.slow, 3, 10.2, sequence=5)
    world.wake(10.5)
    (_, (_, last)) = world.sent
    assert last == Persisted(frame=3, sequence=90)


def test_conflated_acknowledgement_names_the_weakest_level() -> None:
    for levels in (["local", "replicated(2)"], ["replicated(2)", "local"]):
        world = Conflated()
        world.persisted(world.slow, 1, 10.0)
        for frame, level in enumerate(levels, 2):
            command = Persisted(frame=frame, level=level)
            assert not world.conflation.persisted(world.slow, command, 10.1)
        held = world.conflation.release(world.slow.conn)
        assert held == Persisted(frame=3, level="local")


def test_frames_that_one_acknowledgement_covers_are_bounded() -> None:
    world = Conflated()
    for frame in range(1, 2 * ack_conflation_frames_max + 2):
        world.persisted(world.slow, frame, 10.0)
    assert [frame for _, frame in world.frames()] == [
        1,
        1 + ack_conflation_frames_max,
        1 + 2 * ack_conflation_frames_max,
    ]


def test_released_and_dropped_acknowledgements_leave_no_deadline() -> None:
    world = Conflated()
    world.persisted(world.slow, 1, 10.0)
    world.persisted(world.slow, 2, 10.1)
    world.release(2)
    assert world.frames() == [(2, 1), (2, 2)]
    assert world.conflation.next_deadline() is None
    world.persisted(world.slow, 3, 10.2)
    world.conflation.drop(2)
    world.wake(20.0)
    assert world.frames() == []
    assert world.conflation.next_deadline() is None


def test_deadlines_of_released_acknowledgements_take_no_memory() -> None:
    world = Conflated()
    for frame in (1, 2):  # the earliest deadline, so that no later one is checked before
        world.persisted(world.slow, frame, 10.0)
    other = make_session(3)
    other.ack_conflation = 60.0
    for frame in range(1, 1_001):
        world.persisted(other, frame, 10.1)
        world.release(other.conn)
    assert len(world.frames()) == 1_001
    assert len(world.conflation._deadlines._heap) < 100
    world.persisted(other, 1_001, 10.2)
    assert world.conflation.next_deadline() == 10.5
    world.wake(10.5)
    assert world.frames() == [(2, 2)]
    assert world.conflation.next_deadline() == pytest.approx(70.1)


@pytest.mark.parametrize("value", [None, "", "0", "0s", "2d", "soon", "-1s"])
def test_invalid_ack_conflation_interval_is_refused(value: str | None) -> None:
    with pytest.raises(BadOption):
        ack_conflation_of(value)


def test_ack_conflation_interval_is_parsed() -> None:
    assert ack_conflation_of("100ms") == 0.1
