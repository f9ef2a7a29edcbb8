"""Heartbeat state machine of one connection: deadlines, silence and excuses."""

from __future__ import annotations

from typing import Any

from tickertape.base.limits import unread_bytes_unsure
from tickertape.wire.heartbeat import HeartbeatState, Liveness

BEGIN = 100.0


def seen(heard_at: float, said_at: float, **more: Any) -> Liveness:
    """Liveness of a peer that sends 32 bytes a millisecond until `heard_at`."""
    return Liveness(heard_at, round(1000 * (heard_at - BEGIN)) * 32, said_at, **more)


def test_heartbeat_is_due_after_an_interval_without_sent_bytes() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    assert pulse.deadline == 103.0
    assert pulse.look(seen(102.0, 101.0), 103.0) == "alive"
    assert pulse.deadline == 104.0
    assert pulse.look(seen(102.0, 101.0), 104.0) == "beat"
    assert pulse.deadline == 107.0
    assert pulse.look(seen(106.0, 106.5), 107.0) == "alive"


def test_unwritten_bytes_postpone_the_heartbeat() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    assert pulse.look(seen(102.0, BEGIN, unwritten=True), 103.0) == "alive"
    assert pulse.deadline == 106.0


def test_peer_is_silent_after_the_idle_time_without_received_bytes() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    assert pulse.look(seen(101.0, 106.9), 106.9) == "alive"
    assert pulse.deadline == 107.0
    assert pulse.look(seen(101.0, 106.9), 107.0) == "silent"


def test_growing_unread_bytes_keep_the_peer_alive() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    for turn in range(1, 10):
        now = BEGIN + 5.0 * turn
        assert pulse.look(seen(BEGIN, now, unread_bytes=32 * turn), now) == "alive"
    assert pulse.look(seen(BEGIN, now, unread_bytes=32 * turn), now + 6.0) == "silent"


def test_full_receive_buffer_keeps_the_peer_alive() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    for turn in range(1, 10):
        now = BEGIN + 10.0 * turn
        assert pulse.look(seen(BEGIN, now, unread_bytes=unread_bytes_unsure), now) == "alive"


def test_excused_peer_is_alive_for_another_idle_time() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    assert pulse.look(seen(BEGIN, 200.0, excused=True), 200.0) == "alive"
    assert pulse.look(seen(BEGIN, 205.0), 205.9) == "alive"
    assert pulse.look(seen(BEGIN, 205.0), 206.0) == "silent"


def test_early_check_does_not_change_the_heartbeat_deadline() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    for now in (100.0, 101.0, 102.999):
        assert pulse.look(seen(BEGIN, BEGIN), now) == "alive"
        assert pulse.deadline == 103.0


def test_late_read_of_known_bytes_does_not_extend_the_idle_time() -> None:
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    assert pulse.look(Liveness(BEGIN, 0, 102.0, unread_bytes=64), 102.0) == "alive"
    assert pulse.look(Liveness(107.0, 64, 107.5), 107.9) == "alive"
    assert pulse.look(Liveness(107.0, 64, 107.5), 108.0) == "silent"
    pulse = HeartbeatState(3.0, 6.0, BEGIN)
    assert pulse.look(Liveness(BEGIN, 0, 102.0, unread_bytes=64), 102.0) == "alive"
    assert pulse.look(Liveness(107.0, 96, 107.5), 108.0) == "alive"
    assert pulse.look(Liveness(107.0, 96, 112.5), 112.9) == "alive"
    assert pulse.look(Liveness(107.0, 96, 112.5), 113.0) == "silent"
