"""The heartbeat of one connection, moment by moment."""

from __future__ import annotations

from typing import Any

from tickertape.base.limits import unread_bytes_unsure
from tickertape.wire.heartbeat import HeartbeatState, Liveness

BEGIN = 100.0


def seen(heard_at: float, said_at: float, **more: Any) -> Liveness:
    """A sight of a peer that says 32 bytes a millisecond as long as it says anything."""
    return Liveness(heard_at, round(1000 * (heard_at - BEGIN)) * 32, said_at, **more)


def test_a_beat_is_due_when_nothing_was_said_for_an_interval() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    assert pulse.deadline == 103.0
    assert pulse.look(seen(102.0, 101.0), 103.0) == "alive"
    assert pulse.deadline == 104.0
    assert pulse.look(seen(102.0, 101.0), 104.0) == "beat"
    assert pulse.deadline == 107.0
    assert pulse.look(seen(106.0, 106.5), 107.0) == "alive"


def test_what_waits_to_be_written_is_as_good_as_a_beat() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    assert pulse.look(seen(102.0, BEGIN, unwritten=True), 103.0) == "alive"
    assert pulse.deadline == 106.0


def test_the_peer_is_silent_when_nothing_came_for_the_idle_time() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    assert pulse.look(seen(101.0, 106.9), 106.9) == "alive"
    assert pulse.deadline == 107.0
    assert pulse.look(seen(101.0, 106.9), 107.0) == "silent"


def test_what_arrives_and_is_not_read_is_life() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    for turn in range(1, 10):
        now = BEGIN + 5.0 * turn
        assert pulse.look(seen(BEGIN, now, unread_bytes=32 * turn), now) == "alive"
    assert pulse.look(seen(BEGIN, now, unread_bytes=32 * turn), now + 6.0) == "silent"


def test_a_socket_without_room_says_nothing_about_the_peer() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    for turn in range(1, 10):
        now = BEGIN + 10.0 * turn
        assert pulse.look(seen(BEGIN, now, unread_bytes=unread_bytes_unsure), now) == "alive"


def test_who_is_not_read_for_a_reason_of_ours_is_excused() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    assert pulse.look(seen(BEGIN, 200.0, excused=True), 200.0) == "alive"
    assert pulse.look(seen(BEGIN, 205.0), 205.9) == "alive"
    assert pulse.look(seen(BEGIN, 205.0), 206.0) == "silent"


def test_a_look_that_comes_early_changes_nothing() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    for now in (100.0, 101.0, 102.999):
        assert pulse.look(seen(BEGIN, BEGIN), now) == "alive"
        assert pulse.deadline == 103.0


def test_what_is_read_late_is_no_new_sign_of_life() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    assert pulse.look(Liveness(BEGIN, 0, 102.0, unread_bytes=64), 102.0) == "alive"
    assert pulse.look(Liveness(107.0, 64, 107.5), 107.9) == "alive"
    assert pulse.look(Liveness(107.0, 64, 107.5), 108.0) == "silent"
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    assert pulse.look(Liveness(BEGIN, 0, 102.0, unread_bytes=64), 102.0) == "alive"
    assert pulse.look(Liveness(107.0, 96, 107.5), 108.0) == "alive"
    assert pulse.look(Liveness(107.0, 96, 112.5), 112.9) == "alive"
    assert pulse.look(Liveness(107.0, 96, 112.5), 113.0) == "silent"
