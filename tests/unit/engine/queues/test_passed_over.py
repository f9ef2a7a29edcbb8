"""Consumers whose lease expired: others get the messages first."""

from __future__ import annotations

import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.simulation.engine_peer import Peer
from tickertape.engine.runtime.queue_definition import FAIRNESS, Fairness, QueueDefinition

LEASE = 5.0


def consumer(world: QueueEngine, name: str, *, backlog: int = 1, filter: str | None = None) -> Peer:
    """Return a consumer that never settles by itself."""
    peer = world.connect(name)
    peer.subscribe("s", "work", options=f"max_backlog={backlog}", filter=filter)
    world.settle()
    return peer


def publish(world: QueueEngine, *bodies: bytes) -> None:
    """Publish messages to the queue."""
    world.connect(f"publisher {len(world.peers)}").publish("work", list(bodies))
    world.settle()


def sleep(world: QueueEngine, seconds: float) -> None:
    """Let time pass as a server does: it wakes at each deadline, and at no other time."""
    end = world.mono + seconds
    while (deadline := world.broker.next_deadline()) is not None and deadline <= end:
        world.wake(max(deadline - world.mono, 0.001))
        world.settle()
    world.mono = max(world.mono, end)


def bodies(peer: Peer) -> list[bytes]:
    """Return the bodies that the consumer got."""
    return [heard.body for heard in peer.heard.get("s", ())]


@pytest.mark.behaviour(39)
@pytest.mark.parametrize("filter", [None, "TRUE"])
@pytest.mark.parametrize("fairness", FAIRNESS)
def test_expired_lease_moves_the_message_to_another_consumer(fairness: Fairness, filter: str | None) -> None:
    world = QueueEngine(QueueDefinition("work", fairness=fairness, lease_period=LEASE))
    hung = consumer(world, "hung", filter=filter)
    publish(world, b"a")
    other = consumer(world, "other", filter=filter)
    sleep(world, LEASE + 0.5)
    assert (bodies(hung), bodies(other)) == ([b"a"], [b"a"])


@pytest.mark.parametrize("filter", [None, "TRUE"])
def test_returned_message_waits_for_a_busy_consumer_for_one_lease(filter: str | None) -> None:
    world = QueueEngine(QueueDefinition("work", lease_period=LEASE))
    hung = consumer(world, "hung", filter=filter)
    publish(world, b"a")
    sleep(world, LEASE / 2)
    busy = consumer(world, "busy")
    publish(world, b"b")
    sleep(world, LEASE / 2 + 0.5)
    assert (bodies(hung), bodies(busy), world.ready("work")) == ([b"a"], [b"b"], [b"a"])
    world.settlement(busy, "work", b"b")
    assert (bodies(hung), bodies(busy)) == ([b"a"], [b"b", b"a"])


def test_consumer_with_an_expired_lease_gets_messages_after_another_lease_period() -> None:
    world = QueueEngine(QueueDefinition("work", lease_period=LEASE))
    hung = consumer(world, "hung")
    publish(world, b"a")
    busy = consumer(world, "busy", backlog=10)
    sleep(world, LEASE + 0.5)
    assert bodies(busy) == [b"a"]
    world.settlement(busy, "work", b"a")
    publish(world, *[b"%d" % number for number in range(11)])
    assert (len(bodies(hung)), len(bodies(busy))) == (1, 11)
    leases_end = world.mono + LEASE
    sleep(world, LEASE - 0.2)
    assert bodies(hung) == [b"a", b"10"]
    assert world.mono < leases_end


@pytest.mark.parametrize("action", ["ack", "cancel"])
def test_settlement_ends_the_wait_of_a_consumer_with_an_expired_lease(action: str) -> None:
    world = QueueEngine(QueueDefinition("work", lease_period=LEASE))
    slow = consumer(world, "slow", backlog=2)
    publish(world, b"a")
    sleep(world, LEASE / 2)
    publish(world, b"b")
    other = consumer(world, "other", backlog=2)
    sleep(world, LEASE / 2 + 0.5)
    assert bodies(other) == [b"a"]
    publish(world, b"c")
    assert bodies(other) == [b"a", b"c"]
    publish(world, b"d")
    assert (bodies(slow), world.ready("work")) == ([b"a", b"b"], [b"d"])
    world.settlement(slow, "work", b"b", action=action)
    assert bodies(slow)[2:] == ([b"d"] if action == "ack" else [b"b", b"d"])


def test_late_acknowledgement_ends_the_wait_of_a_consumer() -> None:
    world = QueueEngine(QueueDefinition("work", lease_period=LEASE))
    slow = consumer(world, "slow")
    publish(world, b"a")
    busy = consumer(world, "busy")
    publish(world, b"b")
    sleep(world, LEASE - 0.5)
    world.settlement(busy, "work", b"b")
    publish(world, b"c")
    sleep(world, 1.0)
    assert (bodies(busy), world.ready("work")) == ([b"b", b"c"], [b"a"])
    world.settlement(slow, "work", b"a")  # the message has no lease now
    publish(world, b"d")
    assert bodies(slow) == [b"a", b"d"]


def test_message_that_no_other_consumer_accepts_returns_to_the_same_consumer() -> None:
    world = QueueEngine(QueueDefinition("work", lease_period=LEASE))
    hung = consumer(world, "hung", backlog=2)
    publish(world, b'{"kind": "a"}', b'{"kind": "b"}')
    other = consumer(world, "other", backlog=2, filter="/kind = 'b'")
    sleep(world, LEASE + 0.5)
    assert bodies(other) == [b'{"kind": "b"}']
    assert bodies(hung) == [b'{"kind": "a"}', b'{"kind": "b"}', b'{"kind": "a"}']


@pytest.mark.parametrize("filter", [None, "TRUE"])
def test_only_consumer_gets_the_expired_message_at_once(filter: str | None) -> None:
    world = QueueEngine(QueueDefinition("work", lease_period=LEASE))
    hung = consumer(world, "hung", filter=filter)
    publish(world, b"a")
    sleep(world, LEASE + 0.5)
    assert bodies(hung) == [b"a", b"a"]


def test_last_other_consumer_that_leaves_ends_the_wait() -> None:
    world = QueueEngine(QueueDefinition("work", lease_period=LEASE))
    hung = consumer(world, "hung")
    publish(world, b"a")
    other = consumer(world, "other")
    sleep(world, LEASE + 0.5)
    assert bodies(other) == [b"a"]
    world.disconnect(other)
    assert bodies(hung) == [b"a", b"a"]
