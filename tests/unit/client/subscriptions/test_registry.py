"""Subscriptions in the protocol machine: deliveries, credit, ends."""

from __future__ import annotations

import pytest

from tests.unit.client.peer import Named, Peer
from tickertape.base.errors import BookmarkUnknown, CorruptBatch, SubscriptionExists
from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.effects import CaughtUp, DeliverBatch, End, EndConnection, Notice, ResolveCall
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.limits import credit_linger_seconds
from tickertape.client.sow.query_arguments import make_query
from tickertape.wire.commands import (
    Ack,
    Completed,
    Credit,
    Deliver,
    Ended,
    PersistedNotice,
    Subscribe,
    Unsubscribe,
)

BODY = b"x" * 68  # with its 32 bytes of cost, 100


def subscribed(depth: int = 1000) -> Peer:
    peer = Peer().connect()
    peer.core.subscribe(
        Named("s"), make_request("orders", "sub", bookmark="0", timestamp=True, depth=depth), Named("sink")
    )
    peer.sent()
    peer.say(Ack(id=1, start=0))
    return peer


def deliver(peer: Peer, count: int) -> None:
    batch = batch_from_bodies("orders", [BODY] * count, publisher=3, first_sequence=1, timestamp=1)
    peer.say(Deliver(sub_id="sub", next=count), batch)


def test_subscribe_command_has_the_requested_options() -> None:
    peer = Peer().connect()
    given = {"bookmark_not_found": "epoch"}
    request = make_request("orders", "sub", bookmark="1|2|", timestamp=True, depth=5000, given=given)
    peer.core.subscribe(Named("s"), request, Named("sink"))
    assert peer.sent() == [
        (
            Subscribe(
                id=1,
                sub_id="sub",
                topic="orders",
                bookmark="1|2|",
                options="bookmark,timestamp,bookmark_not_found=epoch",
                credit=5000,
            ),
            None,
        )
    ]


def test_delivered_batches_have_bookmark_and_timestamp_as_requested() -> None:
    peer = subscribed()
    deliver(peer, 2)
    ((sink, batch),) = peer.took(DeliverBatch)
    assert sink == "sink"
    message = next(iter(batch))
    assert (message.sub_id, message.bookmark, message.command) == ("sub", "3|1|", "publish")
    assert message.timestamp is not None


@pytest.mark.behaviour(8)
def test_bookmarks_are_omitted_unless_requested() -> None:
    peer = Peer().connect()
    for call_id, (sub_id, options) in enumerate((("plain", ""), ("asked", "bookmark,")), 1):
        peer.core.subscribe(Named(sub_id), make_request("orders", sub_id, options=options), Named(sub_id))
        peer.say(Ack(id=call_id))
        batch = batch_from_bodies("orders", [BODY], publisher=3, first_sequence=1)
        peer.say(Deliver(sub_id=sub_id), batch)
    plain, asked = (next(iter(hand.batch)) for hand in peer.took(DeliverBatch))
    assert (plain.bookmark, plain.timestamp) == (None, None)
    assert (asked.bookmark, asked.timestamp) == ("3|1|", None)


def test_credit_is_returned_when_half_of_the_window_is_consumed() -> None:
    peer = subscribed(depth=1000)
    deliver(peer, 9)
    peer.core.consumed("sub", 400)
    assert peer.sent() == []
    peer.core.consumed("sub", 100)
    assert peer.sent() == [(Credit(sub_id="sub", bytes=500), None)]
    peer.core.consumed("sub", 400)
    assert peer.sent() == []


def test_small_credit_is_returned_shortly_after_the_last_delivery() -> None:
    peer = subscribed(depth=1000)
    deliver(peer, 2)
    peer.core.consumed("sub", 200)
    deadline = peer.core.next_deadline()
    assert deadline == pytest.approx(peer.now.mono + credit_linger_seconds)
    assert peer.sent() == []
    peer.later(credit_linger_seconds)
    assert peer.sent() == [(Credit(sub_id="sub", bytes=200), None)]
    assert peer.core.next_deadline() is None


def test_small_credit_of_slow_application_is_returned_when_all_is_consumed() -> None:
    peer = subscribed(depth=1000)
    deliver(peer, 2)
    peer.later(credit_linger_seconds)
    assert peer.core.next_deadline() is None
    peer.core.consumed("sub", 100)
    assert peer.sent() == []
    peer.core.consumed("sub", 100)
    assert peer.sent() == [(Credit(sub_id="sub", bytes=200), None)]


