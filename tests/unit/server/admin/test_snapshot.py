"""Snapshots of a server: counts of omitted entries, and their cost for the event loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tests.helpers.steps import steps_of
from tests.simulation.engine_world import EngineWorld
from tickertape.base.histogram import Histogram
from tickertape.engine.limits import topics_counted_max
from tickertape.engine.runtime.statistics import OTHER_TOPICS
from tickertape.server.admin import snapshot as looking
from tickertape.server.admin.metrics import exposition
from tickertape.server.admin.snapshot import InstanceSnapshot, with_topics
from tickertape.server.engine_driver import EngineDriver
from tickertape.server.limits import sessions_listed_max, subscriptions_counted_max


def instance_of(world: EngineWorld) -> EngineDriver:
    """Return the parts of an instance that a snapshot reads."""
    connections = {conn: SimpleNamespace(address="h:1", outbox_bytes=7, since=0.0) for conn in world.peers}
    parts = SimpleNamespace(
        broker=world.broker,
        connections=connections,
        disk_worker=SimpleNamespace(syncs=Histogram()),
        steps=Histogram(),
        stopped=PendingFuture(),
        inbound=SimpleNamespace(bytes=11),
    )
    return cast("EngineDriver", parts)


class PendingFuture:
    """A future without a result."""

    def done(self) -> bool:
        return False


def world_with(clients: int, subscriptions: int) -> EngineWorld:
    """Return an engine with clients, each with this number of subscriptions."""
    world = EngineWorld(1)
    for n in range(clients):
        peer = world.connect(f"client-{n}")
        for s in range(subscriptions):
            peer.subscribe(f"s{s}", f"topic-{s}")
    world.settle()
    return world


def test_snapshot_counts_sessions_and_subscriptions_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "sessions_listed_max", 3)
    monkeypatch.setattr(looking, "subscriptions_listed_max", 4)
    monkeypatch.setattr(looking, "subscriptions_counted_max", 10)
    stats = with_topics(InstanceSnapshot(instance_of(world_with(5, 2)), "test").stats())
    assert [len(session.subscriptions) for session in stats.sessions] == [2, 2, 0]
    assert [session.subscription_count for session in stats.sessions] == [2, 2, 2]
    assert (stats.session_count, stats.sessions_left_out) == (5, 2)
    assert (stats.subscription_count, stats.subscriptions_left_out) == (10, 6)
    assert (stats.memory.outbox_bytes, stats.memory.inbound_bytes) == (35, 11)


def test_snapshot_above_the_subscription_limit_has_no_counts_by_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(looking, "subscriptions_counted_max", 9)
    world = world_with(5, 2)
    world.peers[1].publish("topic-0", [b"1"])
    world.settle()
    (topic,) = with_topics(InstanceSnapshot(instance_of(world), "test").stats()).topics
    assert (topic.name, topic.messages, topic.subscriptions) == ("topic-0", 1, None)
    monkeypatch.setattr(looking, "subscriptions_counted_max", 10)
    (topic,) = with_topics(InstanceSnapshot(instance_of(world), "test").stats()).topics
    assert topic.subscriptions == 5


STEPS_MAX = 320_000
"""Interpreter steps of the largest snapshot: 251,000 today, 2 to 4 ms."""


@pytest.mark.slow
def test_snapshot_of_the_largest_server_takes_bounded_steps() -> None:
    """The snapshot blocks the event loop. Entries beyond the limits cost almost nothing."""
    world = world_with(subscriptions_counted_max // 5, 5)
    for n in range(0, topics_counted_max + 10, 101):
        names = [f"topic-{n + i}" for i in range(101)]
        for name in names:
            world.peers[1].publish(name, [b"1"])
        world.settle()
    snapshot = InstanceSnapshot(instance_of(world), "test")
    seen = snapshot.stats()
    steps = steps_of(snapshot.stats)
    stats = with_topics(seen)
    assert len(stats.sessions) == sessions_listed_max
    assert len(stats.topics) == topics_counted_max + 1
    assert stats.topics[-1].name == OTHER_TOPICS
    assert steps <= STEPS_MAX
    body, _ = exposition(stats, "")
    assert body.count(b"\ntickertape_topic_messages_total{") == topics_counted_max + 1
