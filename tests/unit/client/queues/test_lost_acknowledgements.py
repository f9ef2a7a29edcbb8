"""Acknowledgements that wait for their step while the connection is lost, and made again."""

from __future__ import annotations

import pytest

from tests.unit.client.queue_peer import QueuePeer
from tickertape.base.errors import Disconnected
from tickertape.batch.queue_lease import AckAccumulator
from tickertape.client.api.auto_ack import lease_in
from tickertape.client.publish_store import MemoryPublishStore


def said_and_lost(peer: QueuePeer) -> AckAccumulator:
    """A thread has gathered an acknowledgement. Before it reports that, there is another connection."""
    peer.connect()
    peer.consume()
    lease = lease_in(peer.deliver())
    assert lease is not None
    lease.gathering.items.append(("work", 5, 1))
    peer.lose()
    peer.connect()
    return lease.gathering


def test_acknowledgement_that_a_lost_connection_took_raises_once() -> None:
    peer = QueuePeer()
    gathering = said_and_lost(peer)
    with pytest.raises(Disconnected, match="Cannot acknowledge"):
        peer.core.acks.acknowledged(gathering, peer.now)
    peer.core.acks.acknowledged(gathering, peer.now)


def test_acknowledgement_that_the_publish_store_took_is_sent() -> None:
    peer = QueuePeer(MemoryPublishStore())
    gathering = said_and_lost(peer)
    peer.core.acks.acknowledged(gathering, peer.now)
    assert peer.settled() == [("work", "ack", [(5, 1, 1)])]
