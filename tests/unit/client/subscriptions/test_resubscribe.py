"""Resubscription after a lost connection, in the protocol machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.client.peer import Named, Peer
from tickertape.base.bookmarks import EPOCH, MOST_RECENT, NOW, Bookmark, is_place, place_at
from tickertape.base.errors import (
    BookmarkUnknown,
    Closed,
    Disconnected,
    SubscriptionExists,
    SubscriptionUnknown,
)
from tickertape.batch.encode import batch_from_bodies
from tickertape.client.bookmark_store import BookmarkStore, LoggedBookmarkStore, MemoryBookmarkStore
from tickertape.client.common.effects import DeliverBatch, End, EndConnection, ReportError, WillRedeliver
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import MadeUpId, make_request
from tickertape.client.limits import (
    resubscription_retries_max,
    resubscription_retry_seconds,
    resubscriptions_under_way_max,
)
from tickertape.wire.commands import (
    Ack,
    Completed,
    Credit,
    Deliver,
    Pause,
    PersistedNotice,
    Resume,
    Subscribe,
    Unsubscribe,
)
from tickertape.wire.link_rows import encode_notice_places

BODY = b"x" * 68  # with its 32 bytes of cost, 100


class Scene(Peer):
    """A protocol machine that keeps subscriptions, with a scripted server."""

    def __init__(self, store: BookmarkStore | None = None) -> None:
        super().__init__()
        self.core.subscriptions.keep = True
        self.core.subscriptions.use_store(store)
        self.connect()

    def subscribe(
        self,
        sub_id: str,
        bookmark: str | None = None,
        *,
        handled: bool = True,
        after: str = "",
        **more: object,
    ) -> Subscribe:
        """Subscribe with a positive answer and return the command."""
        given = {name: value for name, value in more.items() if name not in ("filter", "depth", "options")}
        request = make_request(
            "orders",
            sub_id,
            bookmark=bookmark,
            given=given,
            **{name: value for name, value in more.items() if name not in given},  # type: ignore[arg-type]
        )
        fields = {name: getattr(request, name) for name in request.__struct_fields__}
        self.core.subscribe(
            Named(f"call-{sub_id}"), SubscribeRequest(**fields | {"handled": handled}), Named(sub_id)
        )
        return self.placed(after=after)[0]

    def placed(self, *, after: str = "", code: str = "") -> list[Subscribe]:
        """Answer the subscribe commands since the last call and return them."""
        asked = [command for command, _ in self.sent() if isinstance(command, Subscribe)]
        for command in asked:
            self.say(Ack(id=command.id, code=code, text=code, start=None if code else 1, after=after))
        return asked

    def deliver(self, sub_id: str, *sequences: int, publisher: int = 3) -> None:
        for sequence in sequences:
            batch = batch_from_bodies(
                "orders", [BODY], publisher=publisher, first_sequence=sequence, timestamp=1
            )
            self.say(Deliver(sub_id=sub_id), batch)

    def handed(self) -> list[tuple[object, int]]:
        return [
            (hand.sink, hand.batch.sequence(i))
            for hand in self.took(DeliverBatch)
            for i in range(hand.batch.count)
        ]

    def discard(self, *sequences: int) -> None:
        """Take deliveries and discard the messages with these sequences."""
        for hand in self.took(DeliverBatch):
            for message in hand.batch:
                if message.sequence in sequences:
                    assert message.discard()

    def reconnect(self) -> list[Subscribe]:
        """Lose the connection, reconnect and return the resubscribe commands."""
        self.lose()
        self.connect()
        self.core.resubscribe(Named("round"))
        return self.placed()

    def refused(self) -> list[tuple[str, type[Exception]]]:
        outcome = self.outcome("round")
        assert isinstance(outcome, list)
        return [(sub_id, type(error)) for sub_id, error in outcome]


def command(commands: list[Subscribe]) -> Subscribe:
    (one,) = commands
    return one


def test_subscriptions_are_resubscribed_in_the_original_order() -> None:
    scene = Scene()
    for sub_id in "abc":
        scene.subscribe(sub_id)
    scene.subscribe("a", replace=True, filter="/x = 1")
    assert [end.reason for end in scene.took(End)] == ["replaced"]
    again = scene.reconnect()
    assert [one.sub_id for one in again] == ["a", "b", "c"]
    assert again[0].filter == "/x = 1", "the active subscription"
    assert again[0].options == "", "the resubscription replaces nothing"
    assert not scene.took(End)
    assert scene.refused() == []


@pytest.mark.behaviour(33)
def test_stream_ends_with_the_connection_and_is_not_resubscribed() -> None:
    scene = Scene()
    scene.subscribe("stream", handled=False)
    scene.subscribe("handled")
    assert [one.sub_id for one in scene.reconnect()] == ["handled"]
    assert [(end.sink, end.reason) for end in scene.took(End)] == [("stream", "disconnected")]


def test_client_without_kept_subscriptions_ends_all_at_connection_loss() -> None:
    scene = Scene()
    scene.core.subscriptions.keep = False
    scene.subscribe("handled")
    assert scene.reconnect() == []
    assert [end.reason for end in scene.took(End)] == ["disconnected"]
    assert scene.refused() == []


def test_reconnect_fails_pending_subscribe_with_disconnected() -> None:
    scene = Scene()
    scene.core.subscribe(Named("call"), make_request("orders", "late"), Named("late"))
    assert scene.reconnect() == []
    assert isinstance(scene.outcome("call"), Disconnected)
    assert [end.sink for end in scene.took(End)] == ["late"]


def test_pending_replacement_ends_and_old_subscription_is_resubscribed() -> None:
    scene = Scene()
    scene.subscribe("a", "0", filter="/old = 1")
    request = make_request("orders", "a", filter="/new = 1", options="replace")
    scene.core.subscribe(Named("call"), request, Named("new"))
    scene.sent()
    assert command(scene.reconnect()).filter == "/old = 1"
    assert isinstance(scene.outcome("call"), Disconnected)
    assert [end.sink for end in scene.took(End)] == ["new"]


@pytest.mark.behaviour(26)
def test_subscription_without_messages_resumes_at_the_resolved_start() -> None:
    for store in (None, MemoryBookmarkStore()):
        scene = Scene(store)
        assert scene.subscribe("a", NOW, after="7|9|").bookmark == NOW
        assert scene.subscribe("b", "20261120T090000Z", after="0").bookmark == "20261120T090000Z"
        assert scene.subscribe("c", NOW, after="").bookmark == NOW
        first, second, third = scene.reconnect()
        assert first.bookmark == "7|9|", "no message arrived yet"
        assert second.bookmark == "0", "the original start is the start of the log"
        assert third.bookmark == NOW, "the start was not resolved"
        if store is not None:
            assert store.most_recent("a") == [Bookmark(7, 9)]


@pytest.mark.behaviour(26)
def test_subscription_without_store_resumes_after_the_last_delivery() -> None:
    scene = Scene()
    scene.subscribe("a", "0", filter="/x = 1", rate="2x", timestamp=True)
    scene.deliver("a", 4, 5)
    again = command(scene.reconnect())
    assert again.bookmark == "3|5|"
    assert again.filter == "/x = 1"
    assert set(again.options.split(",")) == {"bookmark", "timestamp", "bookmark_not_found=fail", "rate=2x"}
    scene.took(DeliverBatch)
    scene.deliver("a", 5, 6)
    assert scene.handed() == [("a", 6)], "a delivered message is not delivered twice"


@pytest.mark.behaviour(26)
def test_range_keeps_the_end_and_completed_range_is_not_resubscribed() -> None:
    scene = Scene()
    text = "[20261120T090000Z:20261120T100000Z)"
    scene.subscribe("running", text, after="3|1|")
    scene.subscribe("begun", text)
    scene.subscribe("over", text, after="3|1|")
    scene.subscribe("open", "0", after="0")
    scene.deliver("running", 4)
    for sub_id in ("over", "open"):
        scene.say(Completed(sub_id=sub_id, next=9))
    again = {one.sub_id: one.bookmark for one in scene.reconnect()}
    assert again.keys() == {"running", "begun", "open"}
    assert str(again["running"]).startswith("(3|4|:20261120T100000")
    assert str(again["running"]).endswith(")")
    assert again["begun"] == text, "the start of the range may be in the future"
    assert [(e.sink, e.reason) for e in scene.took(End)] == [("over", "complete")]


@pytest.mark.behaviour(27)
def test_resubscription_keeps_the_paused_or_resumed_state() -> None:
    scene = Scene()
    for sub_id in ("resumed", "paused", "begun-paused"):
        scene.subscribe(sub_id, "0", pause=sub_id != "paused")
    for verb, kind, sub_id in (
        (scene.core.resume, Resume, "resumed"),
        (scene.core.pause, Pause, "paused"),
    ):
        verb(Named(sub_id), (sub_id,))
        ((asked, _),) = scene.sent()
        assert isinstance(asked, kind)
        scene.say(Ack(id=asked.id))
    scene.deliver("paused", 5)
    for _ in range(2):
        again = {one.sub_id: one for one in scene.reconnect()}
        assert {sub_id: "pause" in one.options.split(",") for sub_id, one in again.items()} == {
            "resumed": False,
            "paused": True,
            "begun-paused": True,
        }
        assert again["paused"].bookmark == "3|5|"


@pytest.mark.behaviour(28)
def test_resubscription_redelivers_only_undiscarded_messages_once() -> None:
    store = MemoryBookmarkStore()
    scene = Scene(store)
    assert scene.subscribe("a", MOST_RECENT, after="0").bookmark == "0"
    scene.deliver("a", 1, 2, 3, 4)
    scene.discard(1, 3)
    again = command(scene.reconnect())
    assert again.bookmark == "3|1|"
    assert [effect.sink for effect in scene.took(WillRedeliver)] == ["a"]
    for _ in range(2):
        scene.deliver("a", 2, 3, 4)
    assert scene.handed() == [("a", 2), ("a", 4)]


@pytest.mark.behaviour(28)
def test_unknown_bookmark_at_resubscription_ends_only_one_subscription() -> None:
    scene = Scene()
    for sub_id in "abc":
        scene.subscribe(sub_id, "0", after="3|1|")
    scene.lose()
    scene.connect()
    scene.core.resubscribe(Named("round"))
    for asked, _ in scene.sent():
        assert isinstance(asked, Subscribe)
        code = "bookmark_unknown" if asked.sub_id == "b" else ""
        scene.say(Ack(id=asked.id, code=code, text="no such bookmark"))
    assert [(end.sink, end.reason) for end in scene.took(End)] == [("b", "bookmark_unknown")]
    (reported,) = scene.took(ReportError)
    assert isinstance(reported.error, BookmarkUnknown)
    assert "'b'" in str(reported.error)
    assert scene.refused() == [("b", BookmarkUnknown)]
    assert [one.sub_id for one in scene.reconnect()] == ["a", "c"]


def test_persisted_notice_moves_the_resume_bookmark() -> None:
    for store in (None, MemoryBookmarkStore()):
        scene = Scene(store)
        scene.subscribe("a", NOW, after="7|9|")
        scene.say(PersistedNotice(sub_ids=("a",), publisher=8, sequence=1))
        assert command(scene.reconnect()).bookmark == "8|1|"


def test_places_belong_to_the_server_that_answered_last() -> None:
    """The server of the second connection could not read the bookmark before the start."""
    store = MemoryBookmarkStore()
    scene = Scene(store)
    scene.subscribe("a", NOW, after="7|9|")
    places = encode_notice_places([place_at(1, 50)])
    scene.say(PersistedNotice(sub_ids=("a",), publisher=8, sequence=1, places=places))
    scene.reconnect()
    batch = batch_from_bodies("orders", [BODY], publisher=3, first_sequence=1, timestamp=1)
    scene.say(Deliver(sub_id="a", next=900), batch)
    scene.discard(1)
    assert [one for one in store.most_recent("a") if is_place(one)] == [place_at(1, 50)]


def test_live_subscription_resumes_with_a_persisted_bookmark() -> None:
    scene = Scene()
    scene.subscribe("a", NOW, after="7|9|", live=True)
    scene.deliver("a", 4)
    assert command(scene.reconnect()).bookmark == "3|4|,7|9|", "3|4| may not have been persisted"


def test_live_subscription_to_empty_log_resumes_at_epoch() -> None:
    for store in (None, MemoryBookmarkStore()):
        scene = Scene(store)
        scene.subscribe("a", EPOCH, after="0", live=True)
        scene.deliver("a", 4)
        assert command(scene.reconnect()).bookmark == EPOCH, "3|4| may not have been persisted"


def test_conflated_subscription_resumes_at_the_latest_bookmark_only() -> None:
    scene = Scene()
    scene.subscribe("a", "0", conflation="1s")
    scene.deliver("a", 4, publisher=8)
    scene.deliver("a", 4, publisher=3)
    assert command(scene.reconnect()).bookmark == "3|4|"


def test_conflated_most_recent_of_later_client_starts_at_latest_bookmark_only() -> None:
    store = MemoryBookmarkStore()
    scene = Scene(store)
    scene.subscribe("a", MOST_RECENT)
    scene.deliver("a", 4, publisher=8)
    scene.deliver("a", 4, publisher=3)
    scene.discard(4)
    assert Scene(store).subscribe("a", MOST_RECENT).bookmark == "8|4|,3|4|"
    assert Scene(store).subscribe("a", MOST_RECENT, conflation="1s").bookmark == "3|4|"


def test_replacement_without_bookmark_resumes_after_the_old_deliveries() -> None:
    scene = Scene()
    scene.subscribe("a", "[0:20991120T090000Z)", pause=True, after="0")
    scene.deliver("a", 1)
    scene.subscribe("a", replace=True, filter="/x = 1")
    scene.deliver("a", 2)
    again = command(scene.reconnect())
    assert str(again.bookmark).startswith("(3|2|:2099")
    assert again.filter == "/x = 1"
    assert {"bookmark", "pause", "bookmark_not_found=fail"} == set(again.options.split(","))


def test_unconsumed_credit_stays_used_over_a_reconnect() -> None:
    scene = Scene()
    scene.subscribe("a", depth=1000)
    scene.deliver("a", 1, 2, 3)
    scene.core.consumed("a", 100)
    scene.lose()
    scene.core.consumed("a", 100)
    scene.connect()
    assert scene.sent() == [], "no credit before the resubscription"
    scene.core.resubscribe(Named("round"))
    assert command(scene.placed()).credit == 900
    scene.deliver("a", 4, 5, 6, 7)
    for _ in range(5):
        scene.core.consumed("a", 100)
    assert scene.sent() == [(Credit(sub_id="a", bytes=500), None)]


def test_messages_dropped_by_the_store_return_credit() -> None:
    store = MemoryBookmarkStore()
    scene = Scene(store)
    scene.subscribe("a", MOST_RECENT, after="0", depth=1000)
    scene.deliver("a", 1, 2, 3, 4, 5)
    scene.discard(1, 2, 3, 4, 5)
    scene.core.consumed("a", 500)
    scene.reconnect()
    scene.deliver("a", 1, 2, 3, 4, 5)
    assert scene.handed() == []
    assert scene.sent() == [(Credit(sub_id="a", bytes=500), None)]


def test_unsubscribe_while_disconnected_removes_the_subscription() -> None:
    scene = Scene()
    for sub_id in "abcd":
        scene.subscribe(sub_id)
    request = make_request("orders", "e")
    scene.core.subscribe(
        Named("e"), SubscribeRequest(topic="orders", context=request.context, handled=True), Named("e")
    )
    scene.placed()
    scene.lose()
    scene.core.unsubscribe(Named("unsubscribe"), ("a", "b"))
    assert scene.outcome("unsubscribe") is None
    with pytest.raises(Disconnected):
        scene.core.unsubscribe(Named("unknown"), ("c", "x"))
    for refused in (scene.core.pause, scene.core.resume):
        with pytest.raises(Disconnected):
            refused(Named("call"), ("c",))
    scene.connect()
    scene.core.unsubscribe(Named("unsubscribe"), ("c",))
    assert scene.outcome("unsubscribe") is None, "the subscription is not resubscribed yet"
    with pytest.raises(SubscriptionUnknown):
        scene.core.unsubscribe(Named("unknown"), ("a",))
    with pytest.raises(SubscriptionExists, match="its resubscription is pending"):
        scene.core.subscribe(Named("call"), make_request("orders", "d", options="replace"), Named("new"))
    scene.core.resubscribe(Named("round"))
    assert [one.sub_id for one in scene.placed()] == ["d", "e"]
    assert [(end.sink, end.reason) for end in scene.took(End)] == [
        (sub_id, "unsubscribed") for sub_id in "abc"
    ]


def test_stream_closed_while_disconnected_is_not_resubscribed() -> None:
    scene = Scene()
    request = SubscribeRequest(topic="orders", context=make_request("orders", "a").context, handled=True)
    scene.core.subscribe(Named("call"), request, Named("a"))
    scene.placed()
    scene.lose()
    scene.core.leave(request)
    assert [end.reason for end in scene.took(End)] == ["unsubscribed"]
    scene.connect()
    scene.core.resubscribe(Named("round"))
    assert scene.sent() == []


def test_resubscription_is_windowed_and_connection_loss_keeps_all_subscriptions() -> None:
    scene = Scene()
    count = 2 * resubscriptions_under_way_max + 5
    for n in range(count):
        scene.subscribe(f"s{n}")
    scene.lose()
    scene.connect()
    scene.core.resubscribe(Named("first"))
    asked = [one for one, _ in scene.sent()]
    assert len(asked) == resubscriptions_under_way_max
    for one in asked[:3]:
        scene.say(Ack(id=one.id))  # type: ignore[attr-defined]
    assert [one.sub_id for one, _ in scene.sent()] == [  # type: ignore[attr-defined]
        f"s{resubscriptions_under_way_max + n}" for n in range(3)
    ]
    scene.lose()
    assert isinstance(scene.outcome("first"), Disconnected)
    scene.connect()
    scene.core.resubscribe(Named("round"))
    placed: list[Subscribe] = []
    while some := scene.placed():
        placed += some
    assert [one.sub_id for one in placed] == [f"s{n}" for n in range(count)]
    assert scene.refused() == []


def test_close_while_disconnected_ends_kept_subscriptions() -> None:
    scene = Scene()
    scene.subscribe("a")
    scene.lose()
    scene.core.close()
    assert [(end.sink, end.reason) for end in scene.took(End)] == [("a", "closed")]
    with pytest.raises(Closed):
        scene.core.resubscribe(Named("round"))


def test_invalid_start_bookmark_from_server_ends_the_connection() -> None:
    for place in ("yesterday", "1|2|,3|4|", "0|1|", "x|y|"):
        scene = Scene()
        scene.subscribe("a", "0", after=place)
        (hangup,) = scene.took(EndConnection)
        assert hangup.error.code == "bad_command", place


def test_generated_id_ignores_progress_of_earlier_processes() -> None:
    store = MemoryBookmarkStore()
    scene = Scene(store)
    store.started("made-1", [Bookmark(1, 1)])
    request = make_request("orders", MadeUpId("made-1"), bookmark=MOST_RECENT)
    scene.core.subscribe(Named("call"), request, Named("made-1"))
    assert command(scene.placed(after="0")).bookmark == "0"
    scene.core.unsubscribe(Named("unsubscribe"), ("made-1",))
    ((asked, _),) = scene.sent()
    assert isinstance(asked, Unsubscribe)
    assert store.subscriptions() == ["made-1"]
    scene.say(Ack(id=asked.id))
    assert store.subscriptions() == []


def test_resubscription_rejected_as_not_ready_is_retried() -> None:
    scene = Scene()
    for sub_id in "ab":
        scene.subscribe(sub_id)
    scene.lose()
    scene.connect()
    scene.core.resubscribe(Named("round"))
    first, second = (one for one, _ in scene.sent())
    assert isinstance(first, Subscribe)
    assert isinstance(second, Subscribe)
    scene.say(Ack(id=first.id, code="not_ready", text="busy"))
    scene.say(Ack(id=second.id))
    assert not scene.took(End)
    scene.later(resubscription_retry_seconds / 2)
    assert scene.sent() == []
    scene.later(resubscription_retry_seconds)
    assert [one.sub_id for one in scene.placed(code="not_ready")] == ["a"]
    scene.lose()
    assert isinstance(scene.outcome("round"), Disconnected)
    assert scene.core.next_deadline() is None
    scene.connect()
    scene.core.resubscribe(Named("round"))
    for _ in range(resubscription_retries_max + 1):
        assert "a" in [one.sub_id for one in scene.placed(code="not_ready")]
        scene.later(1.1 * resubscription_retry_seconds)
    assert {sub_id for sub_id, _ in scene.refused()} == {"a", "b"}
    assert [end.reason for end in scene.took(End)] == ["not_ready"] * 2


@pytest.mark.behaviour(34)
@pytest.mark.parametrize("kind", ["none", "memory", "logged"])
def test_duplicates_after_failover_are_dropped(kind: str, tmp_path: Path) -> None:
    store: MemoryBookmarkStore | LoggedBookmarkStore | None = None
    if kind != "none":
        store = MemoryBookmarkStore() if kind == "memory" else LoggedBookmarkStore(tmp_path / "bookmarks")
    scene = Scene(store)
    scene.subscribe("a", MOST_RECENT, after="0")
    scene.deliver("a", 1000, 1002)
    if store is not None:
        scene.discard(1000, 1002)
    scene.took(DeliverBatch)
    scene.deliver("a", 999)
    assert scene.handed() == [], "the sequence of the publisher is out of order"
    scene.reconnect()
    scene.deliver("a", 1000, 1001, 1002, 1003)
    scene.deliver("a", 1000, publisher=4)
    assert scene.handed() == [("a", 1003), ("a", 1000)]
    if store is not None:
        store.close()
