"""Closed connections: their subscriptions end in bounded steps, and receive nothing meanwhile."""

from __future__ import annotations

import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.unit.engine.commands.test_subscribe_orders import finish_jobs
from tickertape.base.bookmarks import format_timestamp
from tickertape.engine.commands import subscribe
from tickertape.engine.limits import dropped_subscriptions_max
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.subscriptions.subscription import Subscription

MANY = 10_000


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the ended subscriptions, in order."""
    seen: list[str] = []
    before = Subscription.close

    def close(self: Subscription) -> None:
        seen.append(self.sub_id)
        before(self)

    monkeypatch.setattr(Subscription, "close", close)
    return seen


def _subscribe(peer: Peer, count: int, kinds: int, topic: str = "t") -> None:
    for number in range(count):
        peer.subscribe(f"s{number}", topic, filter=f"/k = {number % kinds}", credit=1 << 20)


def _disconnect(world: EngineWorld, peer: Peer) -> None:
    peer.closed = True
    world.broker.disconnected(peer.conn)
    world.collect()


def test_ten_thousand_subscriptions_of_a_closed_connection_end_in_bounded_steps(ended: list[str]) -> None:
    world = EngineWorld(1, segment_bytes=1 << 20)
    publisher, other, leaving = (world.connect(name) for name in ("publisher", "other", "leaving"))
    other.subscribe("o", "t", credit=1 << 20)
    _subscribe(leaving, MANY, 500)
    world.settle()
    index = world.broker._delivery.fanout._index
    assert index.entries == MANY + 1

    _disconnect(world, leaving)
    steps = [len(ended)]
    while len(ended) < MANY:
        publisher.publish("t", [b'{"k":%d}' % (len(steps) % 500)])
        while world.jobs:
            world.run_job()
        world.work()  # delivers the message
        assert len(other.heard["o"]) == publisher.acked_sequence == len(steps)
        before = len(ended)
        world.work()
        steps.append(len(ended) - before)
    assert steps == [dropped_subscriptions_max] * (MANY // dropped_subscriptions_max)
    assert sorted(ended) == sorted(f"s{number}" for number in range(MANY))
    assert index.entries == 1
    assert not any(world.broker.subscriptions.pending)


@pytest.mark.parametrize("topic", ["t", "rest"])
def test_closed_connection_with_pending_subscriptions_receives_nothing(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    monkeypatch.setattr(subscribe, "dropped_subscriptions_max", 1)
    world = EngineWorld(2, recorded=frozenset({"t"}))
    publisher, leaving = world.connect("publisher"), world.connect("leaving")
    publisher.publish("t", [b"first"])
    world.settle()
    period = f"[20250101T000000:{format_timestamp(world.wall + 4_000_000)})"
    leaving.subscribe("ends", "t", filter="FALSE", bookmark=period, credit=1 << 20)
    leaving.subscribe("noticed", "t", filter="FALSE", bookmark="0", credit=1 << 20)
    leaving.subscribe("slow", topic, credit=50)
    _subscribe(leaving, 8, 1, topic)
    finish_jobs(world)
    for number in range(2):
        publisher.publish(topic, [b'{"k":0,"n":%d}' % number], sequenced=topic == "t")
    finish_jobs(world)
    slow_consumers = world.broker.services.transient.slow_consumers
    assert bool(slow_consumers.waiting) is (topic == "rest")
    _disconnect(world, leaving)
    for number in range(4):
        publisher.publish(topic, [b'{"k":0,"n":%d}' % number], sequenced=topic == "t")
        world.work()
        while world.jobs:
            world.run_job()
        assert not slow_consumers.waiting
    world.wake(5.0)
    assert world.broker.has_work
    world.settle()
    assert not any(world.broker.subscriptions.pending)
    assert world.broker._delivery.oldest_needed().position == world.broker.journal.commits.persisted_end


def test_leases_of_a_closed_connection_return_before_the_other_subscriptions_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscribe, "dropped_subscriptions_max", 1)
    world = QueueEngine(QueueDefinition("q", "t"))
    publisher, leaving = world.connect("publisher"), world.connect("leaving")
    leaving.subscribe("q", "q", options="max_backlog=5")
    _subscribe(leaving, 8, 1)
    publisher.publish("t", [b"%d" % number for number in range(5)])
    world.settle()
    assert world.queue("q").leases.count == 5
    _disconnect(world, leaving)
    assert any(world.broker.subscriptions.pending)
    assert world.queue("q").leases.count == 0
