"""Queries in the protocol machine: the result, its order, its end, and the messages after it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.client.peer import Named
from tests.unit.client.sow.query_scene import QueryScene, kinds
from tickertape.base.errors import (
    BadCommand,
    BadFilter,
    BadOrderBy,
    Disconnected,
    QueryTooSlow,
    StoreFailed,
)
from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.client.common.effects import (
    CaughtUp,
    DeliverBatch,
    End,
    EndConnection,
    ReportError,
    ResolveCall,
    SnapshotBegun,
    SnapshotEnded,
    Started,
    WillRedeliver,
)
from tickertape.client.sow.query_arguments import make_query
from tickertape.wire.commands import (
    Ack,
    Credit,
    Deliver,
    Ended,
    GroupEnd,
    Pause,
    Records,
    Sow,
    Subscribe,
    Unsubscribe,
)


def hang_up_reason(scene: QueryScene) -> str:
    ((error,),) = scene.took(EndConnection)
    assert isinstance(error, BadCommand)
    return str(error)


# -- the command and the result -----------------------------------------------------------------------


def test_query_is_sent_with_all_terms() -> None:
    scene = QueryScene()
    command = scene.query(
        follow=False,
        filter="/x = 1",
        keys=["a", "b"],
        order_by="/x DESC",
        top_n=5,
        skip_n=2,
        batch_size=3,
        options="select=[-/,+/x]",
        timestamp=True,
        depth=4096,
    )
    assert command == Sow(
        id=1,
        sub_id="q",
        topic="orders",
        filter="/x = 1",
        keys=("a", "b"),
        order_by="/x DESC",
        top_n=5,
        skip_n=2,
        batch_size=3,
        options="timestamp,select=[-/,+/x]",
        credit=4096,
    )
    assert scene.query("r").follow


def test_caller_waits_for_the_position_and_not_only_for_the_answer() -> None:
    scene = QueryScene()
    scene.took(ResolveCall)
    scene.query()
    assert not scene.took(ResolveCall)
    scene.begin()
    assert scene.took(SnapshotBegun) == [(Named("q"), "3|7|", 7)]
    assert scene.outcome("call-q") is None


def test_records_have_the_values_of_the_marks() -> None:
    scene = QueryScene()
    scene.query(follow=False, timestamp=True)
    scene.begin()
    scene.records(1, 2, first=8)
    one, two = scene.messages()
    assert (one.command, one.query_id, one.sub_id, one.topic) == ("sow", "q", "q", "orders")
    assert (one.bookmark, two.bookmark, one.publisher, two.sequence) == ("3|8|", "3|9|", "3", 9)
    assert one.timestamp is not None
    assert one.timestamp.microsecond == 5
    assert one.sow_key is not None
    assert one.sow_key != two.sow_key
    assert not one.discard()


def test_end_of_a_result_reports_the_numbers_and_completes_the_stream() -> None:
    scene = QueryScene()
    scene.query(follow=False)
    scene.begin()
    scene.records(1, 2)
    scene.end(2, matches=9, topic_matches=11)
    scene.say(Ended(sub_id="q"))
    assert scene.took(SnapshotEnded) == [(Named("q"), "3|7|", 9, 11, 2)]
    assert scene.took(CaughtUp) == [(Named("q"),)]
    assert scene.took(End) == [(Named("q"), "complete", None)]
    assert "q" not in scene.core.subscriptions


def test_pattern_without_a_match_has_an_empty_result() -> None:
    scene = QueryScene()
    scene.query(topic="^nothing", follow=False)
    scene.end(0)
    scene.say(Ended(sub_id="q"))
    assert scene.outcome("call-q") is None
    assert scene.took(SnapshotBegun) == [(Named("q"), "0", None)]
    assert scene.took(SnapshotEnded) == [(Named("q"), "0", 0, 0, 0)]
    assert [end.reason for end in scene.took(End)] == ["complete"]


@pytest.mark.behaviour(51)
def test_groups_are_messages_for_handlers_and_on_request() -> None:
    for more in ({"handled": True}, {"groups": True}):
        scene = QueryScene()
        scene.query(**more)  # type: ignore[arg-type]
        scene.whole(1)
        got = scene.messages()
        assert [message.command for message in got] == ["group_begin", "sow", "group_end"]
        assert [message.data for message in got] == [b"", b'{"id":1}', b""]
        assert [message.bookmark for message in got] == ["3|7|", "3|1|", "3|7|"]
        assert [message.query_id for message in got] == ["q"] * 3
        assert [message.sow_key is None for message in got] == [True, False, True]
        assert [message.batch.cost for message in got] == [0, 40, 0]


def test_groups_of_an_empty_log_have_no_bookmark() -> None:
    scene = QueryScene()
    scene.query(groups=True)
    scene.whole(as_of="0")
    assert [message.bookmark for message in scene.messages()] == [None, None]


def test_stream_has_records_only_without_groups() -> None:
    scene = QueryScene()
    scene.query()
    scene.whole(1)
    assert [message.command for message in scene.messages()] == ["sow"]


# -- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "kind"), [("bad_order_by", BadOrderBy), ("bad_filter", BadFilter)])
def test_refusal_is_raised_at_the_call(code: str, kind: type[Exception]) -> None:
    scene = QueryScene()
    scene.core.subscribe(Named("call"), make_query("orders", "q", follow=False), Named("q"))
    scene.say(Ack(id=1, code=code, text="no"))
    assert type(scene.outcome("call")) is kind
    assert [end.reason for end in scene.took(End)] == [code]


def test_end_with_an_error_before_the_position_is_raised_at_the_call() -> None:
    scene = QueryScene()
    scene.query()
    scene.say(Ended(sub_id="q", code="query_too_slow", text="slow"))
    assert isinstance(scene.outcome("call-q"), QueryTooSlow)


def test_end_with_an_error_within_the_result_ends_the_stream_with_the_error() -> None:
    scene = QueryScene()
    scene.query(follow=False)
    scene.begin()
    scene.records(1)
    scene.say(Ended(sub_id="q", code="query_too_slow", text="slow"))
    ((_, reason, error),) = scene.took(End)
    assert (reason, type(error)) == ("query_too_slow", QueryTooSlow)


@pytest.mark.parametrize("received", [0, 1])
def test_lost_connection_within_the_result_is_an_error(received: int) -> None:
    scene = QueryScene()
    scene.query(follow=False)
    if received:
        scene.begin()
        scene.records(1)
        scene.took(ResolveCall)
    scene.lose()
    ((_, reason, error),) = scene.took(End)
    assert (reason, type(error)) == ("disconnected", Disconnected)
    if not received:
        assert isinstance(scene.outcome("call-q"), Disconnected)


@pytest.mark.behaviour(50)
def test_result_with_missing_records_ends_connection() -> None:
    scene = QueryScene()
    scene.query(follow=False)
    scene.begin()
    scene.records(1)
    scene.say(GroupEnd(sub_id="q", matches=2, topic_matches=2, records=2))
    assert "2 records end, but 1 were received" in hang_up_reason(scene)


def test_end_without_an_error_within_the_result_ends_connection() -> None:
    scene = QueryScene()
    scene.query(follow=False)
    scene.begin()
    scene.records(1)
    scene.say(Ended(sub_id="q"))
    assert "ends before its last record" in hang_up_reason(scene)


@pytest.mark.parametrize("after", ["nothing", "records", "end"])
def test_frames_out_of_order_end_connection(after: str) -> None:
    scene = QueryScene()
    scene.query()
    if after != "nothing":
        scene.begin()
        scene.records(1)
    if after == "end":
        scene.end(1)
    scene.took(DeliverBatch)
    if after == "records":
        scene.begin()
    else:
        scene.records(2)
    assert "Invalid result of query 'q'" in hang_up_reason(scene)
    assert not scene.took(DeliverBatch)


def test_invalid_position_of_a_result_ends_connection() -> None:
    scene = QueryScene()
    scene.query()
    scene.begin(as_of="now")
    assert "Invalid start" in hang_up_reason(scene)


def test_corrupt_records_end_only_the_query() -> None:
    scene = QueryScene()
    scene.query()
    scene.begin()
    good = batch_from_bodies("orders", [b"{}"] * 8).encode()
    at = good.rindex(b"{}")
    bad = MessageBatch.parse(good[:at] + b"[]" + good[at + 2 :])
    scene.say(Records(sub_id="q", marks=bytes(24 * 8)), bad)
    assert [end.reason for end in scene.took(End)] == ["corrupt_batch"]
    assert kinds([command for command, _ in scene.sent()]) == ["Unsubscribe"]
    assert not scene.took(EndConnection)


def test_frames_of_an_unknown_query_are_ignored() -> None:
    scene = QueryScene()
    scene.begin("gone")
    scene.records(1, sub_id="gone")
    scene.end(1, "gone")
    assert not scene.took(DeliverBatch)
    assert not scene.took(EndConnection)


# -- credit -------------------------------------------------------------------------------------------


def test_records_need_credit_that_a_reader_returns() -> None:
    scene = QueryScene()
    scene.query(follow=False, depth=100)
    scene.begin()
    scene.records(1, 2)
    assert scene.sent() == []
    scene.core.consumed("q", 80)
    assert [command for command, _ in scene.sent()] == [Credit(sub_id="q", bytes=80)]
    scene.records(3, 4)
    scene.records(5, 6)
    assert "exceed the credit" in hang_up_reason(scene)


def test_closed_result_unsubscribes() -> None:
    scene = QueryScene()
    scene.query(follow=False)
    scene.begin()
    scene.core.leave(scene.request)
    ((command, _),) = scene.sent()
    assert isinstance(command, Unsubscribe)


# -- messages after the result ------------------------------------------------------------------------


def test_messages_follow_the_result_with_the_keys_of_records() -> None:
    scene = QueryScene()
    scene.query()
    scene.whole(1)
    (record,) = scene.messages()
    scene.say(
        Deliver(sub_id="q"), batch_from_bodies("orders", [b'{"id":1.0}'], publisher=3, first_sequence=8)
    )
    (message,) = scene.messages()
    assert (message.command, message.query_id, message.bookmark) == ("publish", None, "3|8|")
    assert message.sow_key == record.sow_key is not None
    assert scene.took(Started) == [(Named("q"), "3|7|", True)]


@pytest.mark.behaviour(53)
def test_bookmark_store_records_the_messages_and_forgets_earlier_ones() -> None:
    store = MemoryBookmarkStore()
    scene = QueryScene(store)
    scene.subscribe("q", "0", handled=False)
    scene.deliver("q", 1, 9)
    scene.discard(1, 9)
    scene.core.unsubscribe(Named("u"), ("q",))
    scene.answered()
    scene.query()
    scene.whole(1)
    assert [str(one) for one in store.most_recent("q")] == ["3|7|"]
    scene.messages()
    scene.deliver("q", 8, 9)
    assert [sequence for _, sequence in scene.handed()] == [8, 9], "9 is newer than the records"
    scene.deliver("q", 10)
    (message,) = scene.messages()
    assert message.discard()


def test_failing_bookmark_store_ends_the_query() -> None:
    class Failing(MemoryBookmarkStore):
        def started(self, sub_id: str, bookmarks: Any) -> None:
            raise StoreFailed("full")

    scene = QueryScene(Failing())
    scene.query()
    scene.begin()
    assert [end.reason for end in scene.took(End)] == ["store_failed"]
    assert isinstance(scene.outcome("call-q"), StoreFailed)
    assert kinds([command for command, _ in scene.sent()]) == ["Unsubscribe"]


# -- reconnection -------------------------------------------------------------------------------------


def test_stream_continues_after_a_complete_result_by_bookmark() -> None:
    scene = QueryScene()
    scene.query(handled=True, filter="/x = 1", timestamp=True)
    scene.whole(1)
    (again,) = scene.again()
    assert isinstance(again, Subscribe)
    assert (again.topic, again.filter, again.bookmark) == ("orders", "/x = 1", "3|7|")
    assert again.options == "timestamp,bookmark,bookmark_not_found=fail"
    scene.deliver("q", 8)
    (again,) = scene.again()
    assert again.bookmark == "3|8|"  # type: ignore[attr-defined]
    assert not scene.took(End)


def test_call_without_a_position_fails_with_the_connection() -> None:
    scene = QueryScene()
    scene.query(handled=True)
    assert scene.again() == []
    assert isinstance(scene.outcome("call-q"), Disconnected)
    assert [end.reason for end in scene.took(End)] == ["disconnected"]


@pytest.mark.parametrize("part", ["nothing", "begin", "records"])
def test_incomplete_result_is_repeated_as_a_whole(part: str) -> None:
    scene = QueryScene()
    first = scene.query(handled=True, order_by="/id", top_n=3)
    scene.begin()
    if part == "nothing":
        assert kinds(scene.again()) == ["Sow"]
    if part == "records":
        scene.records(1)
    (again,) = scene.again()
    assert isinstance(again, Sow)
    assert (again.order_by, again.top_n, again.follow) == ("/id", 3, True)
    assert again.credit <= first.credit
    scene.messages()
    scene.whole(4, 5)
    assert [message.command for message in scene.messages()] == ["group_begin", "sow", "sow", "group_end"]
    assert scene.outcome("call-q") is None, "the caller got its stream once"


@pytest.mark.parametrize("code", ["bookmark_unknown", "bookmark_expired"])
def test_lost_place_in_the_log_leads_to_a_new_result(code: str) -> None:
    scene = QueryScene()
    scene.query(handled=True)
    scene.whole(1)
    assert kinds(scene.again(code=code)) == ["Subscribe"]
    assert kinds(scene.answer_all()) == ["Sow"]
    assert scene.refused() == []
    assert not scene.took(ReportError)
    scene.messages()
    scene.whole(2, as_of="3|20|")
    assert [message.command for message in scene.messages()] == ["group_begin", "sow", "group_end"]
    scene.deliver("q", 21)
    assert scene.handed() == [("q", 21)]


def test_refused_new_result_ends_the_subscription() -> None:
    scene = QueryScene()
    scene.query(handled=True)
    scene.whole(1)
    scene.again(code="bookmark_expired")
    scene.answer_all("bad_topic")
    assert [end.reason for end in scene.took(End)] == ["bad_topic"]
    assert [sub_id for sub_id, _ in scene.refused()] == ["q"]


def test_other_log_leads_to_a_new_result_without_older_progress() -> None:
    scene = QueryScene()
    scene.query(handled=True)
    scene.whole(1)
    scene.deliver("q", 8, 9)
    assert kinds(scene.again(journal="j2")) == ["Sow"]
    scene.messages()
    scene.whole(1, as_of="3|5|")
    scene.messages()
    scene.deliver("q", 6, 7, 8)
    assert [sequence for _, sequence in scene.handed()] == [6, 7, 8], "the records are older than 8"


def test_result_of_an_empty_log_is_repeated() -> None:
    scene = QueryScene()
    scene.query(handled=True)
    scene.whole(as_of="0")
    assert kinds(scene.again()) == ["Sow"], "retention may have removed later messages"


@pytest.mark.parametrize(
    ("topic", "group", "pattern", "again"),
    [
        ("orders", "orders", "", "Subscribe"),
        ("orders", "orders", "^orders/", "Sow"),
        ("orders/eu", "orders", "^orders/", "Subscribe"),
        ("^orders", "orders", "", "Sow"),
        ("^orders", "orders", "^orders/", "Sow"),
    ],
)
def test_stream_continues_by_bookmark_only_for_exactly_one_topic(
    topic: str, group: str, pattern: str, again: str
) -> None:
    scene = QueryScene()
    scene.query(topic=topic, handled=True)
    scene.whole(1, topic=group, pattern=pattern)
    assert kinds(scene.again()) == [again]


def test_repeated_query_stays_paused() -> None:
    scene = QueryScene()
    scene.query(handled=True)
    scene.begin()
    scene.core.pause(Named("p"), ("q",))
    scene.answered()
    again = scene.again()
    assert kinds(again) == ["Sow", "Pause"]
    assert again[1].sub_ids == ("q",)  # type: ignore[attr-defined]
    scene.whole(1)
    (resumed,) = scene.again()
    assert isinstance(resumed, Subscribe)
    assert "pause" in resumed.options.split(",")


def test_paused_state_survives_without_a_pause_command_after_a_complete_result() -> None:
    scene = QueryScene()
    scene.query(handled=True)
    scene.whole(1)
    scene.core.pause(Named("p"), ("q",))
    assert isinstance(scene.answered(), Pause)
    assert kinds(scene.again()) == ["Subscribe"]


def test_bounded_query_with_a_handler_ends_with_the_connection() -> None:
    scene = QueryScene()
    scene.query(handled=True, follow=False)
    scene.begin()
    assert scene.again() == []
    ((_, reason, error),) = scene.took(End)
    assert (reason, type(error)) == ("disconnected", Disconnected)


def test_undiscarded_messages_are_redelivered_after_a_complete_result() -> None:
    scene = QueryScene(MemoryBookmarkStore())
    scene.query(handled=True)
    scene.whole(1)
    scene.messages()
    scene.deliver("q", 8, 9)
    scene.discard(8)
    (again,) = scene.again()
    assert again.bookmark == "3|8|"  # type: ignore[attr-defined]
    assert scene.took(WillRedeliver) == [(Named("q"),)]
    scene.deliver("q", 9)
    assert [sequence for _, sequence in scene.handed()] == [9]


def test_renewed_query_is_sent_on_each_connection_without_a_bookmark_store() -> None:
    store = MemoryBookmarkStore()
    scene = QueryScene(store)
    first = scene.query(handled=True, renewed=True, filter="/x = 1")
    assert isinstance(scene.outcome("call-q"), Ack), "its call does not wait for the result"
    scene.whole(1)
    scene.deliver("q", 8)
    assert [message.bookmark for message in scene.messages()][-2:] == ["3|7|", "3|8|"]
    assert [message.discard() for message in scene.messages()] == []
    for _ in range(2):
        (again,) = scene.again()
        assert isinstance(again, Sow)
        assert (again.topic, again.filter, again.follow) == (first.topic, first.filter, True)
        scene.whole(1)
    assert not scene.took(End)
    assert list(store.most_recent("q")) == []


def test_renewed_query_outlives_the_connection_before_the_result() -> None:
    scene = QueryScene()
    scene.query(handled=True, renewed=True)
    assert kinds(scene.again()) == ["Sow"]
    assert not scene.took(End)


def test_replacement_gets_a_new_result_under_the_same_id() -> None:
    scene = QueryScene()
    scene.query()
    scene.whole(1)
    scene.messages()
    scene.query(options="replace", filter="/id = 2")
    assert [end.reason for end in scene.took(End)] == ["replaced"]
    scene.whole(2)
    assert [message.json() for message in scene.messages()] == [{"id": 2}]


def test_records_of_an_unknown_message_type_have_no_keys() -> None:
    scene = QueryScene()
    scene.query()
    scene.begin(types={"of-the-future": ("orders",)})
    scene.records(1)
    (record,) = scene.messages()
    assert record.sow_key is None
