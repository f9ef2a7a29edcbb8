"""Who is served while others cannot be: an engine with queues, whose consumers have little credit."""

from __future__ import annotations

import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.simulation.engine_peer import Peer
from tickertape.engine.runtime.queue_definition import FAIRNESS, Fairness, QueueDefinition
from tickertape.wire.commands import Ack

LARGE = b'{"kind": "a", "text": "%s"}' % (b"x" * 1_500)


def stalled(world: QueueEngine) -> Peer:
    """A consumer with room for many messages, whose application takes nothing, and with credit for one and a
    half of the large ones."""
    peer = world.connect("stalled")
    peer.give_credit = lambda sub_id: peer.owed_credit.update({sub_id: 0})  # type: ignore[method-assign]
    peer.subscribe("s", "work", options="max_backlog=100", credit=2_500)
    world.settle()
    return peer


@pytest.mark.parametrize("filter", [None, "TRUE"])
@pytest.mark.parametrize("fairness", FAIRNESS)
def test_who_has_no_credit_for_a_message_keeps_it_from_nobody(fairness: Fairness, filter: str | None) -> None:
    world = QueueEngine(QueueDefinition("work", fairness=fairness), segment_bytes=1 << 20)
    slow = stalled(world)
    quick = world.connect("quick")
    quick.subscribe("s", "work", options="max_backlog=10", credit=100_000, filter=filter)
    publisher = world.connect("publisher")
    for _ in range(6):
        publisher.publish("work", [LARGE])
        world.settle()
    assert (len(slow.heard["s"]), len(quick.heard["s"])) in {(1, 5), (0, 6)}
    assert world.look("work").ready == 0


def test_who_has_no_credit_for_the_next_message_keeps_others_from_none_behind_it() -> None:
    world = QueueEngine(QueueDefinition("work"), segment_bytes=1 << 20)
    slow = stalled(world)
    picky = world.connect("picky")
    picky.subscribe("s", "work", options="max_backlog=10", credit=100_000, filter="/kind = 'b'")
    publisher = world.connect("publisher")
    publisher.publish("work", [LARGE] * 130 + [b'{"kind": "b"}'])  # beyond all room that there is
    world.settle()
    assert [heard.body for heard in picky.heard["s"]] == [b'{"kind": "b"}']
    assert (len(slow.heard["s"]), world.look("work").ready) == (1, 129)


def test_credit_brings_the_message_that_it_was_short_of() -> None:
    world = QueueEngine(QueueDefinition("work"), segment_bytes=1 << 20)
    slow = stalled(world)
    world.connect("publisher").publish("work", [LARGE] * 3)
    world.settle()
    assert len(slow.heard["s"]) == 1
    for heard in (2, 3):
        slow.owed_credit["s"] = slow.outstanding["s"]
        Peer.give_credit(slow, "s")
        world.settle()
        assert len(slow.heard["s"]) == heard


def test_a_message_above_what_a_connection_holds_comes_while_others_are_out() -> None:
    world = QueueEngine(QueueDefinition("work"), segment_bytes=1 << 22)
    peer = world.connect("consumer")
    peer.give_credit = lambda sub_id: peer.owed_credit.update({sub_id: 0})  # type: ignore[method-assign]
    peer.subscribe("s", "work", options="max_backlog=10", credit=2 << 20)
    publisher = world.connect("publisher")
    publisher.publish("work", [b"small"])
    world.settle()
    publisher.publish("work", [b"x" * (3 << 19)])
    world.settle()
    assert len(peer.heard["s"]) == 2


def test_whose_turn_it_is_stays_when_one_before_it_goes() -> None:
    world = QueueEngine(QueueDefinition("work", fairness="round-robin"))
    peers = [world.connect(name) for name in "abc"]
    for peer in peers:
        peer.subscribe("s", "work", options="max_backlog=10")
    publisher = world.connect("publisher")
    publisher.publish("work", [b"1"])
    world.settle()
    first, second, third = (len(peer.heard["s"]) for peer in peers)
    assert (first, second, third) == (1, 0, 0)
    world.settlement(peers[0], "work", b"1")
    world.disconnect(peers[0])
    publisher.publish("work", [b"2"])
    world.settle()
    assert [len(peer.heard["s"]) for peer in peers[1:]] == [1, 0]


@pytest.mark.parametrize("options", ["browse", "max_backlog=2"])
def test_a_filter_on_a_queue_is_one_on_what_its_topics_hold(options: str) -> None:
    world = QueueEngine(QueueDefinition("work", underlying="pictures"))
    world.topic_types = {"pictures": "binary"}
    world.reopen()
    peer = world.connect("c")
    asked = peer.subscribe("s", "work", options=options, filter="/a = 2")
    world.settle()
    answer = peer.answers[asked]
    assert isinstance(answer, Ack)
    assert (answer.code, "pictures" in answer.text) == ("bad_filter", True)


def test_what_is_held_of_a_queue_before_a_replacement_goes_back_at_the_end() -> None:
    world = QueueEngine(QueueDefinition("work"), QueueDefinition("other"))
    world.connect("publisher").publish("work", [b"1"])
    peer = world.connect("c")
    peer.subscribe("s", "work")
    world.settle()
    peer.subscribe("s", "other", options="replace")
    world.settle()
    assert (world.look("work").leased, world.look("work").consumers) == (1, 0)
    world.disconnect(peer)
    assert (world.look("work").ready, dict(world.look("work").returned)) == (1, {"holder_gone": 1})


def test_room_that_one_queue_gives_back_serves_the_others_of_a_pattern() -> None:
    world = QueueEngine(QueueDefinition("q/a"), QueueDefinition("q/b"))
    peer = world.connect("c")
    peer.give_credit = lambda sub_id: peer.owed_credit.update({sub_id: 0})  # type: ignore[method-assign]
    peer.subscribe("s", "^q/", options="max_backlog=1")
    publisher = world.connect("publisher")
    for topic in ("q/a", "q/b"):
        publisher.publish(topic, [topic.encode()])
        world.settle()
    assert [heard.body for heard in peer.heard["s"]] == [b"q/a"]
    world.settlement(peer, "q/a", b"q/a")
    assert [heard.body for heard in peer.heard["s"]] == [b"q/a", b"q/b"]
