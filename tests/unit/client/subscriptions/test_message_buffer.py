"""The message buffer of a subscription: credit, recovery points, ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.base.errors import Disconnected
from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.request import SubscriptionContext
from tickertape.client.subscriptions.message_buffer import MessageBuffer, rest_of


def batch(first: int, *bodies: bytes, with_bookmark: bool = True) -> MessageBatch:
    made = batch_from_bodies("orders", bodies, publisher=7, first_sequence=first)
    made.context = SubscriptionContext("sub", with_bookmark=with_bookmark)
    return made


def take(inbox: MessageBuffer) -> MessageBatch | None:
    inbox.settle()
    return inbox.take()


def early_of(inbox: MessageBuffer) -> int:
    """Return and report the credit granted before messages were taken."""
    early = inbox.credit_early
    inbox.paid(early=early, due=0)
    return early


def test_recovery_point_is_the_last_processed_message() -> None:
    inbox = MessageBuffer("sub", limited=False)
    inbox.push(batch(1, b"a", b"b"))
    inbox.push(batch(3, b"c"))
    points = []
    for _ in range(2):
        take(inbox)
        points.append(inbox.recovery_point)
    inbox.settle()
    assert [*points, inbox.recovery_point] == [None, "7|2|", "7|3|"]


def test_persisted_notice_waits_for_earlier_messages() -> None:
    inbox = MessageBuffer("sub", limited=False)
    inbox.notice("9|1|")
    points = [inbox.recovery_point]
    inbox.push(batch(1, b"a"))
    inbox.notice("9|2|")
    points.append(inbox.recovery_point)
    take(inbox)
    points.append(inbox.recovery_point)
    inbox.push(batch(2, b"b"))
    inbox.settle()
    points.append(inbox.recovery_point)
    take(inbox)
    inbox.settle()
    points.append(inbox.recovery_point)
    assert points == ["9|1|", "9|1|", "9|1|", "9|2|", "7|2|"]


def test_recovery_point_without_bookmarks_is_none() -> None:
    inbox = MessageBuffer("sub", limited=False)
    inbox.push(batch(1, b"a", with_bookmark=False))
    take(inbox)
    inbox.settle()
    assert inbox.recovery_point is None


def test_first_end_counts_and_a_replay_raises_the_error() -> None:
    inbox = MessageBuffer("sub", limited=True)
    inbox.push(batch(1, b"a"))
    error = Disconnected("gone")
    inbox.end("disconnected", error)
    inbox.end("closed", None)
    assert inbox.end_reason == "disconnected"
    assert take(inbox) is not None
    for _ in range(2):
        with pytest.raises(Disconnected):
            take(inbox)


def test_rest_of_partly_read_batch_has_the_remaining_messages() -> None:
    messages = iter(batch(1, b"a", b"b", b"c"))
    next(messages)
    rest = rest_of(messages)
    assert rest is not None
    assert [(m.data, m.bookmark) for m in rest] == [(b"b", "7|2|"), (b"c", "7|3|")]
    assert rest_of(messages) is None


@given(st.lists(st.sampled_from(["push", "take", "begin", "end"]), max_size=60))
def test_credit_of_every_message_is_returned_once(steps: Sequence[str]) -> None:
    inbox = MessageBuffer("sub", limited=False)
    received = paid = waiting = number = 0
    for step in steps:
        if step == "push":
            number += 1
            delivered = batch(number, b"x" * number)
            received += delivered.cost
            paid += inbox.push(delivered)
        elif step == "take" and inbox.ready:
            paid += inbox.settle()
            inbox.take()
        elif step == "begin":
            waiting += 1
            inbox.begin_catch_up(waiting)
            paid += early_of(inbox)
        elif step == "end" and waiting:
            inbox.end_catch_up(waiting)
            waiting -= 1
        assert paid <= received
    inbox.end("complete", None)
    while True:
        paid += inbox.settle()
        if inbox.take() is None:
            break
    assert paid + inbox.settle() == received


def test_voided_messages_return_credit_without_recovery_point() -> None:
    inbox = MessageBuffer("sub", limited=False)
    for first in (1, 2, 3):
        inbox.push(batch(first, b"a"))
    assert take(inbox) is not None
    inbox.notice("9|9|")
    inbox.void()
    assert inbox.voided, "including the current batch"
    owed = inbox.settle()
    inbox.push(batch(4, b"a"))
    found = []
    while inbox.ready:
        made = inbox.take()
        assert made is not None
        found.append((made.sequence(0), inbox.voided))
        owed += inbox.settle()
    assert found == [(2, True), (3, True), (4, False)]
    assert inbox.recovery_point == "7|4|", "no other message was processed"
    assert owed == 4 * batch(1, b"a").cost
