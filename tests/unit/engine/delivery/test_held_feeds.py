"""Held log feeds: they pin the log and are sent nothing, and continue without a gap after the release."""

from __future__ import annotations

from tests.helpers.held_feeds import hold_feed
from tests.simulation.engine_peer import Heard, Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.engine.subscriptions.log_feed import LogFeed, Phase
from tickertape.journal.retention import RetentionPolicy
from tickertape.wire.commands import Unsubscribe


def _world(messages: int = 20) -> tuple[EngineWorld, Peer, Peer]:
    world = EngineWorld(5, segment_bytes=8_192, retention=RetentionPolicy(age_seconds=3600))
    world.broker.journal.view.tail_bytes_max = 1
    publisher = world.connect("publisher")
    for number in range(messages):
        publisher.publish(f"t{number % 2}", [b"%d" % number])
    world.settle()
    return world, publisher, world.connect("reader")


def _hold(world: EngineWorld, peer: Peer, topic: str = "t0") -> LogFeed:
    return hold_feed(world, peer, "s", topic, world.broker.journal.commits.persisted_end)


def _release(world: EngineWorld, feed: LogFeed) -> None:
    world.broker.services.log.release(feed)
    world.settle()


def _bodies(heard: list[Heard]) -> list[bytes]:
    return [message.body for message in heard]


def test_held_feed_is_sent_nothing_and_after_the_release_all_messages() -> None:
    world, publisher, peer = _world()
    feed = _hold(world, peer)
    for number in range(30):
        publisher.publish("t0", [b"new %d" % number])
        world.settle()
    assert peer.heard["s"] == []
    assert feed.owed
    assert not world.broker.services.log.caught_up(feed)
    _release(world, feed)
    assert _bodies(peer.heard["s"]) == [b"new %d" % number for number in range(30)]
    assert peer.marks["s"] == [], "the feed of the records sends `completed`"
    assert feed.phase is Phase.TAIL
    publisher.publish("t0", [b"last"])
    world.settle()
    assert _bodies(peer.heard["s"])[-1] == b"last"


def test_credit_and_writable_do_not_start_a_held_feed() -> None:
    world, publisher, peer = _world()
    feed = _hold(world, peer)
    publisher.publish("t0", [b"new"])
    world.settle()
    world.broker.subscriptions.credit(world.broker.sessions[peer.conn], "s", 1_000)
    world.broker.blocked(peer.conn)
    world.broker.writable(peer.conn)
    world.settle()
    assert peer.heard["s"] == []
    _release(world, feed)
    assert _bodies(peer.heard["s"]) == [b"new"]


def test_resume_does_not_release_a_held_feed() -> None:
    world, publisher, peer = _world()
    feed = _hold(world, peer)
    peer.subscribe("other", "t0", bookmark="0|1|", options="pause")
    world.settle()
    publisher.publish("t0", [b"new"])
    peer.pause("s")
    peer.resume("s", "other")
    world.settle()
    assert peer.heard["s"] == []
    assert _bodies(peer.heard["other"]) == [b"new"], "it does not share the cursor of the held feed"
    _release(world, feed)
    assert _bodies(peer.heard["s"]) == [b"new"]


def test_release_does_not_resume_a_paused_feed() -> None:
    world, publisher, peer = _world()
    feed = _hold(world, peer)
    peer.pause("s")
    publisher.publish("t0", [b"new"])
    _release(world, feed)
    assert peer.heard["s"] == []
    peer.resume("s")
    world.settle()
    assert _bodies(peer.heard["s"]) == [b"new"]


def test_held_feed_keeps_the_log_from_that_position_on() -> None:
    world, publisher, peer = _world()
    feed = _hold(world, peer)
    position = feed.position
    while world.broker.journal.view.segments[-1].number < 6:
        publisher.publish("t0", [world.rng.randbytes(300)] * 3)
        world.settle()
    pin = world.broker.services.log.oldest_needed()
    assert pin.position == position
    assert "'s'" in pin.who
    _expire(world)
    assert world.broker.journal.view.first_position <= position
    log = world.log("t0")[10:]
    _release(world, feed)
    assert peer.heard["s"] == log
    _expire(world)
    assert world.broker.journal.view.first_position > position


def test_end_of_a_held_feed_releases_the_pin() -> None:
    world, publisher, peer = _world()
    feed = _hold(world, peer)
    publisher.publish("t0", [b"new"])
    world.settle()
    peer.ids += 1
    peer.send(Unsubscribe(id=peer.ids, sub_ids=("s",)))
    _release(world, feed)
    assert peer.heard["s"] == []
    pin = world.broker.services.log.oldest_needed()
    assert pin.position == world.broker.journal.commits.persisted_end


def test_lost_connection_releases_the_pin_of_a_held_feed() -> None:
    world, publisher, peer = _world()
    _hold(world, peer)
    publisher.publish("t0", [b"new"])
    world.settle()
    world.broker.disconnected(peer.conn)
    del world.peers[peer.conn]
    world.settle()
    pin = world.broker.services.log.oldest_needed()
    assert pin.position == world.broker.journal.commits.persisted_end


def _expire(world: EngineWorld) -> None:
    world.wake(3_700)
    world.settle()
    world.wake(0.01)
    world.settle()
