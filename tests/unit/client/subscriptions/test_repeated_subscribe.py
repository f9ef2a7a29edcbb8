"""A subscription that is asked for again, in the client machine, while another one of its id is not yet over
at the server: what is still on its way belongs to that one."""

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
        """See `BookmarkStore`."""
        self.calls += 1
        if self.calls == 2:
            raise StoreFailed("no space left on device")
        return super().log(sub_id, publishers, sequences)


class Again:
    """A subscription that has failed in the store, and another one asked for under its id at once."""

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
        """The server answers what was asked of it, in order."""
        self.scene.say(Ack(id=self.leaving.id))
        self.scene.say(Ack(id=self.asked.id, start=1, after="3|1|"))


def ask(sub_id: str, **more: object) -> SubscribeRequest:
    fields = make_request("orders", sub_id, bookmark=MOST_RECENT, **more)  # type: ignore[arg-type]
    return msgspec.structs.replace(fields, handled=True)


@pytest.mark.behaviour(28)
def test_what_was_on_its_way_to_one_that_failed_is_not_the_next_ones() -> None:
    again = Again()
    scene, store = again.scene, again.store
    assert again.asked.bookmark == "3|1|"
    scene.deliver("a", 3)
    shared = batch_from_bodies("orders", [BODY], publisher=3, first_sequence=4, timestamp=1)
    one = (1).to_bytes(4, "little")
    scene.say(Deliver(sub_ids=("a",), counts=one, indices=bytes(4)), shared)
    assert scene.took(DeliverShared) == []
    assert scene.handed() == [], "the second one begins behind the first message"
    again.answer()
    scene.deliver("a", 2, 3)
    scene.discard(2, 3)
    assert store.most_recent("a") == [Bookmark(3, 3)]


def test_what_the_server_said_of_one_that_failed_does_not_concern_the_next_one() -> None:
    again = Again()
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


def test_the_end_of_one_that_failed_is_not_the_end_of_the_next_one() -> None:
    again = Again()
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


def test_the_pause_of_one_that_failed_is_not_the_pause_of_the_next_one() -> None:
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
    (asked,) = scene.again()
    assert "pause" not in asked.options.split(",")


def test_the_id_of_a_stream_that_was_left_is_free_at_once() -> None:
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
def test_one_asked_for_in_place_of_a_stream_that_was_left_may_be_refused(replace: bool) -> None:
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


def test_a_stream_that_was_left_is_not_placed_again_when_its_connection_is_lost() -> None:
    scene = Scene()
    scene.core.subscribe(Named("call"), request := ask("a"), Named("first"))
    scene.placed(after="0")
    scene.core.leave(request)
    scene.sent()
    assert scene.again() == []
    assert [end.sink for end in scene.took(End)] == ["first"]
