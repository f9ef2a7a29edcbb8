"""A clean stop, as the engine decides it: what is still taken, and who is still owed something."""

from __future__ import annotations

from tests.simulation.engine_world import EngineWorld, Peer
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
    assert world.broker.journal.closed
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
    return world.broker.subscribing.of(peer.conn).owed


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
