"""Encoding of settlements from acknowledge calls: options, bookmarks, filters."""

from __future__ import annotations

import pytest

from tests.unit.client.peer import Peer
from tests.unit.client.queue_peer import QueuePeer, read
from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import BadBookmark, BadFilter, BadOption, BadTopic, UsageError
from tickertape.base.limits import settlement_runs_max
from tickertape.batch.queue_lease import Action
from tickertape.client.queues.settlements import (
    action_of,
    bodies_of,
    bodies_of_gathered,
    body_of_filter,
    bookmarks_in,
    check_queue,
)
from tickertape.client.sow.delete_arguments import check_delete_filter
from tickertape.wire.commands import LoggedOn


@pytest.mark.parametrize(
    ("option", "action"),
    [
        (None, ("ack", 0)),
        ("", ("ack", 0)),
        ("none", ("ack", 0)),
        ("cancel", ("cancel", 0)),
        (" expire,", ("expire", 0)),
        ("lease_extension=60s", ("extend", 60_000)),
        ("lease_extension=1us", ("extend", 1)),
    ],
)
def test_ack_options_select_the_action(option: str | None, action: tuple[Action, int]) -> None:
    assert action_of(option) == action


@pytest.mark.parametrize(
    "option",
    ["done", "cancel=1", "cancel,expire", "lease_extension", "lease_extension=0s", "lease_extension=400d",
     "lease_extension=60s,cancel", "lease_extension=soon", 7, True],
)  # fmt: skip
def test_unknown_ack_options_raise(option: str) -> None:
    with pytest.raises(BadOption):
        action_of(option)


def test_bookmarks_are_accepted_in_many_forms() -> None:
    peer = QueuePeer()
    peer.connect()
    peer.consume()
    batch = peer.deliver(3)
    message = list(batch)[1]
    assert bookmarks_in("5|1|") == [(5, 1)]
    assert bookmarks_in("5|1|, 7|2|,5|3|") == [(5, 1), (7, 2), (5, 3)]
    assert bookmarks_in(Bookmark(5, 1)) == [(5, 1)]
    assert bookmarks_in(message) == [(5, 2)]
    assert bookmarks_in(batch) == [(5, 1), (5, 2), (5, 3)]
    assert bookmarks_in(["9|9|,8|8|", message, (Bookmark(1, 2)), batch]) == [
        (9, 9), (8, 8), (5, 2), (1, 2), (5, 1), (5, 2), (5, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", "0", "0|1|", "5|1|,0", "recent", "x|y|", "5|1|,x|y|", "5|0|", f"5|{2**64 - 1}|", "20261121T093000",
     "[5|1|:5|2|]"],
)  # fmt: skip
def test_text_without_message_bookmarks_raises(text: str) -> None:
    with pytest.raises(BadBookmark):
        bookmarks_in(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("4|1|, 4|x| ,5|1|", r"^Invalid bookmark '4\|x\|': it is not two numbers up to 18446744073709551615"),
        ("99999999999999999999|1|", r"^Invalid bookmark '9{20}\|1\|': it is not two numbers up to"),
        ("4|1|,0", r"^Invalid bookmark '4\|1\|,0': it is not the bookmark of a message\."),
    ],
)
def test_error_names_the_bad_bookmark_of_a_list_and_the_reason(text: str, reason: str) -> None:
    with pytest.raises(BadBookmark, match=reason):
        bookmarks_in(text)


@pytest.mark.parametrize("wrong", [None, 5, b"5|1|", [], (), [None], {"5|1|"}])
def test_bookmarks_of_wrong_type_raise(wrong: object) -> None:
    with pytest.raises(UsageError):
        bookmarks_in(wrong)


def test_invalid_queue_names_and_filters_raise() -> None:
    assert check_queue("work") == "work"
    for wrong in ("", "wor.*", "$queue", None, 5):
        with pytest.raises(BadTopic):
            check_queue(wrong)  # type: ignore[arg-type]
    assert check_delete_filter("TRUE") == "TRUE"
    for empty in ("", "  ", None, 5):
        with pytest.raises(BadFilter):
            check_delete_filter(empty)


def test_settlement_bodies_keep_the_order_of_runs() -> None:
    marks = [(5, 1), (5, 2), (7, 3), (5, 3), (5, 3)]
    (body,) = bodies_of("work", "cancel", marks, 0, settlement_runs_max)
    assert read(body) == ("work", "cancel", [(5, 1, 2), (7, 3, 1), (5, 3, 1), (5, 3, 1)])
    assert [read(body) for body in bodies_of("work", "extend", marks, 9, 2)] == [
        ("work", "extend 9", [(5, 1, 2)]),
        ("work", "extend 9", [(7, 3, 1), (5, 3, 1)]),
        ("work", "extend 9", [(5, 3, 1)]),
    ]
    assert list(bodies_of("work", "ack", [], 0, 2)) == []


def test_batched_acknowledgements_keep_the_order_across_queues() -> None:
    top = 2**64 - 1
    items = [("a", 5, 1), ("a", 5, 2), ("b", top, top - 1), ("a", 5, 3)]
    assert [read(body) for body in bodies_of_gathered(items, settlement_runs_max)] == [
        ("a", "ack", [(5, 1, 2)]),
        ("b", "ack", [(top, top - 1, 1)]),
        ("a", "ack", [(5, 3, 1)]),
    ]


def test_filter_settlement_has_no_runs() -> None:
    assert read(body_of_filter("work", "expire", "/a > 1", 0)) == ("work", "expire /a > 1", [])


def test_protocol_machine_without_driver_has_no_lease_port() -> None:
    peer = Peer().connect()
    assert isinstance(peer.outcome("logon"), LoggedOn)
    assert peer.core.acks.settling is None
