"""Clean stop of the engine: accepted commands and pending deliveries."""

from __future__ import annotations

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.wire.commands import Ack, Flush


def closing(world: EngineWorld) -> None:
    world.broker.close(world.now())
    world.collect()


def test_stop_acknowledges_accepted_messages_and_ignores_later_ones() -> None:
    world = EngineWorld(1)
    peer = world.connect("publisher")
    peer.publish("t", [b"1", b"2"])
    closing(world)
    peer.publish("t", [b"3"])
    peer.send(Flush(id=7, level="persisted"))
    world.settle()
    assert world.broker.journal.commits.closed
    assert peer.acked_frame == 1
    assert 7 not in peer.answers, "a flush must not confirm the third message"
    assert peer.goodbye is None, "goodbye is sent last"
    assert [heard.body for heard in world.log("t")] == [b"1", b"2"]


def test_a_flush_before_any_late_publish_is_answered() -> None:
    world = EngineWorld(1)
    peer = world.connect("publisher")
    peer.publish("t", [b"1"])
    closing(world)
    peer.send(Flush(id=7, level="persisted"))
    world.settle()
    answer = peer.answers[7]
    assert isinstance(answer, Ack)
    assert answer.code == ""


def test_stop_refuses_new_logons_and_subscriptions() -> None:
    world = EngineWorld(1)
    peer = world.connect("reader")
    closing(world)
    peer.subscribe("s", "t", bookmark="0")
    late = world.connect("late")
    world.settle()
    answer = peer.answers[peer.ids]
    assert isinstance(answer, Ack)
    assert answer.code == "not_ready"
    assert late.goodbye is not None
    assert late.goodbye.code == "not_ready"


def owes(world: EngineWorld, peer: Peer) -> bool:
    return world.broker.subscriptions.of(peer.conn).owed


def test_stop_waits_until_a_reader_has_the_log_despite_a_late_publish() -> None:
    world = EngineWorld(2)
    writer, reader = world.connect("writer"), world.connect("reader")
    bodies = [b"%01000d" % n for n in range(20)]
    writer.publish("t", bodies)
    world.settle()
    reader.subscribe("s", "t", bookmark="0", credit=1_500)
    closing(world)
    assert owes(world, reader)
    assert not owes(world, writer)
    reader.publish("t", [b"late"])
    world.settle()
    assert [heard.body for heard in reader.heard["s"]] == bodies
    assert not owes(world, reader)


@pytest.mark.behaviour(18)
@pytest.mark.parametrize("unpersisted", [False, True])
def test_conflated_messages_are_sent_at_a_stop(unpersisted: bool) -> None:
    world = EngineWorld(3)
    writer, reader = world.connect("writer"), world.connect("reader")
    reader.subscribe("s", "t", bookmark="0", options="conflation=1h,conflation_key=[/k]")
    world.settle()
    writer.publish("t", [b'{"k":1,"n":1}', b'{"k":2,"n":2}'])
    writer.publish("t", [b'{"k":1,"n":3}'])
    if not unpersisted:
        world.settle()
    assert reader.heard["s"] == []
    closing(world)
    assert world.broker.subscriptions.owed(reader.conn)
    world.settle()
    assert [heard.body for heard in reader.heard["s"]] == [b'{"k":1,"n":3}', b'{"k":2,"n":2}']
    assert not world.broker.subscriptions.owed(reader.conn)


def test_conflated_replay_receives_the_log_at_a_stop_within_the_credit() -> None:
    world = EngineWorld(4)
    writer, reader = world.connect("writer"), world.connect("reader")
    for number in range(30):
        writer.publish("t", [b"%01000d" % number] * 2)
        world.settle()
    world.small_tail()
    reader.subscribe("s", "t", bookmark="0", options="conflation=1h")
    reader.subscribe("poor", "t", bookmark="0", options="conflation=1h,conflation_key=[/none]", credit=1_100)
    closing(world)
    while world.jobs or world.reads or world.broker.has_work:
        world.run_job() if world.jobs else world.run_read() if world.reads else world.work()
    assert [heard.body for heard in reader.heard["s"]] == [b"%01000d" % 29]
    assert len(reader.heard["poor"]) == 1
    assert world.broker.subscriptions.owed(reader.conn), "the driver decides to stop waiting"


@pytest.mark.parametrize("options", ["conflation=1h,rate=0.001", "conflation=1h,pause"])
def test_stop_does_not_wait_for_rated_or_paused_subscriptions(options: str) -> None:
    world = EngineWorld(5)
    writer, reader = world.connect("writer"), world.connect("reader")
    writer.publish("t", [b"1"])
    world.settle()
    reader.subscribe("s", "t", bookmark="0", options=options)
    world.settle()
    closing(world)
    world.settle()
    assert not world.broker.subscriptions.owed(reader.conn)
