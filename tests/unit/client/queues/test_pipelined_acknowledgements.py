"""Acknowledgements made while earlier ones have no answer: they are sent together."""

from __future__ import annotations

from tests.unit.client.peer import START
from tests.unit.client.queue_peer import QueuePeer
from tickertape.client.limits import settlement_wait_seconds
from tickertape.client.publish_store import MemoryPublishStore


def consumer(batch_size: int = 1, store: MemoryPublishStore | None = None) -> QueuePeer:
    peer = QueuePeer(store)
    peer.connect()
    peer.consume(backlog=10)
    peer.core.acks.configure(batch_size=batch_size)
    return peer


def test_acknowledgements_waiting_for_an_answer_are_sent_as_one_settlement() -> None:
    peer = consumer(batch_size=3)
    messages = list(peer.deliver(14))
    for message in messages[:11]:
        message.ack()
    assert peer.settled() == [("work", "ack", [(5, 1, 3)])]
    # The second was already in flight. The rest, except an incomplete batch, is one settlement.
    assert peer.answer() == [("work", "ack", [(5, 4, 3)]), ("work", "ack", [(5, 7, 5)])]
    for message in messages[11:]:
        message.ack()
    assert peer.settled() == []
    assert peer.answer() == [("work", "ack", [(5, 12, 3)])]
    peer.answer()
    peer.deliver(3).ack()
    assert peer.settled() == [("work", "ack", [(5, 15, 3)])]


def test_flush_sends_acknowledgements_that_wait_for_an_answer() -> None:
    peer = consumer(batch_size=3)
    for message in peer.deliver(9):
        message.ack()
    peer.core.acks.flush()
    assert peer.settled() == [("work", "ack", [(5, 1, 3)])]
    assert peer.answer() == [("work", "ack", [(5, 4, 3)]), ("work", "ack", [(5, 7, 3)])]
    first, second, third = peer.deliver(3)
    first.ack()
    second.ack()
    assert peer.settled() + peer.answer() == []  # batched as before
    third.ack()
    assert peer.settled() == [("work", "ack", [(5, 10, 3)])]


def test_immediate_acknowledgements_are_stored_while_others_wait() -> None:
    store = MemoryPublishStore()
    peer = consumer(store=store)
    for message in peer.deliver(4):
        message.ack()
    assert peer.settled() == [("work", "ack", [(5, 1, 1)])]
    assert peer.core.publishing.unpersisted_count() == 4


def test_acknowledgements_keep_the_order() -> None:
    peer = consumer(batch_size=4)
    messages = list(peer.deliver(8))
    for at in (0, 2, 1, 3):
        messages[at].ack()
    assert peer.settled() == [("work", "ack", [(5, 1, 1), (5, 3, 1), (5, 2, 1), (5, 4, 1)])]
    peer.answer()
    peer.core.acks.acknowledge("work", [(5, 5), (6, 6), (5, 7), (5, 8)], START)
    assert peer.settled() == [("work", "ack", [(5, 5, 1), (6, 6, 1), (5, 7, 2)])]


def test_acknowledgements_without_answer_are_sent_after_a_deadline() -> None:
    """The reader of answers may be busy with a handler while leases expire."""
    peer = consumer()
    for message in peer.deliver(3):
        message.ack()
    assert peer.settled() == [("work", "ack", [(5, 1, 1)])]
    deadline = peer.core.acks.next_deadline()
    assert deadline is not None
    assert deadline <= START.mono + settlement_wait_seconds
    peer.core.wake(START._replace(mono=deadline))
    assert peer.settled() == [("work", "ack", [(5, 2, 1)]), ("work", "ack", [(5, 3, 1)])]
    first, second = peer.deliver(2)
    first.cancel()
    second.cancel()
    peer.settled()
    assert peer.core.acks.next_deadline() is not None