def test_credit_of_message_larger_than_the_window_is_returned_at_once() -> None:
    peer = subscribed(depth=32)
    deliver(peer, 1)
    peer.core.consumed("sub", 100)
    assert peer.sent() == [(Credit(sub_id="sub", bytes=100), None)]


def test_all_credit_is_returned_eventually() -> None:
    peer = subscribed(depth=1000)
    given = 0
    for count in (1, 3, 2, 5, 4, 1, 1):
        deliver(peer, count)
        peer.core.consumed("sub", 100 * count)
        peer.later(credit_linger_seconds)
        given += sum(command.bytes for command, _ in peer.sent() if isinstance(command, Credit))
    assert given == 1700


def test_completed_and_ended_reach_the_sink() -> None:
    peer = subscribed()
    peer.say(Completed(sub_id="sub", next=5))
    peer.say(Ended(sub_id="sub"))
    assert [effect.sink for effect in peer.took(CaughtUp)] == ["sink"]
    assert peer.took(End) == [End(Named("sink"), "complete", None)]


def test_end_with_code_has_the_error() -> None:
    peer = subscribed()
    peer.say(Ended(sub_id="sub", code="bookmark_unknown", text="gone"))
    ((_, reason, error),) = peer.took(End)
    assert reason == "bookmark_unknown"
    assert isinstance(error, BookmarkUnknown)


def test_deliveries_after_the_end_of_a_subscription_are_dropped() -> None:
    peer = subscribed()
    peer.core.unsubscribe(Named("u"), ("sub",))
    deliver(peer, 1)
    assert len(peer.took(DeliverBatch)) == 1
    peer.say(Ack(id=2))
    deliver(peer, 1)
    peer.say(Completed(sub_id="sub", next=1))
    peer.say(Ended(sub_id="sub"))
    peer.core.consumed("sub", 100)
    assert peer.took(DeliverBatch) == []
    assert len(peer.took(End)) == 1


def test_batch_with_wrong_checksum_ends_the_subscription() -> None:
    peer = subscribed(depth=10_000)
    damaged = bytearray(batch_from_bodies("orders", [BODY] * 8, publisher=3, first_sequence=1).encode())
    damaged[-100] ^= 1
    peer.say(Deliver(sub_id="sub"), MessageBatch.parse(damaged))
    assert peer.took(DeliverBatch) == []
    ((sink, reason, error),) = peer.took(End)
    assert (sink, reason, type(error)) == ("sink", "corrupt_batch", CorruptBatch)
    assert peer.sent() == [(Unsubscribe(id=2, sub_ids=("sub",)), None)]
    peer.say(Deliver(sub_id="sub"), MessageBatch.parse(damaged))
    peer.say(Ack(id=2))
    assert [effect.token for effect in peer.took(ResolveCall)] == ["logon", "s"]
    assert peer.took(EndConnection) == []


def test_subscribe_with_id_in_use_raises_and_sends_nothing() -> None:
    peer = subscribed()
    with pytest.raises(SubscriptionExists, match="'sub'"):
        peer.core.subscribe(Named("t"), make_request("quotes", "sub"), Named("other"))
    assert peer.sent() == []
    peer.lose()
    assert [end.sink for end in peer.took(End)] == ["sink"]


def test_persisted_notice_reaches_the_given_subscriptions() -> None:
    peer = subscribed()
    peer.say(PersistedNotice(sub_ids=("other", "sub"), publisher=3, sequence=17))
    assert peer.took(Notice) == [Notice(Named("sink"), "3|17|")]


def test_query_is_the_only_subscription_until_another_one_starts() -> None:
    # A caller reads the answer to its query only then: handlers of others run on the receive thread.
    peer = Peer().connect()
    has_only = peer.core.subscriptions.has_only
    query, alike = (make_query("positions", "q", follow=False) for _ in range(2))
    assert has_only(None)
    assert has_only(query)
    peer.core.subscribe(Named("q"), query, Named("records"))
    assert has_only(query)
    assert not has_only(alike)
    assert not has_only(None)
    peer.core.subscribe(Named("s"), make_request("orders", "sub"), Named("sink"))
    assert not has_only(query)
