"""A second subscription with an id whose first subscription has not yet ended at the server.

Messages in flight belong to the first subscription."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.client.peer import Named
from tests.unit.client.subscriptions.test_resubscribe import BODY, Scene
from tickertape.base.bookmarks import MOST_RECENT, Bookmark
from tickertape.base.errors import BadFilter, StoreFailed, SubscriptionExists
from tickertape.batch.encode import batch_from_bodies
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.client.bookmark_store.progress import Mask, Publishers, UInt64s
from tickertape.client.common.effects import CaughtUp, DeliverShared, End, Notice, ReportError
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.wire.commands import (
    Ack,
    Completed,
    Deliver,
    Ended,
    Pause,
    PersistedNotice,
    Subscribe,
    Unsubscribe,
)


class FailingStore(MemoryBookmarkStore):
    """A store that cannot record the second batch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def log(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        """Raise at the second batch."""
        self.calls += 1
        if self.calls == 2:
            raise StoreFailed("no space left on device")
        return super().log(sub_id, publishers, sequences)


class Repeated:
    """A subscription that failed in the store, and a second one with the same id."""

    def __init__(self) -> None:
        self.store = FailingStore()
        self.scene = Scene(self.store)
        self.scene.subscribe("a", MOST_RECENT, after="0")
        self.scene.deliver("a", 1)
        self.scene.discard(1)
        self.scene.deliver("a", 2)
        assert [end.reason for end in self.scene.took(End)] == ["store_failed"]
        ((leaving, _),) = self.scene.sent()
        assert isinstance(leaving, Unsubscribe)
        self.leaving = leaving
        self.scene.core.subscribe(Named("again"), ask("a"), Named("again"))
        ((asked, _),) = self.scene.sent()
        assert isinstance(asked, Subscribe)
        self.asked = asked
        self.scene.took(ReportError)

    def answer(self) -> None:
        """Answer the commands of the client in order."""
        self.scene.say(Ack(id=self.leaving.id))
        self.scene.say(Ack(id=self.asked.id, start=1, after="3|1|"))


def ask(sub_id: str, **more: object) -> SubscribeRequest:
    fields = make_request("orders", sub_id, bookmark=MOST_RECENT, **more)  # type: ignore[arg-type]
    return msgspec.structs.replace(fields, handled=True)


@pytest.mark.behaviour(28)
def test_messages_in_flight_of_failed_subscription_do_not_reach_the_next() -> None:
    again = Repeated()
    scene, store = again.scene, again.store
    assert again.asked.bookmark == "3|1|"
    scene.deliver("a", 3)
    shared = batch_from_bodies("orders", [BODY], publisher=3, first_sequence=4, timestamp=1)
    one = (1).to_bytes(4, "little")
    scene.say(Deliver(sub_ids=("a",), counts=one, indices=bytes(4)), shared)
    assert scene.took(DeliverShared) == []
    assert scene.handed() == [], "the second subscription starts after the first message"
    again.answer()
    scene.deliver("a", 2, 3)
    scene.discard(2, 3)
    assert store.most_recent("a") == [Bookmark(3, 3)]


def test_notices_of_failed_subscription_do_not_affect_the_next() -> None:
    again = Repeated()
    scene = again.scene
    scene.say(Completed(sub_id="a", next=9))
    scene.say(PersistedNotice(sub_ids=("a",), publisher=3, sequence=9))
    scene.say(Ended(sub_id="a", code="slow_client", text="too slow"))
    assert (scene.took(CaughtUp), scene.took(Notice), scene.took(End), scene.took(ReportError)) == (
        [],
        [],
        [],
        [],
    )
    assert again.store.most_recent("a") == [Bookmark(3, 1)]


def test_end_of_failed_subscription_does_not_end_the_next() -> None:
    again = Repeated()
    scene = again.scene
    again.answer()
    assert isinstance(scene.outcome("again"), Ack)
    assert scene.took(End) == []
    scene.deliver("a", 2)
    assert scene.handed() == [("again", 2)]
    scene.core.unsubscribe(Named("unsubscribe"), ("a",))
    ((asked, _),) = scene.sent()
    assert isinstance(asked, Unsubscribe)
    scene.say(Ack(id=asked.id))
    assert scene.took(End) == [End(Named("again"), "unsubscribed", None)]


def test_pause_of_failed_subscription_does_not_pause_the_next() -> None:
    scene = Scene(FailingStore())
    scene.subscribe("a", MOST_RECENT, after="0")
    scene.core.pause(Named("pause"), ("a",))
    ((pause, _),) = scene.sent()
    assert isinstance(pause, Pause)
    scene.deliver("a", 1)
    scene.deliver("a", 2)
    leaving = scene.sent()[0][0]
    assert isinstance(leaving, Unsubscribe)
    scene.core.subscribe(Named("again"), ask("a"), Named("again"))
    for command in (pause, leaving):
        scene.say(Ack(id=command.id))
    scene.placed(after="0")
    (asked,) = scene.reconnect()
    assert "pause" not in asked.options.split(",")


def test_id_of_closed_stream_is_reusable_at_once() -> None:
    store = MemoryBookmarkStore()
    scene = Scene(store)
    scene.core.subscribe(Named("call"), request := ask("a"), Named("first"))
    scene.placed(after="0")
    scene.deliver("a", 1, 2)
    scene.discard(1)
    scene.core.leave(request)
    scene.core.subscribe(Named("again"), again := ask("a"), Named("second"))
    (leaving, _), (asked, _) = scene.sent()
    assert isinstance(leaving, Unsubscribe)
    assert isinstance(asked, Subscribe)
    assert asked.bookmark == "3|1|"
    assert scene.took(End) == [End(Named("first"), "unsubscribed", None)]
    with pytest.raises(SubscriptionExists):
        scene.core.subscribe(Named("third"), ask("a"), Named("third"))
    scene.core.leave(request)
    scene.deliver("a", 3)
    scene.say(Ack(id=leaving.id))
    scene.say(Ack(id=asked.id, start=1, after="3|1|"))
    scene.deliver("a", 2, 3)
    assert scene.handed() == [("second", 2), ("second", 3)]
    assert (scene.took(End), scene.sent()) == ([], [])
    scene.core.leave(again)
    assert [type(command) for command, _ in scene.sent()] == [Unsubscribe]


@pytest.mark.parametrize("replace", [False, True])
def test_subscription_in_place_of_closed_stream_may_be_rejected(replace: bool) -> None:
    scene = Scene()
    scene.core.subscribe(Named("call"), request := ask("a"), Named("first"))
    scene.placed(after="0")
    scene.core.leave(request)
    scene.core.subscribe(Named("again"), ask("a", given={"replace": replace}), Named("second"))
    leaving, asked = (command for command, _ in scene.sent())
    assert isinstance(leaving, Unsubscribe)
    scene.say(Ack(id=leaving.id))
    scene.placed()
    assert isinstance(asked, Subscribe)
    scene.say(Ack(id=asked.id, code="bad_filter", text="no"))
    assert isinstance(scene.outcome("again"), BadFilter)
    assert [(end.sink, end.reason) for end in scene.took(End)] == [
        ("first", "unsubscribed"),
        ("second", "bad_filter"),
    ]
    assert len(scene.core.subscriptions) == 0


def test_closed_stream_is_not_resubscribed_after_connection_loss() -> None:
    scene = Scene()
    scene.core.subscribe(Named("call"), request := ask("a"), Named("first"))
    scene.placed(after="0")
    scene.core.leave(request)
    scene.sent()
    assert scene.reconnect() == []
    assert [end.sink for end in scene.took(End)] == ["first"]
