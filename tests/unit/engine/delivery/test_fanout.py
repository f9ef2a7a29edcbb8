"""The end of the log: what one step does is bounded, and whoever is put out goes on from exactly there."""

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


def _crowd(world: EngineWorld, count: int, topics: int = 1) -> list[Peer]:
    peers = [world.connect(f"reader{number}") for number in range(count)]
    for number, peer in enumerate(peers):
        peer.subscribe("s", f"t{number % topics}", credit=100_000)
    world.settle()
    return peers


def _deliveries(peers: list[Peer]) -> int:
    return sum(isinstance(command, Deliver) for peer in peers for command, _ in peer.received)


def test_one_step_serves_so_many_and_the_rest_has_its_turn_later() -> None:
    world = EngineWorld(1)
    peers = _crowd(world, 50)
    world.broker._delivery.step_bytes_max = 10 * step_delivery_bytes
    world.connect("publisher").publish("t0", [b"x"])
    while world.jobs:
        world.run_job()
    assert _deliveries(peers) == 10
    assert world.broker.has_work
    world.work()
    assert _deliveries(peers) == 20
    world.settle()
    assert _deliveries(peers) == 50
    assert not world.broker.has_work


def test_a_commit_is_gone_through_once_however_many_topics_are_asked_for() -> None:
    world = EngineWorld(2)
    peers = _crowd(world, 60, topics=60)
    publisher = world.connect("publisher")
    for number in range(60):
        publisher.publish(f"t{number}", [b"%d" % number, b"more"])
    world.settle()
    for number, peer in enumerate(peers):
        assert [heard.body for heard in peer.heard["s"]] == [b"%d" % number, b"more"]


def test_publishers_faster_than_the_sending_make_everybody_a_reader_of_its_own() -> None:
    world = EngineWorld(3)
    peers = _crowd(world, 5)
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


def test_who_asks_for_more_answers_than_may_wait_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
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
