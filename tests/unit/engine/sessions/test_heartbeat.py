"""Heartbeats in the engine: requests, bounded steps, and silent connections."""

from __future__ import annotations

import pytest

from tests.helpers.engine_parts import make_outbox
from tests.simulation.engine_world import EngineWorld
from tickertape.base.errors import BadOption, HeartbeatMissed, TickertapeError
from tickertape.base.interfaces import Now
from tickertape.engine.limits import beats_a_step_max
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.effects import CloseConnection, ProbeConnection, Send
from tickertape.engine.sessions.heartbeat import HeartbeatMonitor
from tickertape.wire.commands import Goodbye, Heartbeat, Logon
from tickertape.wire.connection import Connection, Received
from tickertape.wire.heartbeat import Liveness


class Engine:
    """The heartbeats alone, without the rest of the engine."""

    def __init__(self) -> None:
        self.clock = EngineClock()
        self.outbox = make_outbox(self.clock)
        self.ended: dict[int, TickertapeError] = {}
        self.heartbeats = HeartbeatMonitor(self.outbox, self.clock)

    def begin(self, conn: int, interval_ms: int, now: float) -> None:
        self.clock.set(Now(now, 0))
        self.heartbeats.begin(conn, interval_ms)

    def wake(self, now: float) -> list[int]:
        """Return the connections to probe."""
        self.clock.set(Now(now, 0))
        self.heartbeats.wake()
        return [effect.conn for effect in self.outbox.take() if isinstance(effect, ProbeConnection)]

    def looked(self, conn: int, liveness: Liveness, now: float) -> int:
        """Return the number of heartbeats sent after a probe."""
        self.clock.set(Now(now, 0))
        error = self.heartbeats.probed(conn, liveness)
        if error is not None:
            self.ended[conn] = error
            self.heartbeats.drop(conn)
        taken = self.outbox.take()
        for effect in taken:
            assert isinstance(effect, Send)
            assert effect.conn == conn
            (event,) = Connection("client").feed(b"".join(effect.buffers))
            assert event == Received(Heartbeat())
        return len(taken)


def test_connection_without_heartbeat_is_never_probed() -> None:
    engine = Engine()
    engine.begin(1, 0, 100.0)
    assert len(engine.heartbeats) == 0
    assert engine.heartbeats.next_deadline() is None
    assert engine.wake(1e9) == []


def test_connection_silent_for_two_intervals_is_ended() -> None:
    engine = Engine()
    engine.begin(1, 3000, 100.0)
    assert engine.heartbeats.next_deadline() == pytest.approx(103.0, abs=1e-5)
    assert engine.wake(102.9) == []
    assert engine.wake(103.00001) == [1]
    assert engine.looked(1, Liveness(100.0, 0, 100.0), 103.00001) == 1
    assert engine.heartbeats.next_deadline() == pytest.approx(106.0, abs=1e-5)
    assert engine.wake(106.00002) == [1]
    assert engine.looked(1, Liveness(100.0, 0, 103.0), 106.00002) == 0
    assert isinstance(engine.ended[1], HeartbeatMissed)
    assert "6 seconds" in str(engine.ended[1])
    assert engine.heartbeats.next_deadline() is None


def test_heartbeat_interval_can_be_changed_and_cleared() -> None:
    engine = Engine()
    engine.begin(1, 3000, 100.0)
    engine.begin(1, 500, 101.0)
    assert engine.heartbeats.next_deadline() == pytest.approx(101.5, abs=1e-5)
    engine.begin(1, 0, 101.2)
    assert engine.heartbeats.next_deadline() is None
    assert engine.looked(1, Liveness(0, 0, 0), 500.0) == 0
    engine.begin(1, 10_000, 600.0)
    assert engine.heartbeats.next_deadline() == pytest.approx(610.0, abs=1e-5)
    engine.heartbeats.drop(1)
    engine.heartbeats.drop(1)
    assert engine.wake(1e9) == []


@pytest.mark.parametrize("interval_ms", [1, 99, 3_600_001, 2**60])
def test_heartbeat_interval_outside_the_limits_is_refused(interval_ms: int) -> None:
    engine = Engine()
    with pytest.raises(BadOption, match=r"0\.1 to 3600 seconds"):
        engine.begin(1, interval_ms, 100.0)
    assert len(engine.heartbeats) == 0


def test_a_step_for_ten_thousand_connections_is_bounded() -> None:
    """All are due at the same time. One step probes a part of them, and none twice."""
    engine = Engine()
    for conn in range(10_000):
        engine.begin(conn, 1000, 100.0)
    seen: list[int] = []
    while looks := engine.wake(101.00001):
        assert len(looks) <= beats_a_step_max
        for conn in looks:
            assert engine.looked(conn, Liveness(100.9, 32, 100.0), 101.00001) == 1
        seen += looks
    assert sorted(seen) == list(range(10_000))
    assert engine.heartbeats.next_deadline() == pytest.approx(102.0, abs=1e-4)


# -- the whole engine ---------------------------------------------------------------------------------


def test_logon_with_a_heartbeat_starts_the_monitor_and_an_invalid_one_is_refused() -> None:
    world = EngineWorld(1)
    for conn, interval in ((50, 2000), (51, 5)):
        world.broker.connected(conn)
        world.broker.received(conn, Logon(name=f"c{conn}", heartbeat_ms=interval), None, world.now())
    closed = [effect for effect in world.broker.effects() if isinstance(effect, CloseConnection)]
    assert [(close.conn, close.reason) for close in closed] == [(51, "bad_option")]
    assert list(world.broker.sessions) == [50]
    assert len(world.broker.heartbeats) == 1
    deadline = world.broker.next_deadline()
    assert deadline is not None
    assert deadline <= world.mono + 2.0


def test_a_heartbeat_command_changes_the_interval_and_a_bad_one_ends_the_connection() -> None:
    world = EngineWorld(2)
    peer = world.connect("c")
    peer.send(Heartbeat())
    assert len(world.broker.heartbeats) == 0
    peer.send(Heartbeat(interval_ms=200))
    assert len(world.broker.heartbeats) == 1
    peer.send(Heartbeat(interval_ms=7))
    world.settle()
    assert peer.goodbye is not None
    assert peer.goodbye.code == "bad_option"
    assert len(world.broker.heartbeats) == 0


def test_silent_connection_receives_goodbye_and_is_counted_and_removed() -> None:
    world = EngineWorld(3)
    peer = world.connect("c")
    peer.send(Heartbeat(interval_ms=200))
    conn, now = peer.conn, Now(world.mono + 0.4, world.wall)
    world.broker.probed(conn, Liveness(world.mono, 0, world.mono), now)
    world.collect()
    world.settle()
    assert isinstance(peer.goodbye, Goodbye)
    assert peer.goodbye.code == "heartbeat"
    assert world.broker.statistics.ended == {"heartbeat": 1}
    assert conn not in world.broker.sessions
    assert world.connect("c").logged_on is not None
