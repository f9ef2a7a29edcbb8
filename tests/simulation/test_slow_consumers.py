"""Long runs of live subscriptions with slow consumers.

A slow consumer spills to disk and returns, or is ended: by each of the limits, or by a disk that fails. Other
subscribers are not affected.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.simulation.live_subscriptions import PEERS, TOPICS, LiveSimulation
from tickertape.engine.transient.slow_consumers import SlowConsumerLimits

_ENDS = {
    "memory": "memory_limit",
    "connection": "connection_limit",
    "disk": "disk_limit",
    "age": "age_limit",
    "written": "cannot be written",
    "read": "cannot be read",
    "checksum": "checksum",
    "short": "truncated",
}


def _live(seed: int, counts: Counter[str]) -> None:
    rng = Random(seed)
    limits = SlowConsumerLimits(
        memory_bytes=rng.choice((40_000, 40_000, 64 << 20)),
        connection_bytes=rng.choice((2_000, 20_000, 16 << 20)),
        disk_bytes=rng.choice((0, 20_000, *[1 << 30] * 4)),
        age_seconds=rng.choice((None, None, None, 3.0)),
    )
    life = LiveSimulation(rng.choice((1, 3_000, 1 << 20)), limits)
    for number in range(PEERS):
        for topic in TOPICS:
            life.act("subscribe", number, topic)
    weights = {"publish": 30, "work": 30, "disk": 90, "credit": 20, "age": 4, "block": 8, "unblock": 8}
    weights |= {"subscribe": 2, "leave": 1, "fault": rng.choice((0, 2, 8))}
    for what in rng.choices(list(weights), list(weights.values()), k=300):
        if what == "publish":
            size = rng.choice((0, 90, 400, 1_500))
            life.publish([(rng.choice(TOPICS), size) for _ in range(rng.randrange(1, 12))])
        else:
            life.act(what, rng.randrange(PEERS), rng.choice(TOPICS))
        if not rng.randrange(8):
            life.check_accounts()
    life.check_end()
    backlogs = life.unrecorded.slow_consumers
    counts["offline"] += backlogs.offline_starts
    counts["blocks read back"] += backlogs.spill.read_bytes > 0
    counts["faults"] += backlogs.spill.failures
    counts["subscriptions served from disk"] += backlogs.spill.read_bytes > 0 and any(
        peer.goodbye is None for peer in life.peers
    )
    for peer in life.peers:
        for name, text in _ENDS.items():
            counts[name] += peer.goodbye is not None and text in peer.goodbye.text


def test_live_subscriptions_get_all_messages_in_order_or_are_ended_as_slow(full: bool) -> None:
    counts: Counter[str] = Counter()
    for seed in range(1_000 if full else 50):
        _live(seed, counts)
    missing = [name for name in (*_ENDS, "offline", "blocks read back", "faults") if not counts[name]]
    assert not missing, f"never happened: {missing}; {counts}"
    assert counts["subscriptions served from disk"] > 5
