"""Messages that came again, and were discarded while they waited to be handed on."""

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
    """A batch as a subscription hands it in: with the mark where messages in it came again."""
    batch = batch_from_bodies(
        "t", [b"%d" % n for n in range(first, first + count)], publisher=PUBLISHER, first_sequence=first
    )
    keep = store.log("s", *columns_of(batch))
    context = SubscriptionContext("s", with_bookmark=True, store=store)
    assert keep is None or keep.all()
    batch.context = context if keep is None else mark_redelivered(context)
    return batch


def twice(count: int = 4) -> tuple[MemoryBookmarkStore, MessageBatch, MessageBatch]:
    """A store, a batch, and the same batch after a resumption."""
    store = MemoryBookmarkStore()
    first = came(store, 1, count)
    store.resumed("s")
    return store, first, came(store, 1, count)


def numbers(messages: Sequence[Message]) -> list[int]:
    return [int(message.data) for message in messages]


def test_only_what_came_again_and_was_discarded_since_is_left_out() -> None:
    store, first, again = twice()
    assert left_of(first) is first
    assert left_of(again) is again
    list(first)[1].discard()
    assert left_of(first) is first, "nothing came again in it"
    left = left_of(again)
    assert left is not None
    assert numbers(list(left)) == [1, 3, 4]
    assert [is_over(message) for message in again] == [False, True, False, False]
    store.discard_all("s", *columns_of(again))
    assert left_of(again) is None


def test_without_a_store_nothing_is_marked() -> None:
    context = SubscriptionContext("s")
    assert mark_redelivered(context) is context


def test_the_normal_path_keeps_its_handler() -> None:
    _, first, again = twice()
    heard: list[Message] = []
    assert unless_over(heard.append, first) == heard.append
    assert unless_over(heard.append, again) != heard.append


def test_a_store_that_cannot_say_lets_messages_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    store, first, again = twice()
    first.discard()

    def fails(*_: object) -> bool:
        raise OSError("gone")

    monkeypatch.setattr(store, "is_discarded", fails)
    assert left_of(again) is again


def test_a_batch_that_is_passed_is_paid_and_counts_for_the_recovery_point() -> None:
    _, first, again = twice()
    inbox = MessageBuffer("s", limited=False)
    inbox.push(again)
    first.discard()
    assert inbox.take() is again
    assert inbox.passed
    assert inbox.settle() == again.cost
    assert inbox.recovery_point == f"{PUBLISHER}|4|"
    assert not inbox.ready


def test_a_stream_passes_over_them_and_pays_for_all() -> None:
    store, first, again = twice()
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


def test_an_asyncio_stream_passes_over_them_and_pays_for_all() -> None:
    async def run() -> None:
        store, first, again = twice()
        reported: list[int] = []
        receiver = AsyncReceiver(asked(), Owner(reported))
        stream = AsyncMessageStream(receiver)
        receiver.push(again)
        receiver.push(came(store, 5, 2))
        first.discard()
        assert numbers([await stream.get(timeout=1) for _ in range(2)]) == [5, 6]
        assert reported == [again.cost]

    asyncio.run(run())


def test_a_stream_passes_over_them_in_the_batch_at_hand() -> None:
    _, first, again = twice()
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


def test_an_asyncio_stream_passes_over_them_in_the_batch_at_hand() -> None:
    async def run() -> list[int]:
        _, first, again = twice()
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


def test_what_an_interruption_leaves_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, again = twice()
    standing = NotOver(iter(again))

    def interrupted(_: Message) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tickertape.client.subscriptions.duplicates.is_over", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(standing)
    assert numbers(list(standing.messages)) == [1, 2, 3, 4]


def test_a_handler_is_not_called_for_what_it_discards_in_between() -> None:
    store, first, again = twice()
    heard: list[int] = []
    reported: list[int] = []

    def hear(message: Message) -> None:
        heard.append(int(message.data))
        first.discard()

    receiver = HandlerReceiver(asked(), Owner(reported), handler=hear, handlers=HandlerRunner())
    receiver.push(again)
    receiver.push(came(store, 5, 1))
    assert heard == [1, 5]
    assert reported[0] == again.cost


def test_a_handler_of_several_shares_is_not_called_either() -> None:
    _, first, again = twice()
    heard: list[int] = []
    told: list[BaseException] = []

    def hear(message: Message) -> None:
        heard.append(int(message.data))
        list(first)[2].discard()

    assert isinstance(again.context, SubscriptionContext)
    share = SharedBatch(again).share([1, 2, 3], 100, again.context)
    receiver = HandlerReceiver(asked(), Owner(), handler=hear, handlers=HandlerRunner())
    push_all(again.bodies_list(), [(receiver, share, [1, 2, 3])], told.append)
    assert (heard, told) == ([2, 4], [])


def test_a_handler_that_is_awaited_is_not_called_either() -> None:
    async def run() -> None:
        store, first, again = twice()
        heard: list[int] = []

        async def hear(message: Message) -> None:
            heard.append(int(message.data))
            await asyncio.sleep(0)
            for other in list(first)[::2]:
                other.discard()

        reported: list[int] = []
        receiver = AsyncHandlerReceiver(asked(), Owner(reported), handler=hear, handlers=HandlerRunner())
        receiver.push(first)
        receiver.push(again)
        receiver.push(came(store, 5, 1))
        receiver.end("closed", None)
        await receiver.hand_on()
        assert heard == [1, 2, 3, 4, 2, 4, 5]
        assert len(reported) == 3

    asyncio.run(run())
