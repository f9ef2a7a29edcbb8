"""Silent stalls: both ends notice any stopped connection in time."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.heartbeat_line import HeartbeatRun

LIVES = 500
PARTS = 40
"""Parts of a full run: 20,000 connections."""
SLACK = 1e-4

every_part = pytest.mark.parametrize(
    "part", [0, *[pytest.param(n, marks=pytest.mark.full) for n in range(1, PARTS)]]
)


@every_part
def test_heartbeat_with_a_silent_side_ends_both_sides_within_two_intervals(part: int) -> None:
    """Half-open in both directions or in one, busy handlers and steps, any latency."""
    happened: Counter[str] = Counter()
    for seed in range(part * LIVES, (part + 1) * LIVES):
        life = HeartbeatRun(seed, cut=True)
        assert life.cut is not None
        mute = life.random.choice(("both", "client", "server"))
        if mute != "both":
            life.mute = {life.client if mute == "client" else life.server}
        busy = life.random.choice((0, 0.5))
        life.run(chatty=life.random.choice((0, 0.3, 5)), busy=busy)
        happened[f"{mute} {busy}"] += 1
        # A busy side may read earlier data only at its next check, an interval later. The other side learns
        # of the end at the latest when it has travelled.
        limit = life.cut + (3.5 if busy else 2) * life.interval + 2 * life.latency + SLACK
        for side in (life.client, life.server):
            assert side.ended_at is not None, seed
            assert side.ended_at <= limit, seed
    assert len(happened) == 6


@every_part
def test_heartbeat_of_a_suspended_process_ends_both_sides_or_neither(part: int) -> None:
    """A short suspension costs nothing. After a long one, the process learns of the end when it wakes."""
    happened: Counter[str] = Counter()
    for seed in range(part * LIVES, (part + 1) * LIVES):
        life = HeartbeatRun(seed, cut=False)
        sleeper = life.random.choice((life.client, life.server))
        long = life.random.random() < 0.5
        spare = life.interval - life.latency
        seconds = (
            life.random.uniform(2 * life.interval + life.latency, 9 * life.interval) if long else 0.99 * spare
        )
        life.suspend(
            sleeper, life.random.uniform(0, 15 * life.interval), seconds + (2 * SLACK if long else 0)
        )
        life.run(chatty=life.random.choice((0, 0.3, 5)), busy=0)
        happened[f"{long} {sleeper is life.client}"] += 1
        ends = [life.client.ended_at, life.server.ended_at]
        assert [end is not None for end in ends] == [long, long], (seed, ends)
    assert len(happened) == 4
