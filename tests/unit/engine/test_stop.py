"""A clean stop, as the engine decides it: what is still taken, and who is still owed something."""

from __future__ import annotations

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.wire.commands import Ack, Flush


def closing(world: EngineWorld) -> None:
    world.broker.close(world.now())
    world.collect()


def test_what_was_accepted_is_acknowledged_and_what_comes_later_is_not_taken() -> None:
    world = EngineWorld(1)
    peer = world.connect("publisher")
    peer.publish("t", [b"1", b"2"])
    closing(world)
    peer.publish("t", [b"3"])
    peer.send(Flush(id=7, level="persisted"))
    world.settle()
    assert world.broker.journal.commits.closed
    assert peer.acked_frame == 1
    assert 7 not in peer.answers, "a flush must not tell that the third message is persisted"
    assert peer.goodbye is None, "it is said when everything else is"
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


def test_new_logons_and_subscriptions_are_refused() -> None:
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


def test_a_reader_is_owed_the_log_until_it_has_it_even_when_it_published_late() -> None:
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


@pytest.mark.parametrize("unpersisted", [False, True])
def test_exact_18_what_conflation_holds_back_is_sent_at_a_stop(unpersisted: bool) -> None:
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


def test_a_replay_that_conflates_gets_all_of_the_log_at_a_stop_as_far_as_its_credit_goes() -> None:
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
    assert world.broker.subscriptions.owed(reader.conn), "it is for the driver to wait no longer"


@pytest.mark.parametrize("options", ["conflation=1h,rate=0.001", "conflation=1h,pause"])
def test_what_goes_at_a_pace_of_its_own_is_not_waited_for(options: str) -> None:
    world = EngineWorld(5)
    writer, reader = world.connect("writer"), world.connect("reader")
    writer.publish("t", [b"1"])
    world.settle()
    reader.subscribe("s", "t", bookmark="0", options=options)
    world.settle()
    closing(world)
    world.settle()
    assert not world.broker.subscriptions.owed(reader.conn)
