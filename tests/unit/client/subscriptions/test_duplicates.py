"""Redelivered messages that were discarded before they reached the application."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.unit.client.stream_owner import Owner, asked
from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.aio.receivers import AsyncHandlerReceiver, AsyncReceiver
from tickertape.client.aio.streams import AsyncMessageStream
from tickertape.client.blocking.receivers import HandlerReceiver, ThreadReceiver, push_all
from tickertape.client.blocking.streams import MessageStream
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.client.bookmark_store.protocol import columns_of
from tickertape.client.common.handlers import HandlerRunner
from tickertape.client.common.request import SubscriptionContext
from tickertape.client.subscriptions.duplicates import (
    NotOver,
    is_over,
    left_of,
    mark_redelivered,
    unless_over,
)
from tickertape.client.subscriptions.message_buffer import MessageBuffer
from tickertape.client.subscriptions.routing import SharedBatch

PUBLISHER = 7


def came(store: MemoryBookmarkStore, first: int, count: int) -> MessageBatch:
    """Return a batch as logged by a subscription, marked if messages in it are redelivered."""
    batch = batch_from_bodies(
        "t", [b"%d" % n for n in range(first, first + count)], publisher=PUBLISHER, first_sequence=first
    )
    keep = store.log("s", *columns_of(batch))
    context = SubscriptionContext("s", with_bookmark=True, store=store)
    assert keep is None or keep.all()
    batch.context = context if keep is None else mark_redelivered(context)
    return batch


def redelivery(count: int = 4) -> tuple[MemoryBookmarkStore, MessageBatch, MessageBatch]:
    """Return a store, a batch, and the redelivered batch after a resume."""
    store = MemoryBookmarkStore()
    first = came(store, 1, count)
    store.resumed("s")
    return store, first, came(store, 1, count)


def numbers(messages: Sequence[Message]) -> list[int]:
    return [int(message.data) for message in messages]


def test_only_redelivered_messages_discarded_meanwhile_are_dropped() -> None:
    store, first, again = redelivery()
    assert left_of(first) is first
    assert left_of(again) is again
    list(first)[1].discard()
    assert left_of(first) is first, "the batch has no redelivered message"
    left = left_of(again)
    assert left is not None
    assert numbers(list(left)) == [1, 3, 4]
    assert [is_over(message) for message in again] == [False, True, False, False]
    store.discard_all("s", *columns_of(again))
    assert left_of(again) is None


def test_batch_without_store_is_not_marked_as_redelivered() -> None:
    context = SubscriptionContext("s")
    assert mark_redelivered(context) is context


def test_handler_is_wrapped_only_for_redelivered_batches() -> None:
    _, first, again = redelivery()
    received: list[Message] = []
    assert unless_over(received.append, first) == received.append
    assert unless_over(received.append, again) != received.append


def test_failing_store_lets_discarded_messages_be_redelivered(monkeypatch: pytest.MonkeyPatch) -> None:
    store, first, again = redelivery()
    first.discard()

    def fails(*_: object) -> bool:
        raise OSError("gone")

    monkeypatch.setattr(store, "is_discarded", fails)
    assert left_of(again) is again


def test_dropped_batch_returns_credit_and_moves_the_recovery_point() -> None:
    _, first, again = redelivery()
    inbox = MessageBuffer("s", limited=False)
    inbox.push(again)
    first.discard()
    assert inbox.take() is again
    assert inbox.passed
    assert inbox.settle() == again.cost
    assert inbox.recovery_point == f"{PUBLISHER}|4|"
    assert not inbox.ready


def test_stream_drops_discarded_batch_and_returns_credit() -> None:
    store, first, again = redelivery()
    reported: list[int] = []
    receiver = ThreadReceiver(asked(), Owner(reported))
    stream = MessageStream(receiver)
    receiver.push(again)
    receiver.push(came(store, 5, 2))
    first.discard()
    assert numbers([stream.get(timeout=1) for _ in range(2)]) == [5, 6]
    assert reported == [again.cost]
    receiver.end("closed", None)
    assert list(stream) == []


def test_async_stream_drops_discarded_batch_and_returns_credit() -> None:
    async def run() -> None:
        store, first, again = redelivery()
        reported: list[int] = []
        receiver = AsyncReceiver(asked(), Owner(reported))
        stream = AsyncMessageStream(receiver)
        receiver.push(again)
        receiver.push(came(store, 5, 2))
        first.discard()
        assert numbers([await stream.get(timeout=1) for _ in range(2)]) == [5, 6]
        assert reported == [again.cost]

    asyncio.run(run())


def test_stream_drops_messages_discarded_in_the_current_batch() -> None:
    _, first, again = redelivery()
    earlier = list(first)
    receiver = ThreadReceiver(asked(), Owner())
    stream = MessageStream(receiver)
    receiver.push(again)
    taken = [next(stream)]
    earlier[1].discard()
    taken.append(stream.get())
    earlier[3].discard()
    receiver.end("unsubscribed", None)
    assert numbers([*taken, *stream]) == [1, 3]


def test_async_stream_drops_messages_discarded_in_the_current_batch() -> None:
    async def run() -> list[int]:
        _, first, again = redelivery()
        earlier = list(first)
        receiver = AsyncReceiver(asked(), Owner())
        stream = AsyncMessageStream(receiver)
        receiver.push(again)
        taken = [await anext(stream)]
        earlier[1].discard()
        taken.append(await stream.get())
        earlier[3].discard()
        receiver.end("unsubscribed", None)
        return numbers([*taken, *[message async for message in stream]])

    assert asyncio.run(run()) == [1, 3]


def test_interrupted_duplicate_check_drops_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, again = redelivery()
    remaining = NotOver(iter(again))

    def interrupted(_: Message) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tickertape.client.subscriptions.duplicates.is_over", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(remaining)
    assert numbers(list(remaining.messages)) == [1, 2, 3, 4]


def test_handler_is_not_called_for_messages_discarded_meanwhile() -> None:
    store, first, again = redelivery()
    received: list[int] = []
    reported: list[int] = []

    def handle(message: Message) -> None:
        received.append(int(message.data))
        first.discard()

    receiver = HandlerReceiver(asked(), Owner(reported), handler=handle, handlers=HandlerRunner())
    receiver.push(again)
    receiver.push(came(store, 5, 1))
    assert received == [1, 5]
    assert reported[0] == again.cost


def test_handler_of_shared_batch_is_not_called_for_discarded_messages() -> None:
    _, first, again = redelivery()
    received: list[int] = []
    reported_errors: list[BaseException] = []

    def handle(message: Message) -> None:
        received.append(int(message.data))
        list(first)[2].discard()

    assert isinstance(again.context, SubscriptionContext)
    share = SharedBatch(again).share([1, 2, 3], 100, again.context)
    receiver = HandlerReceiver(asked(), Owner(), handler=handle, handlers=HandlerRunner())
    push_all(again.bodies_list(), [(receiver, share, [1, 2, 3])], reported_errors.append)
    assert (received, reported_errors) == ([2, 4], [])


def test_async_handler_is_not_called_for_discarded_messages() -> None:
    async def run() -> None:
        store, first, again = redelivery()
        received: list[int] = []

        async def handle(message: Message) -> None:
            received.append(int(message.data))
            await asyncio.sleep(0)
            for other in list(first)[::2]:
                other.discard()

        reported: list[int] = []
        receiver = AsyncHandlerReceiver(asked(), Owner(reported), handler=handle, handlers=HandlerRunner())
        receiver.push(first)
        receiver.push(again)
        receiver.push(came(store, 5, 1))
        receiver.end("closed", None)
        await receiver.hand_on()
        assert received == [1, 2, 3, 4, 2, 4, 5]
        assert len(reported) == 3

    asyncio.run(run())
