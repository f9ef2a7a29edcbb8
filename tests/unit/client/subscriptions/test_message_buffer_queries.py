"""The message buffer of a query: records before messages, their recovery point, and a repeated result."""

from __future__ import annotations

from tests.unit.client.subscriptions.test_message_buffer import batch, take
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.request import SubscriptionContext
from tickertape.client.sow.record_keys import GroupKeys, RecordKeys
from tickertape.client.subscriptions.message_buffer import MessageBuffer

KEYS = RecordKeys((GroupKeys("orders", ("/id",), "orders", "", {}),))


def records(first: int, *bodies: bytes) -> MessageBatch:
    made = batch(first, *bodies)
    made.context = SubscriptionContext("sub", with_bookmark=True, command="sow", sow_keys=KEYS)
    return made


def voided(inbox: MessageBuffer, count: int) -> list[bool]:
    """Take batches, and return whether each is invalid."""
    found = []
    for _ in range(count):
        assert take(inbox) is not None
        found.append(inbox.voided)
    return found


def test_recovery_point_is_the_position_once_all_records_are_processed() -> None:
    inbox = MessageBuffer("sub", limited=False)
    inbox.snapshot_begun("3|9|", 40)
    inbox.push(records(1, b"a"))
    inbox.push(records(2, b"b"))
    inbox.snapshot_ended("3|9|", 2, 2, 2)
    inbox.push(batch(10, b"c"))
    points = []
    for _ in range(3):
        take(inbox)
        points.append(inbox.recovery_point)
    inbox.settle()
    assert [*points, inbox.recovery_point] == [None, None, "3|9|", "7|10|"]
    assert (inbox.as_of, inbox.as_of_position) == ("3|9|", 40)


def test_redelivery_after_a_loss_keeps_the_waiting_records_only() -> None:
    inbox = MessageBuffer("sub", limited=False)
    for waiting in (records(1, b"a"), records(2, b"b"), batch(10, b"c"), batch(11, b"d")):
        inbox.push(waiting)
    inbox.void()
    inbox.push(batch(10, b"c"))
    assert voided(inbox, 5) == [False, False, True, True, False]


def test_redelivery_after_a_loss_keeps_the_records_at_hand() -> None:
    inbox = MessageBuffer("sub", limited=False)
    inbox.push(records(1, b"a"))
    inbox.push(batch(10, b"c"))
    take(inbox)
    inbox.void()
    assert not inbox.voided
    assert voided(inbox, 1) == [True]
    inbox.push(batch(10, b"c"))
    assert voided(inbox, 1) == [False]
    inbox.void()
    assert inbox.voided


def test_repeated_result_is_counted_and_waited_for() -> None:
    inbox = MessageBuffer("sub", limited=False)
    inbox.snapshot_begun("3|9|", 40)
    inbox.snapshot_ended("3|9|", 5, 6, 4)
    inbox.catch_up()
    assert (inbox.restarts, inbox.matches, inbox.topic_matches, inbox.records) == (0, 5, 6, 4)
    inbox.snapshot_begun("3|20|", 60)
    assert (inbox.restarts, inbox.as_of, inbox.matches, inbox.settled) == (1, "3|20|", None, False)
    assert inbox.as_of_position == 60
    inbox.snapshot_ended("3|20|", 1, 1, 1)
    inbox.catch_up()
    assert (inbox.matches, inbox.settled) == (1, True)


def test_conflation_by_sow_key_uses_generated_keys() -> None:
    inbox = MessageBuffer("sub", limited=False)
    inbox.conflate("sow_key")
    inbox.push(records(1, b'{"id":1}', b'{"id":2}'))
    inbox.push(records(3, b'{"id":1.0,"new":true}'))
    first, second = take(inbox), take(inbox)
    assert first is not None
    assert second is not None
    assert first.bodies_list() == [b'{"id":2}']
    assert second.bodies_list() == [b'{"id":1.0,"new":true}']
