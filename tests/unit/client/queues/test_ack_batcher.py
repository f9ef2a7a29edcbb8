"""The acknowledgement batcher: batching, timeouts, immediate settlements and lost connections."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from tests.unit.client.peer import START, Named
from tests.unit.client.queue_peer import LeasePort, QueuePeer, read
from tickertape.base.errors import BadCommand, BadOption, BadTopic, Disconnected, StoreFull, UsageError
from tickertape.batch import batch_from_bodies
from tickertape.client.common.effects import EndConnection
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.publish_store import MemoryPublishStore
from tickertape.wire.commands import Ack, Deliver, Flush, Persisted, Publish, Subscribe, Unsubscribe
from tickertape.wire.settlement import QUEUE_TOPIC


def consumer(backlog: int = 10, batch_size: int = 1, store: MemoryPublishStore | None = None) -> QueuePeer:
    peer = QueuePeer(store)
    peer.connect()
    peer.consume(backlog=backlog)
    peer.core.acks.configure(batch_size=batch_size)
    return peer


# -- messages of queues -------------------------------------------------------------------------------


def test_queue_message_has_queue_topic_and_lease() -> None:
    batch = consumer().deliver(2, lease=1_000_000)
    first, _ = batch
    assert (first.topic, first.underlying_topic, first.bookmark) == ("work", "jobs", "5|1|")
    assert first.lease_expires == batch.lease_expires == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert batch.queue == "work"
    assert batch.topics == ("jobs",)


def test_lease_without_end_has_no_expiry_time() -> None:
    batch = consumer().deliver()
    assert (batch.lease_expires, next(iter(batch)).lease_expires) == (None, None)


def test_settlement_of_message_outside_a_queue_raises() -> None:
    peer = consumer()
    batch = batch_from_bodies("jobs", [b"x"], publisher=5, first_sequence=1)
    peer.say(Deliver(sub_id="s"), batch)
    (message,) = batch
    for settle in (message.ack, message.cancel, message.expire, lambda: message.extend(1), batch.ack):
        with pytest.raises(UsageError, match="is not from a queue"):
            settle()
    assert (message.topic, message.underlying_topic, message.lease_expires) == ("jobs", "jobs", None)
    assert (message.bookmark, batch.queue) == (None, None)
    assert peer.settled() == []


def test_settlement_of_browsed_message_raises() -> None:
    peer = QueuePeer()
    peer.connect()
    peer.consume(options="browse")
    batch = peer.deliver()
    (message,) = batch
    with pytest.raises(UsageError, match="only browsed"):
        message.ack()
    with pytest.raises(UsageError, match="only browsed"):
        batch.cancel()
    assert message.topic == "work"
    peer.lose()
    assert message.batch.context is not None
    assert message.batch.context.lease is not None
    assert not message.batch.context.lease.gone


def test_shared_delivery_from_a_queue_ends_the_connection() -> None:
    peer = consumer()
    one = batch_from_bodies("jobs", [b"x"], publisher=5, first_sequence=1)
    peer.say(Deliver(sub_ids=("s",), counts=b"\1\0\0\0", indices=b"\0\0\0\0", queue="work"), one)
    assert [type(effect.error) for effect in peer.took(EndConnection)] == [BadCommand]


# -- immediate settlements ----------------------------------------------------------------------------


def test_single_acknowledgement_is_sent_at_once() -> None:
    peer = consumer()
    first, second = peer.deliver(2)
    first.ack()
    assert peer.settled() == [("work", "ack", [(5, 1, 1)])]
    second.ack()
    assert peer.settled() == []  # the send buffer batches while a frame is in flight
    assert peer.answer() == [("work", "ack", [(5, 2, 1)])]


def test_cancel_expire_and_extend_are_sent_at_once_despite_batching() -> None:
    peer = consumer(batch_size=10)
    for action, name in (("cancel", "cancel"), ("expire", "expire")):
        (message,) = peer.deliver()
        getattr(message, action)()
        assert [what for _, what, _ in peer.settled() + peer.answer()] == [name]
    (message,) = peer.deliver()
    message.extend("1500ms")
    assert peer.settled() + peer.answer() == [("work", "extend 1500", [(5, 3, 1)])]
    message.extend(60)
    assert [what for _, what, _ in peer.settled()] == ["extend 60000"]
    for wrong in (0, -1, 1e12, "soon"):
        with pytest.raises(BadOption):
            message.extend(wrong)


def test_immediate_settlement_does_not_overtake_acknowledgements() -> None:
    peer = consumer(batch_size=10)
    first, second, third = peer.deliver(3)
    first.ack()
    second.ack()
    assert peer.settled() == []
    second.cancel()
    third.ack()
    peer.core.acks.flush()
    assert peer.settled() + peer.answer() == [
        ("work", "ack", [(5, 1, 2)]),
        ("work", "cancel", [(5, 2, 1)]),
        ("work", "ack", [(5, 3, 1)]),
    ]


def test_batch_is_settled_with_one_settlement() -> None:
    peer = consumer(backlog=100)
    peer.deliver(40).ack()
    assert peer.settled() == [("work", "ack", [(5, 1, 40)])]
    peer.answer()
    peer.deliver(3).cancel()
    assert peer.settled() == [("work", "cancel", [(5, 41, 3)])]
    peer.answer()
    peer.deliver(2).expire()
    assert peer.settled() == [("work", "expire", [(5, 44, 2)])]


# -- batching -----------------------------------------------------------------------------------------


def test_acknowledgements_are_batched_up_to_the_batch_size() -> None:
    peer = consumer(batch_size=3)
    messages = list(peer.deliver(7))
    for message in messages[:2]:
        message.ack()
    assert peer.settled() == []
    messages[2].ack()
    assert peer.settled() == [("work", "ack", [(5, 1, 3)])]
    peer.answer()
    messages[3].ack()
    peer.deliver(3).ack()  # a batch counts too
    assert peer.settled() == [("work", "ack", [(5, 4, 1)])]
    assert peer.answer() == [("work", "ack", [(5, 8, 3)])]


def test_acknowledged_batches_are_batched_with_others() -> None:
    peer = consumer(batch_size=5)
    peer.deliver(2).ack()
    assert peer.settled() == []
    peer.deliver(3).ack()
    assert sorted(peer.settled() + peer.answer()) == [
        ("work", "ack", [(5, 1, 2)]),
        ("work", "ack", [(5, 3, 3)]),
    ]


def test_acknowledgements_are_batched_up_to_the_granted_backlog() -> None:
    peer = consumer(backlog=2, batch_size=80)
    first, second = peer.deliver(2)
    first.ack()
    assert peer.settled() == []
    second.ack()
    assert peer.settled() == [("work", "ack", [(5, 1, 2)])]


def test_backlog_is_shared_by_several_queues() -> None:
    peer = consumer(backlog=2, batch_size=80)
    (first,), (second,) = peer.deliver(queue="a"), peer.deliver(queue="b")
    first.ack()
    second.ack()
    assert peer.settled() + peer.answer() == [("a", "ack", [(5, 1, 1)]), ("b", "ack", [(5, 2, 1)])]


def test_acknowledgements_are_batched_per_subscription() -> None:
    peer = consumer(backlog=10, batch_size=2)
    peer.consume(sub_id="other")
    (mine,), (its,) = peer.deliver(), peer.deliver(sub_id="other")
    mine.ack()
    its.ack()
    assert peer.settled() == []
    next(iter(peer.deliver())).ack()
    assert peer.settled() == [("work", "ack", [(5, 1, 1), (5, 3, 1)])]


def test_acknowledgements_by_bookmark_are_batched_up_to_the_smallest_backlog() -> None:
    peer = consumer(backlog=2, batch_size=80)
    peer.consume(sub_id="other", backlog=50)
    acks = peer.core.acks
    acks.acknowledge("work", [(5, 1)], START)
    assert peer.settled() == []
    acks.acknowledge("work", [(5, 2)], START)
    assert peer.settled() == [("work", "ack", [(5, 1, 2)])]


def test_batched_acknowledgements_are_sent_after_the_timeout() -> None:
    peer = consumer(batch_size=10)
    peer.core.acks.configure(timeout="250ms")
    first, second, third = peer.deliver(3)
    assert peer.core.acks.next_deadline() is None
    first.ack()
    assert peer.core.next_deadline() is not None
    peer.later(0.2)
    second.ack()  # the time of the first message counts
    assert peer.settled() == []
    peer.later(0.06)
    assert peer.settled() == [("work", "ack", [(5, 1, 2)])]
    assert peer.core.acks.next_deadline() is None
    third.ack()
    peer.later(0.3)
    assert peer.answer() == [("work", "ack", [(5, 3, 1)])]


def test_smaller_batch_size_sends_batched_acknowledgements() -> None:
    peer = consumer(batch_size=10)
    (message,) = peer.deliver()
    message.ack()
    peer.core.acks.configure(batch_size=1)
    peer.core.acks.flush()
    assert peer.settled() == [("work", "ack", [(5, 1, 1)])]
    for wrong in (0, -1, 10**9, "5", True):
        with pytest.raises(BadOption):
            peer.core.acks.configure(batch_size=wrong)  # type: ignore[arg-type]
    for late in (0, -1.0, "soon"):
        with pytest.raises(BadOption):
            peer.core.acks.configure(timeout=late)
    assert (peer.core.acks.batch_size, peer.core.acks.timeout) == (1, 1.0)


@pytest.mark.parametrize("how", ["unsubscribe", "leave", "flush", "close"])
def test_batched_acknowledgements_precede_unsubscribe_leave_flush_and_close(how: str) -> None:
    peer = QueuePeer()
    peer.connect()
    request = peer.consume()
    peer.core.acks.configure(batch_size=10)
    first, second = peer.deliver(2)
    first.cancel()
    second.ack()
    peer.core.publishing.publish("orders", b"1")
    frames = peer.sent()
    assert [type(command) for command, _ in frames] == [Publish]
    if how == "unsubscribe":
        peer.core.unsubscribe(Named("call"), ("s",))
    elif how == "leave":
        peer.core.leave(request)
    elif how == "flush":
        peer.core.flush(Named("call"), "processed")
    else:
        peer.core.close()
    (publish, batch), *rest = peer.sent()
    assert isinstance(publish, Publish)
    assert batch is not None
    topics = [batch.topic(at) for at in range(batch.count)]
    assert topics == ["orders", QUEUE_TOPIC]
    assert read(batch.body(1)) == ("work", "ack", [(5, 2, 1)])
    behind = {"unsubscribe": [Unsubscribe], "leave": [Unsubscribe], "flush": [Flush], "close": []}
    assert [type(command) for command, _ in rest] == behind[how]


def test_many_bookmarks_are_split_into_several_settlements() -> None:
    peer = consumer()
    marks = [(7, 2 * number + 1) for number in range(6_000)]
    peer.core.acks.settle("work", "expire", marks)
    found = peer.settled() + peer.answer()
    assert [what for _, what, _ in found] == ["expire"] * len(found)
    assert len(found) > 1
    assert [run for _, _, runs in found for run in runs] == [(*mark, 1) for mark in marks]


def test_filter_settlement_follows_batched_acknowledgements() -> None:
    peer = consumer(batch_size=10)
    (message,) = peer.deliver()
    message.ack()
    peer.core.acks.settle_all("work", "cancel", "/a = 1")
    assert peer.settled() + peer.answer() == [("work", "ack", [(5, 1, 1)]), ("work", "cancel /a = 1", [])]


# -- publishing ---------------------------------------------------------------------------------------


def test_publish_to_the_reserved_topic_raises() -> None:
    peer = consumer()
    (message,) = peer.deliver()
    message.ack()
    with pytest.raises(BadTopic, match="pattern"):
        peer.core.publishing.publish(QUEUE_TOPIC, b"x")
    with pytest.raises(BadTopic, match="pattern"):
        peer.publish_whole(QUEUE_TOPIC, [b"x"])


def test_settlements_are_stored_for_any_recorded_topics() -> None:
    peer = QueuePeer(MemoryPublishStore())
    peer.connect(recorded=("orders",))
    peer.consume()
    (message,) = peer.deliver()
    message.ack()
    ((publish, _),) = peer.published()
    assert publish.sequenced
    assert peer.core.publishing.unpersisted_count() == 1


# -- a lost connection --------------------------------------------------------------------------------


def test_batched_acknowledgements_with_store_survive_connection_loss() -> None:
    peer = consumer(batch_size=10, store=MemoryPublishStore())
    first, second, third = peer.deliver(3)
    first.ack()
    peer.lose()
    assert peer.core.publishing.unpersisted_count() == 1
    second.ack()
    third.cancel()
    assert peer.core.publishing.unpersisted_count() == 3
    assert peer.core.acks.next_deadline() is None
    peer.connect()
    found = peer.settled()
    assert found[0] == ("work", "ack", [(5, 1, 1)])
    assert found + peer.answer() == [
        ("work", "ack", [(5, 1, 1)]),
        ("work", "ack", [(5, 2, 1)]),
        ("work", "cancel", [(5, 3, 1)]),
    ]


def test_batched_acknowledgements_without_store_are_lost_with_the_connection() -> None:
    peer = consumer(batch_size=10)
    first, second = peer.deliver(2)
    first.ack()
    peer.lose()
    assert peer.core.next_deadline() is None
    with pytest.raises(Disconnected):
        second.ack()
    peer.connect()
    assert peer.settled() == []
    second.ack()
    assert peer.settled() == [("work", "ack", [(5, 2, 1)])]


@pytest.mark.parametrize("stored", [False, True])
def test_acknowledgement_during_connection_loss_is_stored_or_raises(stored: bool) -> None:
    peer = consumer(store=MemoryPublishStore() if stored else None)

    def lost_first(step: Callable[[], None]) -> None:
        peer.lose()
        step()

    acks = peer.core.acks
    acks.attach(LeasePort(acks, lost_first, lambda: peer.now))
    (message,) = peer.deliver()
    if not stored:
        with pytest.raises(Disconnected):
            message.ack()
    else:
        message.ack()
        assert peer.core.publishing.unpersisted_count() == 1


@pytest.mark.parametrize("end", ["lost", "unsubscribed", "closed"])
def test_leases_end_at_connection_loss_unsubscribe_or_close(end: str) -> None:
    peer = consumer()
    leased, once = peer.deliver(), peer.deliver(once=True)
    if end == "unsubscribed":
        peer.core.unsubscribe(Named("call"), ("s",))
        ((command, _),) = peer.sent()
        assert isinstance(command, Unsubscribe)
        peer.say(Ack(id=command.id))
    else:
        if end == "closed":
            peer.core.close()
        peer.lose()
    for batch, gone in ((leased, True), (once, False)):
        assert batch.context is not None
        assert batch.context.lease is not None
        assert batch.context.lease.gone == gone


def test_replacement_of_subscription_keeps_the_leases() -> None:
    peer = consumer(backlog=5, batch_size=50)
    batch = peer.deliver(2)
    peer.consume(sub_id="s", options="max_backlog=2,replace", backlog=2)
    assert batch.context is not None
    assert batch.context.lease is not None
    assert not batch.context.lease.gone
    first, second = peer.deliver(2)
    first.ack()
    assert peer.settled() == []
    second.ack()
    assert peer.settled() == [("work", "ack", [(5, 3, 2)])]
    peer.lose()
    assert batch.context.lease.gone


def test_resubscribed_subscription_keeps_the_backlog() -> None:
    peer = QueuePeer(MemoryPublishStore())
    peer.core.subscriptions.keep = True
    peer.connect()
    request = replace(make_request("work", "s", options="max_backlog=7"), handled=True)
    peer.core.subscribe(Named("token"), request, Named("sink"))
    ((command, _),) = peer.sent()
    assert isinstance(command, Subscribe)
    peer.say(Ack(id=command.id, backlog=7))
    before = peer.deliver()
    peer.lose()
    peer.connect()
    peer.core.resubscribe(Named("again"))
    ((command, _),) = peer.sent()
    assert isinstance(command, Subscribe)
    assert command.options == "max_backlog=7"
    peer.say(Ack(id=command.id, backlog=7))
    after = peer.deliver()
    gone = []
    for batch in (before, after):
        assert batch.context is not None
        assert batch.context.lease is not None
        gone.append(batch.context.lease.gone)
    assert gone == [True, False]
    next(iter(before)).ack()
    assert peer.settled() == [("work", "ack", [(5, 1, 1)])]


# -- a full store -------------------------------------------------------------------------------------


def full() -> tuple[QueuePeer, int]:
    """Return a consumer with a full store and the sequence of the last stored message."""
    store = MemoryPublishStore(bytes_max=4096)
    peer = consumer(store=store)
    sequence = peer.core.publishing.publish("orders", b"x" * (4096 - store.size_bytes - 200))
    assert sequence is not None
    with pytest.raises(StoreFull):
        peer.core.publishing.publish("orders", b"y" * 200)
    peer.sent()
    return peer, sequence


def test_settlements_wait_for_store_space_in_order() -> None:
    peer, sequence = full()
    messages = list(peer.deliver(6))
    for message in messages[:5]:
        message.ack()
    messages[5].cancel()
    assert peer.core.acks.waiting
    with pytest.raises(StoreFull):
        peer.core.flush(Named("call"), "persisted")
    sent = peer.settled()
    peer.say(Persisted(frame=1, sequence=sequence))
    peer.frames = max(peer.frames, 1)
    found = sent + peer.settled()
    while peer.core.publishing.unpersisted_count():
        peer.say(Persisted(frame=peer.frames))
        found += peer.settled()
    assert found == [("work", "ack", [(5, number, 1)]) for number in range(1, 6)] + [
        ("work", "cancel", [(5, 6, 1)])
    ]
    assert not peer.core.acks.waiting
