"""Settlements with a lookup on disk, and connection events during the lookup."""

from __future__ import annotations

import pytest

from tests.simulation.queue_entries import Key
from tests.simulation.queue_world import QueuePeer, QueueWorld
from tickertape.engine.runtime.queue_definition import Leasing, QueueDefinition

BODY = b'{"g":"a","x":"' + b"y" * 1_500 + b'"}'


def world_with(count: int, leasing: Leasing = "lenient") -> tuple[QueueWorld, QueuePeer, list[Key]]:
    """Messages in a queue, all of them on disk only, and a client."""
    world = QueueWorld(1, [QueueDefinition("q", leasing=leasing)])
    world.broker.journal.view.tail_bytes_max = 1
    publisher, peer = world.connect("publisher"), world.connect("peer")
    assert isinstance(publisher, QueuePeer)
    assert isinstance(peer, QueuePeer)
    keys: list[Key] = []
    for _ in range(count):
        keys += publisher.put("q", [BODY])
        world.settle()
    return world, peer, keys


@pytest.mark.parametrize(("leasing", "by_filter"), [("lenient", False), ("lenient", True), ("strict", True)])
def test_messages_acknowledged_before_an_unsubscribe_are_not_redelivered(
    leasing: Leasing, by_filter: bool
) -> None:
    world, peer, keys = world_with(20, leasing)
    peer.consume("s", "q", max_backlog=5)
    world.settle()
    mine = [key for _, key in peer.got]
    if by_filter:
        peer.settle("q", "ack", filter="/g = 'b'")
        peer.settle("q", "ack", mine)
    else:
        peer.settle("q", "ack", [*mine, keys[15]])
    peer.leave("s")
    world.settle()
    look = world.broker.queues.snapshots(world.moment)[0]
    assert (look.acknowledged, look.returned) == (5 if by_filter else 6, {})


def test_settlement_interrupted_by_a_disconnect_is_accepted_when_resent() -> None:
    world, peer, keys = world_with(10)
    peer.settle("q", "ack", [keys[3]])
    assert world.reads, "it is looked up"
    cut_off = peer.keep_unacknowledged()
    world.hang_up(peer)
    world.settle()
    again = world.connect("peer")
    assert isinstance(again, QueuePeer)
    world.settle()
    assert again.logged_on is not None
    assert again.logged_on.last_persisted < cut_off[0].sequence
    for settling in cut_off:
        again.send_settlement(settling)
    world.settle()
    assert again.acked_sequence == cut_off[-1].sequence
    assert world.broker.queues.snapshots(world.moment)[0].acknowledged == 1
