"""A conflating message buffer: kept messages, order and credit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest

from tests.helpers.tiers import parts
from tests.unit.client.stream_owner import Owner, asked
from tests.unit.client.subscriptions.test_message_buffer import early_of
from tickertape.base.errors import StoreFailed, UsageError
from tickertape.batch.builders.builder import BatchBuilder
from tickertape.batch.format import UInt64s
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.blocking.receivers import ThreadReceiver
from tickertape.client.blocking.streams import MessageStream
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.client.bookmark_store.progress import Publishers
from tickertape.client.bookmark_store.protocol import columns_of
from tickertape.client.common.request import SubscriptionContext
from tickertape.client.subscriptions import receiver as receivers
from tickertape.client.subscriptions.message_buffer import MessageBuffer

Row = tuple[str, str, bytes]


def batch_of(first: int, *rows: Row, store: MemoryBookmarkStore | None = None) -> MessageBatch:
    builder = BatchBuilder()
    for topic, key, body in rows:
        builder.add(topic, body, key=key)
    batch = builder.build(publisher=7, first_sequence=first)
    batch.context = SubscriptionContext("s", True, False, "publish", store)
    return batch


def taken(inbox: MessageBuffer) -> list[int]:
    found: list[int] = []
    while (batch := inbox.take() if inbox.ready else None) is not None:
        found += [batch.sequence(i) for i in range(batch.count)]
        inbox.settle()
    return found


@pytest.mark.parametrize("late", [False, True])
def test_conflation_keeps_the_newest_of_each_key_in_log_order(*, late: bool) -> None:
    inbox = MessageBuffer("s", limited=False)
    if not late:
        inbox.conflate("sow_key")
    inbox.push(batch_of(1, ("a", "k", b"1"), ("a", "", b"2"), ("a", "k", b"3"), ("b", "k", b"4")))
    inbox.push(batch_of(5, ("a", "m", b"5")))
    inbox.push(batch_of(6, ("a", "m", b"6"), ("a", "k", b"7"), ("a", "", b"8")))
    if late:
        inbox.conflate("sow_key")
    assert taken(inbox) == [2, 4, 6, 7, 8]


def test_conflation_by_topic_keeps_one_message_per_topic() -> None:
    inbox = MessageBuffer("s", limited=False)
    inbox.conflate("topic")
    inbox.push(batch_of(1, ("a", "k", b"1"), ("a", "", b"2"), ("b", "", b"3")))
    inbox.push(batch_of(4, ("a", "", b"4")))
    assert taken(inbox) == [3, 4]


def test_conflation_ignores_messages_already_taken() -> None:
    inbox = MessageBuffer("s", limited=False)
    inbox.conflate("sow_key")
    inbox.push(batch_of(1, ("a", "k", b"1")))
    batch = inbox.take()
    assert batch is not None
    assert inbox.push(batch_of(2, ("a", "k", b"2"))) == 0
    assert taken(inbox) == [2]


@pytest.mark.parametrize("seed", parts(30, 10))
def test_conflation_reports_every_cost_once(seed: int) -> None:
    rng = Random(seed)
    inbox, sequence, received, owed = MessageBuffer("s", limited=False), 1, 0, 0
    conflating, waiter = False, object()
    seen: list[int] = []
    for _ in range(60):
        chance = rng.random()
        if chance < 0.5:
            rows = [
                ("t", rng.choice(["", "k", "l"]), b"x" * rng.randrange(50))
                for _ in range(rng.choice((1, 2, 9)))
            ]
            batch = batch_of(sequence, *rows)
            sequence += len(rows)
            received += batch.cost
            owed += inbox.push(batch)
        elif chance < 0.6 and not conflating:
            conflating = True
            inbox.conflate("sow_key")
            owed += early_of(inbox)
        elif chance < 0.65:
            inbox.begin_catch_up(waiter)
            owed += early_of(inbox)
        elif chance < 0.7:
            inbox.end_catch_up(waiter)
        elif inbox.ready:
            taken_batch = inbox.take()
            assert taken_batch is not None
            seen += [taken_batch.sequence(i) for i in range(taken_batch.count)]
            owed += inbox.settle()
    while inbox.ready:
        taken_batch = inbox.take()
        assert taken_batch is not None
        seen += [taken_batch.sequence(i) for i in range(taken_batch.count)]
        owed += inbox.settle()
    assert seen == sorted(set(seen))
    assert owed == received


def test_conflated_messages_are_discarded_in_the_bookmark_store() -> None:
    store = MemoryBookmarkStore()
    reported: list[int] = []
    receiver = ThreadReceiver(asked(), Owner(reported))
    stream = MessageStream(receiver)
    stream.conflate()
    for first in range(1, 9, 2):
        batch = batch_of(first, ("a", "k", b"1"), ("a", "k", b"2"), store=store)
        store.log("s", *columns_of(batch))
        receiver.push(batch)
    assert store.undiscarded_count("s") == 1
    message = stream.get(0)
    assert message.sequence == 8
    assert message.discard()
    assert [str(bookmark) for bookmark in store.most_recent("s")] == ["7|8|"]
    assert len(reported) == 4


def test_failing_bookmark_store_ends_the_conflating_stream() -> None:
    class Broken(MemoryBookmarkStore):
        def discard_all(self, *_: object) -> int:
            raise OSError("broken")

    receiver = ThreadReceiver(asked(), Owner())
    stream = MessageStream(receiver)
    stream.conflate()
    receiver.push(batch_of(1, ("a", "k", b"1"), ("a", "k", b"2"), store=Broken()))
    assert isinstance(stream.end_error, StoreFailed)
    assert [message.sequence for message in stream] == [2]


def test_conflate_with_unknown_key_raises() -> None:
    with pytest.raises(UsageError, match="Unknown conflation key 'colour'"):
        MessageBuffer("s", limited=False).conflate("colour")


def test_second_conflate_call_keeps_the_newest_message_of_each_key() -> None:
    inbox = MessageBuffer("s", limited=False)
    inbox.conflate("topic")
    inbox.push(batch_of(1, ("a", "k", b"1"), ("b", "m", b"2")))
    inbox.push(batch_of(3, ("a", "k", b"3"), ("b", "n", b"4")))
    inbox.conflate("sow_key")
    inbox.push(batch_of(5, ("a", "k", b"5")))
    inbox.void()
    inbox.push(batch_of(6, ("a", "k", b"6")))
    assert taken(inbox) == [4, 6]
    assert not inbox.voided


def test_conflate_on_another_thread_during_push_discards_each_message_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    discarded: list[int] = []

    class Store(MemoryBookmarkStore):
        def discard_all(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> int:
            discarded.extend(sequences.tolist())
            return super().discard_all(sub_id, publishers, sequences)

    store = Store()
    receiver = ThreadReceiver(asked(), Owner())
    stream = MessageStream(receiver)
    stream.conflate("topic")
    let_go: Callable[..., object] = receivers.discard_superseded  # type: ignore[attr-defined]
    rest = ["conflate"]

    def overtaken(*arguments: object) -> object:
        if rest:
            rest.clear()
            other = threading.Thread(target=stream.conflate, args=("topic",))
            other.start()
            other.join()
        return let_go(*arguments)

    monkeypatch.setattr(receivers, "discard_superseded", overtaken)
    for first in range(1, 4):
        batch = batch_of(first, ("a", "", b"1"), store=store)
        store.log("s", *columns_of(batch))
        receiver.push(batch)
    assert stream.end_reason is None, stream.end_error
    assert discarded == [1, 2]
    assert stream.get(0).data == b"1"
