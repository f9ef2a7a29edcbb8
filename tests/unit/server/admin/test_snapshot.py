"""Snapshots of a server: counts of omitted entries, and their cost for the event loop."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.helpers.sow_engine import publish
from tests.helpers.sow_peer import QueryWorld
from tests.helpers.steps import result_of, steps_of_each
from tests.simulation.engine_world import EngineWorld
from tickertape.base.histogram import Histogram
from tickertape.engine.limits import topics_counted_max
from tickertape.engine.queues import registry
from tickertape.engine.queues import snapshot as queue_snapshot
from tickertape.engine.queues.snapshot import QueueSnapshot
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.runtime.statistics import OTHER_TOPICS
from tickertape.server.admin import snapshot as looking
from tickertape.server.admin.metrics import exposition
from tickertape.server.admin.snapshot import InstanceSnapshot, with_topics
from tickertape.server.engine_driver import EngineDriver
from tickertape.server.limits import (
    sessions_listed_max,
    snapshot_step_connections_max,
    snapshot_step_queues_max,
    subscriptions_counted_max,
)
from tickertape.server.network.connection import ClientConnection


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
        handshakes=SimpleNamespace(bytes=3),
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
    stats = with_topics(result_of(InstanceSnapshot(instance_of(world_with(5, 2)), "test").stats()))
    assert [len(session.subscriptions) for session in stats.sessions] == [2, 2, 0]
    assert [session.subscription_count for session in stats.sessions] == [2, 2, 2]
    assert (stats.session_count, stats.sessions_left_out) == (5, 2)
    assert (stats.subscription_count, stats.subscriptions_left_out) == (10, 6)
    assert (stats.memory.outbox_bytes, stats.memory.inbound_bytes) == (35, 14)


def test_snapshot_above_the_subscription_limit_has_no_counts_by_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(looking, "subscriptions_counted_max", 9)
    world = world_with(5, 2)
    world.peers[1].publish("topic-0", [b"1"])
    world.settle()
    (topic,) = with_topics(result_of(InstanceSnapshot(instance_of(world), "test").stats())).topics
    assert (topic.name, topic.messages, topic.subscriptions) == ("topic-0", 1, None)
    monkeypatch.setattr(looking, "subscriptions_counted_max", 10)
    (topic,) = with_topics(result_of(InstanceSnapshot(instance_of(world), "test").stats())).topics
    assert topic.subscriptions == 5


STEPS_MAX = 140_000
"""Interpreter steps of the largest step of a snapshot: 105,000 today, 1 to 2 ms."""


@pytest.mark.slow
def test_snapshot_of_the_largest_server_takes_bounded_steps() -> None:
    """Each step blocks the event loop. Entries beyond the limits cost almost nothing."""
    world = world_with(subscriptions_counted_max // 5, 5)
    for n in range(0, topics_counted_max + 10, 101):
        names = [f"topic-{n + i}" for i in range(101)]
        for name in names:
            world.peers[1].publish(name, [b"1"])
        world.settle()
    snapshot = InstanceSnapshot(instance_of(world), "test")
    stats = with_topics(result_of(snapshot.stats()))
    steps = steps_of_each(snapshot.stats())
    assert len(stats.sessions) == sessions_listed_max
    assert len(stats.topics) == topics_counted_max + 1
    assert stats.topics[-1].name == OTHER_TOPICS
    assert max(steps) <= STEPS_MAX, steps
    body, _ = exposition(stats, "")
    assert body.count(b"\ntickertape_topic_messages_total{") == topics_counted_max + 1


class CountedConnection:
    """A connection that counts how often a snapshot reads its outbox."""

    address, since = "h:1", 0.0
    reads = 0

    @property
    def outbox_bytes(self) -> int:
        CountedConnection.reads += 1
        return 3


def reads_of_each_step(snapshot: InstanceSnapshot, read: Callable[[], int]) -> list[int]:
    """Return how much `read` grows in each step of a snapshot."""
    counts, before = [], read()
    for _ in snapshot.stats():
        counts.append(read() - before)
        before = read()
    return [*counts, read() - before]


def test_snapshot_of_10_000_connections_reads_bounded_connections_in_each_step() -> None:
    driver = instance_of(EngineWorld(1))
    driver.connections.update((n, cast("ClientConnection", CountedConnection())) for n in range(10_000))
    snapshot = InstanceSnapshot(driver, "test")
    reads = reads_of_each_step(snapshot, lambda: CountedConnection.reads)
    assert max(reads) == snapshot_step_connections_max
    assert sum(reads) == 10_000
    assert result_of(snapshot.stats()).stats.memory.outbox_bytes == 30_000


def test_snapshot_of_many_queues_reads_bounded_queues_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * snapshot_step_queues_max + 1
    engine = QueueEngine(*(QueueDefinition(f"work-{n}") for n in range(count)))
    read = 0
    seen = queue_snapshot.snapshot

    def counted(*arguments: Any) -> QueueSnapshot:
        nonlocal read
        read += 1
        return seen(*arguments)

    monkeypatch.setattr(registry, "snapshot", counted)
    snapshot = InstanceSnapshot(instance_of(engine), "test")
    reads = reads_of_each_step(snapshot, lambda: read)
    assert max(reads) == snapshot_step_queues_max
    assert sum(reads) == count
    assert [queue.name for queue in result_of(snapshot.stats()).stats.queues] == [
        f"work-{n}" for n in range(count)
    ]


def test_snapshot_has_the_result_of_a_query_and_the_held_messages() -> None:
    world = QueryWorld(SowDefinition("orders", key=("/id",)))
    publish(world.connect("publisher"), [("orders", b'{"id":%d}' % key) for key in range(100)])
    world.settle()
    peer = world.reader()
    peer.query("q", "orders", credit=1_000, filter="/id > 1", follow=True)
    for _ in range(60):
        world.step()
    stats = with_topics(result_of(InstanceSnapshot(instance_of(world), "test").stats()))
    (session,) = [session for session in stats.sessions if session.subscriptions]
    result, messages = session.subscriptions
    assert (result.sub_id, result.topic, result.filter) == ("q", "orders", "/id > 1")
    assert (result.recorded, result.caught_up, result.blocked) == (True, False, True)
    assert (messages.sub_id, messages.position, messages.caught_up) == (
        "q",
        peer.results["q"].position,
        False,
    )
