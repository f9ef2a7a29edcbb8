"""Queue dispatch while some consumers lack credit."""

from __future__ import annotations

import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.simulation.engine_peer import Peer
from tickertape.engine.runtime.queue_definition import FAIRNESS, Fairness, QueueDefinition
from tickertape.wire.commands import Ack

LARGE = b'{"kind": "a", "text": "%s"}' % (b"x" * 1_500)


def stalled(world: QueueEngine) -> Peer:
    """Return a consumer with a large backlog, a stalled application, and credit for 1.5 large messages."""
    peer = world.connect("stalled")
    peer.give_credit = lambda sub_id: peer.owed_credit.update({sub_id: 0})  # type: ignore[method-assign]
    peer.subscribe("s", "work", options="max_backlog=100", credit=2_500)
    world.settle()
    return peer


@pytest.mark.parametrize("filter", [None, "TRUE"])
@pytest.mark.parametrize("fairness", FAIRNESS)
def test_consumer_without_credit_does_not_block_the_message_for_others(
    fairness: Fairness, filter: str | None
) -> None:
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


def test_consumer_without_credit_does_not_block_later_messages_for_others() -> None:
    world = QueueEngine(QueueDefinition("work"), segment_bytes=1 << 20)
    slow = stalled(world)
    picky = world.connect("picky")
    picky.subscribe("s", "work", options="max_backlog=10", credit=100_000, filter="/kind = 'b'")
    publisher = world.connect("publisher")
    publisher.publish("work", [LARGE] * 130 + [b'{"kind": "b"}'])  # more than all backlogs together
    world.settle()
    assert [heard.body for heard in picky.heard["s"]] == [b'{"kind": "b"}']
    assert (len(slow.heard["s"]), world.look("work").ready) == (1, 129)


def test_new_credit_delivers_the_message_that_lacked_credit() -> None:
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


def test_message_larger_than_the_outbox_is_delivered_while_others_are_leased() -> None:
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


def test_round_robin_turn_is_kept_when_an_earlier_consumer_disconnects() -> None:
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
def test_queue_filter_is_checked_against_the_message_type_of_the_underlying_topic(options: str) -> None:
    world = QueueEngine(QueueDefinition("work", underlying="pictures"))
    world.topic_types = {"pictures": "binary"}
    world.reopen()
    peer = world.connect("c")
    asked = peer.subscribe("s", "work", options=options, filter="/a = 2")
    world.settle()
    answer = peer.answers[asked]
    assert isinstance(answer, Ack)
    assert (answer.code, "pictures" in answer.text) == ("bad_filter", True)


def test_leases_of_a_replaced_queue_consumer_return_at_disconnect() -> None:
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


def test_backlog_freed_in_one_queue_serves_other_queues_of_a_pattern() -> None:
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
