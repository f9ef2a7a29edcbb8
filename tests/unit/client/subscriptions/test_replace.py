"""Replacement of a subscription by another with the same id, in the protocol machine."""

from __future__ import annotations

import pytest

from tests.unit.client.peer import Named, Peer
from tickertape.base.errors import BadFilter, CorruptBatch, StoreFailed, SubscriptionExists
from tickertape.batch import batch_from_bodies
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.client.bookmark_store.progress import Mask, Publishers, UInt64s
from tickertape.client.common.effects import DeliverBatch, End, ReportError
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.limits import credit_linger_seconds
from tickertape.wire.commands import Ack, Credit, Deliver, Ended, Subscribe, Unsubscribe

BODY = b"x" * 68  # with its 32 bytes of cost, 100


def request(**more: object) -> SubscribeRequest:
    return make_request("orders", "s", depth=1000, **more)  # type: ignore[arg-type]


class FailingStore(MemoryBookmarkStore):
    """A store whose next `log` raises `error` if set."""

    error: Exception | None = None

    def log(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return super().log(sub_id, publishers, sequences)


class Replacing:
    """A protocol machine with a subscription and a pending replacement."""

    def __init__(self) -> None:
        self.peer = Peer().connect()
        self.old = request()
        self.new = request(filter="/a = 1", given={"replace": True})
        self.peer.core.subscribe(Named("old"), self.old, Named("old sink"))
        self.peer.say(Ack(id=1))
        self.peer.core.subscribe(Named("new"), self.new, Named("new sink"))
        self.peer.sent()

    def deliver(self, count: int = 1) -> None:
        batch = batch_from_bodies("orders", [BODY] * count, publisher=3, first_sequence=1)
        self.peer.say(Deliver(sub_id="s"), batch)

    def sinks(self) -> list[object]:
        return [hand.sink for hand in self.peer.took(DeliverBatch)]


def test_replacement_sends_a_subscribe_command_with_replace() -> None:
    peer = Peer().connect()
    peer.core.subscribe(Named("new"), request(filter="/a = 1", given={"replace": True}), Named("sink"))
    ((command, _),) = peer.sent()
    assert command == Subscribe(
        id=1, sub_id="s", topic="orders", filter="/a = 1", options="replace", credit=1000
    )


@pytest.mark.behaviour(20)
def test_replacement_starts_exactly_at_the_end_of_the_old_subscription() -> None:
    r = Replacing()
    r.deliver()
    assert (r.sinks(), r.peer.took(End)) == (["old sink"], [])
    r.peer.say(Ack(id=2))
    r.deliver()
    assert r.peer.took(End) == [End(Named("old sink"), "replaced", None)]
    assert r.sinks() == ["new sink"]


def test_rejected_replacement_keeps_the_old_subscription() -> None:
    r = Replacing()
    r.deliver(3)
    r.peer.core.consumed("s", 300, r.old)
    assert r.peer.sent() == []
    r.peer.say(Ack(id=2, code="bad_filter", text="no"))
    ((sink, reason, error),) = r.peer.took(End)
    assert (sink, reason, type(error)) == ("new sink", "bad_filter", BadFilter)
    assert r.peer.sent() == [(Credit(sub_id="s", bytes=300), None)]
    r.deliver()
    assert r.sinks() == ["old sink", "old sink"]


def test_credit_of_old_subscription_is_not_returned_for_the_new() -> None:
    r = Replacing()
    r.deliver(9)
    r.peer.core.consumed("s", 600, r.old)
    r.peer.later(credit_linger_seconds)
    r.peer.say(Ack(id=2))
    r.peer.core.consumed("s", 300, r.old)
    r.peer.later(credit_linger_seconds)
    assert r.peer.sent() == []
    r.deliver(5)
    r.peer.core.consumed("s", 500, r.new)
    assert r.peer.sent() == [(Credit(sub_id="s", bytes=500), None)]


def test_old_subscription_may_end_before_the_replacement_starts() -> None:
    r = Replacing()
    r.peer.say(Ended(sub_id="s"))
    assert r.peer.took(End) == [End(Named("old sink"), "complete", None)]
    r.peer.say(Ack(id=2))
    r.deliver()
    assert r.sinks() == ["new sink"]
    assert r.peer.took(End) == []


def test_second_pending_replacement_raises() -> None:
    r = Replacing()
    with pytest.raises(SubscriptionExists, match="another replacement is pending"):
        r.peer.core.subscribe(Named("third"), request(given={"replace": True}), Named("third sink"))
    with pytest.raises(SubscriptionExists, match="in use"):
        r.peer.core.subscribe(Named("fourth"), request(), Named("fourth sink"))


def test_closing_replaced_stream_does_not_unsubscribe_the_new_subscription() -> None:
    r = Replacing()
    r.peer.core.leave(r.old)  # the old subscription ends anyway
    r.peer.say(Ack(id=2))
    assert r.peer.sent() == []
    r.peer.core.leave(r.old)
    assert r.peer.sent() == []
    r.peer.core.leave(r.new)
    assert r.peer.sent() == [(Unsubscribe(id=3, sub_ids=("s",)), None)]


def test_closed_old_stream_unsubscribes_when_the_replacement_is_rejected() -> None:
    r = Replacing()
    r.peer.core.leave(r.old)
    r.peer.say(Ack(id=2, code="bad_filter", text="no"))
    assert r.peer.sent() == [(Unsubscribe(id=3, sub_ids=("s",)), None)]


def test_closed_replacement_stream_unsubscribes_after_the_answer() -> None:
    r = Replacing()
    r.peer.core.leave(r.new)
    assert r.peer.sent() == []
    r.peer.say(Ack(id=2))
    assert r.peer.sent() == [(Unsubscribe(id=3, sub_ids=("s",)), None)]


def test_lost_connection_ends_old_subscription_and_replacement() -> None:
    r = Replacing()
    r.peer.lose()
    assert [(end.sink, end.reason) for end in r.peer.took(End)] == [
        ("old sink", "disconnected"),
        ("new sink", "disconnected"),
    ]


def test_replacement_of_replay_without_bookmark_has_bookmarks() -> None:
    peer = Peer().connect()
    peer.core.subscribe(Named("old"), request(bookmark="0"), Named("old sink"))
    peer.say(Ack(id=1))
    for number in (2, 3):
        peer.core.subscribe(Named("new"), request(given={"replace": True}), Named(f"sink {number}"))
        peer.say(Ack(id=number))
        batch = batch_from_bodies("orders", [BODY], publisher=3, first_sequence=number)
        peer.say(Deliver(sub_id="s"), batch)
        (hand,) = peer.took(DeliverBatch)
        assert (hand.sink, next(iter(hand.batch)).bookmark) == (f"sink {number}", f"3|{number}|")


def replacing_a_replay(bookmark: str | None) -> tuple[Peer, FailingStore]:
    """Return a peer with a replay, a store and a pending replacement."""
    peer, store = Peer().connect(), FailingStore()
    peer.core.subscriptions.use_store(store)
    peer.core.subscribe(Named("old"), request(bookmark="0"), Named("old sink"))
    peer.say(Ack(id=1, after="0"))
    peer.core.subscribe(Named("new"), request(bookmark=bookmark, given={"replace": True}), Named("new sink"))
    peer.sent()
    return peer, store


def deliver(peer: Peer, sequence: int, *, damaged: bool = False) -> None:
    batch = batch_from_bodies("orders", [BODY] * 8, publisher=3, first_sequence=sequence)
    if damaged:
        encoded = bytearray(batch.encode())
        encoded[-100] ^= 1
        batch = MessageBatch.parse(encoded)
    peer.say(Deliver(sub_id="s"), batch)


@pytest.mark.parametrize("damaged", [False, True])
def test_failed_old_subscription_ends_a_replacement_that_continues_from_the_old(*, damaged: bool) -> None:
    peer, store = replacing_a_replay(None)
    if not damaged:
        store.error = StoreFailed("no space left on device")
    deliver(peer, 1, damaged=damaged)
    kind = CorruptBatch if damaged else StoreFailed
    ends = [(end.sink, type(end.error)) for end in peer.took(End)]
    assert ends == [("old sink", kind), ("new sink", kind)]
    assert [type(report.error) for report in peer.took(ReportError)] == [kind]
    assert peer.sent() == [(Unsubscribe(id=3, sub_ids=("s",)), None)], "the server ends either subscription"
    deliver(peer, 9)
    peer.say(Ack(id=2))
    deliver(peer, 17)
    assert peer.took(DeliverBatch) == [], "messages after a gap are not delivered"
    peer.core.subscribe(Named("next"), request(bookmark="0"), Named("next sink"))
    peer.say(Ack(id=3))
    peer.say(Ack(id=4, after="0"))
    deliver(peer, 1)
    assert [hand.sink for hand in peer.took(DeliverBatch)] == ["next sink"]


@pytest.mark.parametrize("damaged", [False, True])
def test_failed_old_subscription_keeps_a_replacement_with_own_start(*, damaged: bool) -> None:
    peer, store = replacing_a_replay("0")
    if not damaged:
        store.error = StoreFailed("no space left on device")
    deliver(peer, 1, damaged=damaged)
    assert [end.sink for end in peer.took(End)] == ["old sink"]
    peer.say(Ack(id=2, after="0"))
    deliver(peer, 1)
    assert [hand.sink for hand in peer.took(DeliverBatch)] == ["new sink"]
    assert peer.sent() == []
