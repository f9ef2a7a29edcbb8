"""Pending acknowledgements over a lost and restored connection."""

from __future__ import annotations

import pytest

from tests.unit.client.queue_peer import QueuePeer
from tickertape.base.errors import Disconnected
from tickertape.batch.queue_lease import AckAccumulator
from tickertape.client.api.auto_ack import lease_in
from tickertape.client.publish_store import MemoryPublishStore


def acknowledged_and_reconnected(peer: QueuePeer) -> AckAccumulator:
    """Add an acknowledgement from a thread, and reconnect before the thread reports it."""
    peer.connect()
    peer.consume()
    lease = lease_in(peer.deliver())
    assert lease is not None
    lease.gathering.items.append(("work", 5, 1))
    peer.lose()
    peer.connect()
    return lease.gathering


def test_acknowledgement_lost_with_the_connection_raises_once() -> None:
    peer = QueuePeer()
    gathering = acknowledged_and_reconnected(peer)
    with pytest.raises(Disconnected, match="Cannot acknowledge"):
        peer.core.acks.acknowledged(gathering, peer.now)
    peer.core.acks.acknowledged(gathering, peer.now)


def test_acknowledgement_in_the_publish_store_is_sent_after_reconnect() -> None:
    peer = QueuePeer(MemoryPublishStore())
    gathering = acknowledged_and_reconnected(peer)
    peer.core.acks.acknowledged(gathering, peer.now)
    assert peer.settled() == [("work", "ack", [(5, 1, 1)])]
