"""The hunt for silent stalls: whatever stops a connection, who waits at either end hears of it in time."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.heartbeat_line import Life

LIVES = 500
PARTS = 40
"""Of a full run: 20,000 lives."""
SLACK = 1e-4

every_part = pytest.mark.parametrize(
    "part", [0, *[pytest.param(n, marks=pytest.mark.full) for n in range(1, PARTS)]]
)


@every_part
def test_whoever_falls_silent_is_noticed_within_two_intervals(part: int) -> None:
    """Half-open in both directions or in one, busy handlers and steps, any latency."""
    happened: Counter[str] = Counter()
    for seed in range(part * LIVES, (part + 1) * LIVES):
        life = Life(seed, cut=True)
        assert life.cut is not None
        mute = life.random.choice(("both", "client", "server"))
        if mute != "both":
            life.mute = {life.client if mute == "client" else life.server}
        busy = life.random.choice((0, 0.5))
        life.run(chatty=life.random.choice((0, 0.3, 5)), busy=busy)
        happened[f"{mute} {busy}"] += 1
        # a busy side may see only with its next look, an interval later, what arrived before; the other one
        # hears of the end at the latest when that has travelled
        limit = life.cut + (3.5 if busy else 2) * life.interval + 2 * life.latency + SLACK
        for side in (life.client, life.server):
            assert side.ended_at is not None, seed
            assert side.ended_at <= limit, seed
    assert len(happened) == 6


@every_part
def test_a_process_that_stood_still_is_given_up_with_notice_or_not_at_all(part: int) -> None:
    """A machine that sleeps for a while costs nothing; one that sleeps for long finds out when it wakes."""
    happened: Counter[str] = Counter()
    for seed in range(part * LIVES, (part + 1) * LIVES):
        life = Life(seed, cut=False)
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
