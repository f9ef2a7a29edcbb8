"""Buffered reads of subscriptions without credit: read once, and bounded for all together."""

from __future__ import annotations

import pytest

from tests.simulation.engine_world import EngineWorld, cost
from tickertape.engine.log_reads import log_reads

BODIES = [b"%03d" % number + bytes(20_000) for number in range(100)]


def _replay(readers: int) -> tuple[EngineWorld, int]:
    """Replay one large commit with credit for a tenth at a time, and return the number of reads."""
    world = EngineWorld(3)
    publisher = world.connect("publisher")
    publisher.publish("t", BODIES)
    world.settle()
    world.small_tail()
    world.broker.journal.view.tail.clear()
    peers = [world.connect(f"reader{number}") for number in range(readers)]
    for peer in peers:
        peer.subscribe("s", "t", bookmark="0", credit=cost(BODIES[:10]))
    for _ in range(20):
        world.settle()
        for peer in peers:
            peer.give_credit("s")
    world.settle()
    for peer in peers:
        assert [heard.body[:3] for heard in peer.heard["s"]] == [body[:3] for body in BODIES]
    return world, world.counts["reads"]


def test_a_commit_larger_than_the_credit_is_read_once() -> None:
    assert _replay(1)[1] == 1


def test_commit_beyond_the_buffer_limit_is_read_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reads, "read_ahead_bytes_max", sum(map(len, BODIES)) + 100_000)
    world, reads = _replay(3)
    assert reads > 6
    assert world.broker.reads.budgets.log.held_bytes == 0
