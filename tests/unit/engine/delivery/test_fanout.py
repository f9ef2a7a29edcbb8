"""Fan-out at the end of the log: bounded steps, and ejected subscriptions continue without a gap."""

from __future__ import annotations

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.interfaces import Now
from tickertape.engine.commands import ack_tracker
from tickertape.engine.limits import step_delivery_bytes
from tickertape.engine.runtime.effects import DiskJob, PauseReading, ResumeReading
from tickertape.engine.subscriptions.log_feed import Phase
from tickertape.wire.commands import Deliver, Flush


def _readers(world: EngineWorld, count: int, topics: int = 1) -> list[Peer]:
    peers = [world.connect(f"reader{number}") for number in range(count)]
    for number, peer in enumerate(peers):
        peer.subscribe("s", f"t{number % topics}", credit=100_000)
    world.settle()
    return peers


def _deliveries(peers: list[Peer]) -> int:
    return sum(isinstance(command, Deliver) for peer in peers for command, _ in peer.received)


def test_fanout_step_serves_a_bounded_number_of_subscriptions() -> None:
    world = EngineWorld(1)
    peers = _readers(world, 50)
    world.broker._delivery.step_bytes_max = 10 * step_delivery_bytes
    world.connect("publisher").publish("t0", [b"x"])
    while world.jobs:
        world.run_job()
    world.work()
    assert _deliveries(peers) == 10
    assert world.broker.has_work
    world.work()
    assert _deliveries(peers) == 20
    world.settle()
    assert _deliveries(peers) == 50
    assert not world.broker.has_work


def test_commits_with_many_topics_are_delivered_to_the_subscription_of_each_topic() -> None:
    world = EngineWorld(2)
    peers = _readers(world, 60, topics=60)
    publisher = world.connect("publisher")
    for number in range(60):
        publisher.publish(f"t{number}", [b"%d" % number, b"more"])
    world.settle()
    for number, peer in enumerate(peers):
        assert [heard.body for heard in peer.heard["s"]] == [b"%d" % number, b"more"]


def test_fanout_overrun_moves_every_subscription_to_a_separate_replay() -> None:
    world = EngineWorld(3)
    peers = _readers(world, 5)
    delivery = world.broker._delivery
    delivery.step_bytes_max = 1
    delivery.fanout.backlog_bytes_max = 2_000
    publisher = world.connect("publisher")
    for number in range(20):
        publisher.publish("t0", [b"%d" % number + bytes(500)])
        while world.jobs:
            world.run_job()
    assert delivery.fanout.overruns
    assert not list(delivery.fanout.feeds())
    world.settle()
    for peer in peers:
        assert [heard.body for heard in peer.heard["s"]] == [b"%d" % n + bytes(500) for n in range(20)]
    assert {sub.phase for sub in delivery.fanout.feeds()} == {Phase.TAIL}


def test_client_with_too_many_pending_flushes_is_paused_until_answers_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ack_tracker, "owed_max", 10)
    world = EngineWorld(4)
    peer = world.connect("p")
    peer.publish("t", [b"x"])
    for number in range(1, 30):
        world.broker.received(peer.conn, Flush(id=number), None, Now(200.0, world.wall))
    effects = world.broker.effects()
    assert effects.count(PauseReading(peer.conn, "journal")) == 1
    assert not any(isinstance(effect, ResumeReading) for effect in effects)
    world.jobs.extend(effect.job for effect in effects if isinstance(effect, DiskJob))
    resumed = False
    while world.jobs:
        job = world.jobs.popleft()
        salt = world._executor.run(job)
        world.broker.disk_done(job, None, salt, Now(201.0, world.wall))
        for effect in world.broker.effects():
            resumed |= effect == ResumeReading(peer.conn, "journal")
            if isinstance(effect, DiskJob):
                world.jobs.append(effect.job)
    assert resumed
