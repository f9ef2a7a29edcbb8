"""A subscription that takes the place of another one of the same id, in the client machine."""

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
    """Its next `log` raises `error`, if there is one."""

    error: Exception | None = None

    def log(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return super().log(sub_id, publishers, sequences)


class Replacing:
    """A machine with a subscription and another one on its way that is to replace it."""

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


def test_the_command_says_what_it_is() -> None:
    peer = Peer().connect()
    peer.core.subscribe(Named("new"), request(filter="/a = 1", given={"replace": True}), Named("sink"))
    ((command, _),) = peer.sent()
    assert command == Subscribe(
        id=1, sub_id="s", topic="orders", filter="/a = 1", options="replace", credit=1000
    )


@pytest.mark.behaviour(20)
def test_the_new_one_begins_exactly_where_the_old_one_ends() -> None:
    r = Replacing()
    r.deliver()
    assert (r.sinks(), r.peer.took(End)) == (["old sink"], [])
    r.peer.say(Ack(id=2))
    r.deliver()
    assert r.peer.took(End) == [End(Named("old sink"), "replaced", None)]
    assert r.sinks() == ["new sink"]


def test_one_that_is_refused_leaves_the_old_one_as_it_was() -> None:
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


def test_credit_of_the_old_one_is_never_the_new_ones() -> None:
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


def test_the_old_one_may_end_first() -> None:
    r = Replacing()
    r.peer.say(Ended(sub_id="s"))
    assert r.peer.took(End) == [End(Named("old sink"), "complete", None)]
    r.peer.say(Ack(id=2))
    r.deliver()
    assert r.sinks() == ["new sink"]
    assert r.peer.took(End) == []


def test_two_replacements_at_a_time_are_refused() -> None:
    r = Replacing()
    with pytest.raises(SubscriptionExists, match="another replacement is pending"):
        r.peer.core.subscribe(Named("third"), request(given={"replace": True}), Named("third sink"))
    with pytest.raises(SubscriptionExists, match="in use"):
        r.peer.core.subscribe(Named("fourth"), request(), Named("fourth sink"))


def test_streams_that_are_left_end_what_they_are_of() -> None:
    r = Replacing()
    r.peer.core.leave(r.old)  # it is about to end anyway
    r.peer.say(Ack(id=2))
    assert r.peer.sent() == []
    r.peer.core.leave(r.old)
    assert r.peer.sent() == []
    r.peer.core.leave(r.new)
    assert r.peer.sent() == [(Unsubscribe(id=3, sub_ids=("s",)), None)]


def test_an_old_stream_that_was_left_ends_when_its_replacement_is_refused() -> None:
    r = Replacing()
    r.peer.core.leave(r.old)
    r.peer.say(Ack(id=2, code="bad_filter", text="no"))
    assert r.peer.sent() == [(Unsubscribe(id=3, sub_ids=("s",)), None)]


def test_a_replacement_that_nobody_waits_for_is_ended_when_it_stands() -> None:
    r = Replacing()
    r.peer.core.leave(r.new)
    assert r.peer.sent() == []
    r.peer.say(Ack(id=2))
    assert r.peer.sent() == [(Unsubscribe(id=3, sub_ids=("s",)), None)]


def test_a_lost_connection_ends_both() -> None:
    r = Replacing()
    r.peer.lose()
    assert [(end.sink, end.reason) for end in r.peer.took(End)] == [
        ("old sink", "disconnected"),
        ("new sink", "disconnected"),
    ]


def test_what_replaces_a_replay_without_a_bookmark_goes_on_as_one() -> None:
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
    """A replay with a store, and what is to replace it on its way."""
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
def test_when_the_old_one_fails_what_was_to_go_on_from_it_ends_too(*, damaged: bool) -> None:
    peer, store = replacing_a_replay(None)
    if not damaged:
        store.error = StoreFailed("no space left on device")
    deliver(peer, 1, damaged=damaged)
    kind = CorruptBatch if damaged else StoreFailed
    ends = [(end.sink, type(end.error)) for end in peer.took(End)]
    assert ends == [("old sink", kind), ("new sink", kind)]
    assert [type(tell.error) for tell in peer.took(ReportError)] == [kind]
    assert peer.sent() == [(Unsubscribe(id=3, sub_ids=("s",)), None)], "the server ends whichever it has"
    deliver(peer, 9)
    peer.say(Ack(id=2))
    deliver(peer, 17)
    assert peer.took(DeliverBatch) == [], "there would be a gap before it"
    peer.core.subscribe(Named("next"), request(bookmark="0"), Named("next sink"))
    peer.say(Ack(id=3))
    peer.say(Ack(id=4, after="0"))
    deliver(peer, 1)
    assert [hand.sink for hand in peer.took(DeliverBatch)] == ["next sink"]


@pytest.mark.parametrize("damaged", [False, True])
def test_when_the_old_one_fails_a_replacement_with_a_begin_of_its_own_goes_on(*, damaged: bool) -> None:
    peer, store = replacing_a_replay("0")
    if not damaged:
        store.error = StoreFailed("no space left on device")
    deliver(peer, 1, damaged=damaged)
    assert [end.sink for end in peer.took(End)] == ["old sink"]
    peer.say(Ack(id=2, after="0"))
    deliver(peer, 1)
    assert [hand.sink for hand in peer.took(DeliverBatch)] == ["new sink"]
    assert peer.sent() == []
