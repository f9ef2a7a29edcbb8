"""Heartbeats in virtual time: both sides end a dead connection in time, and never a live one."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.simulation.heartbeat_line import HeartbeatRun

TICK_SECONDS = 1e-6
"""Tick of the engine: due heartbeats are up to two ticks late rather than early."""


@given(st.integers(0, 2**32))
def test_heartbeat_with_live_sides_ends_neither(seed: int) -> None:
    life = HeartbeatRun(seed, cut=False)
    life.run(chatty=life.random.choice((0, 0.3, 5)), busy=life.random.choice((0, 0.5)))
    assert life.client.ended_at is life.server.ended_at is None


@example(139)
@given(st.integers(0, 2**32))
def test_heartbeat_silence_never_exceeds_an_interval(seed: int) -> None:
    life = HeartbeatRun(seed, cut=False)
    life.run(chatty=life.random.choice((0, 0.3, 5)), busy=0)
    for side in (life.client, life.server):
        assert side.gaps <= life.interval + 3 * TICK_SECONDS
        assert life.end - side.said_at <= life.interval * 1.000_01
        assert side.beats <= life.end / life.interval + 1


@given(st.integers(0, 2**32))
def test_heartbeat_on_a_half_open_connection_ends_both_sides_within_two_intervals(seed: int) -> None:
    life = HeartbeatRun(seed, cut=True)
    life.run(chatty=life.random.choice((0, 0.3, 5)), busy=0)
    assert life.cut is not None
    for side in (life.client, life.server):
        assert side.ended_at is not None
        assert side.ended_at <= life.cut + 2 * life.interval + life.latency + 1e-5


@given(st.integers(0, 2**32))
def test_heartbeat_on_a_half_open_connection_with_busy_sides_ends_both(seed: int) -> None:
    life = HeartbeatRun(seed, cut=True)
    life.run(chatty=life.random.choice((0, 0.3, 5)), busy=0.5)
    assert life.cut is not None
    for side in (life.client, life.server):
        assert side.ended_at is not None
        # data from before the end may have been read by a check up to an interval later
        assert side.ended_at <= life.cut + 3.5 * life.interval + life.latency + 1e-5


@pytest.mark.parametrize("busy", [0, 3.0])
def test_heartbeat_of_a_client_suspended_for_three_intervals_ends_the_server_side(busy: float) -> None:
    """The oracle's own check: a client whose bytes take three intervals is given up."""
    life = HeartbeatRun(1, cut=False)
    life.latency = 0
    life.client.suspended = True
    life.run(chatty=0, busy=busy)
    assert life.server.ended_at is not None
