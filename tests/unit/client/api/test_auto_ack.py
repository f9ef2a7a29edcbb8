"""What streams and handlers settle by themselves, and what they keep back because it has gone back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest

from tests.unit.client.queue_peer import QueuePeer, Settled
from tests.unit.client.stream_owner import Owner, asked
from tickertape.base.errors import TimedOut
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.aio.receivers import AsyncHandlerReceiver, AsyncReceiver
from tickertape.client.aio.streams import AsyncMessageStream
from tickertape.client.blocking.receivers import HandlerReceiver, ThreadReceiver
from tickertape.client.blocking.streams import MessageStream
from tickertape.client.common.handlers import HandlerRunner


class Failed(Exception):
    """Raised by what an application does."""


class Shop:
    """A consumer with a stream of either front."""

    def __init__(self, *, automatic: bool = True) -> None:
        self.peer = QueuePeer()
        self.peer.connect()
        self.peer.consume(backlog=100)
        self.peer.core.acks.automatic = automatic
        self.receiver = ThreadReceiver(asked(), Owner())
        self.stream = MessageStream(self.receiver)
        self.async_receiver = AsyncReceiver(asked(), Owner())
        self.astream = AsyncMessageStream(self.async_receiver)
        self.told: list[BaseException] = []
        self.handlers = HandlerRunner()
        self.handlers.listener = self.told.append

    def deliver(self, messages: int = 1, **how: Any) -> MessageBatch:
        """Something comes out of the queue."""
        batch = self.peer.deliver(messages, **how)
        self.receiver.push(batch)
        self.async_receiver.push(batch)
        return batch

    def handled(self, handler: Any) -> HandlerReceiver:
        """A receiver whose messages go to `handler`."""
        return HandlerReceiver(asked(), Owner(), handler=handler, handlers=self.handlers)

    def said(self) -> list[tuple[str, int, int]]:
        """What was settled since the last call: action, first sequence, count."""
        found: list[Settled] = self.peer.settled()
        while more := self.peer.answer():
            found += more
        return [(action, first, count) for _, action, runs in found for _, first, count in runs]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


# -- streams of the blocking client -------------------------------------------------------------------


def test_the_message_before_is_acknowledged_when_the_next_is_asked_for() -> None:
    shop = Shop()
    shop.deliver(2)
    shop.deliver(1)
    seen: list[int] = []
    for message in shop.stream:
        assert shop.said() == [("ack", sequence, 1) for sequence in seen[-1:]]
        seen.append(message.sequence)
        if len(seen) == 3:
            shop.receiver.end("complete", None)
    assert seen == [1, 2, 3]
    assert shop.said() == [("ack", 3, 1)]


def test_without_auto_ack_nothing_is_settled_by_itself() -> None:
    shop = Shop(automatic=False)
    shop.deliver(2)
    shop.receiver.end("complete", None)
    with suppress(Failed), shop.stream:
        for _ in shop.stream:
            pass
        raise Failed
    assert shop.said() == []


def test_what_was_delivered_before_it_was_set_is_not_settled_by_itself() -> None:
    shop = Shop(automatic=False)
    shop.deliver()
    shop.peer.core.acks.automatic = True
    shop.deliver()
    shop.receiver.end("complete", None)
    assert [message.sequence for message in shop.stream] == [1, 2]
    assert shop.said() == [("ack", 2, 1)]


def test_an_exception_that_leaves_the_stream_cancels_what_was_given_last() -> None:
    shop = Shop()
    shop.deliver(3)
    with suppress(Failed), shop.stream:
        for message in shop.stream:
            if message.sequence == 2:
                raise Failed
    assert shop.said() == [("ack", 1, 1), ("cancel", 2, 1)]


def test_a_stream_that_is_left_otherwise_leaves_the_last_one_to_the_end_of_the_subscription() -> None:
    shop = Shop()
    shop.deliver(3)
    with shop.stream:
        for _ in shop.stream:
            break
    assert shop.said() == []


def test_another_loop_cancels_what_the_one_before_was_left_in() -> None:
    shop = Shop()
    shop.deliver(3)
    with suppress(Failed):
        for _ in shop.stream:
            raise Failed
    assert shop.said() == []
    shop.receiver.end("complete", None)
    assert [message.sequence for message in shop.stream] == [2, 3]
    assert shop.said() == [("cancel", 1, 1), ("ack", 2, 1), ("ack", 3, 1)]


def test_what_is_asked_for_one_by_one_is_acknowledged_with_the_next() -> None:
    shop = Shop()
    shop.deliver(2)
    shop.deliver(2)
    assert shop.stream.get().sequence == 1
    assert next(shop.stream).sequence == 2
    assert shop.said() == [("ack", 1, 1)]
    assert shop.stream.get().sequence == 3
    assert shop.said() == [("ack", 2, 1)]
    for message in shop.stream:  # the one before was not left in the middle of a loop
        assert message.sequence == 4
        assert shop.said() == [("ack", 3, 1)]
        break
    with pytest.raises(TimedOut):
        shop.stream.get(timeout=0.01)
    assert shop.said() == [("ack", 4, 1)]


def test_what_the_application_says_first_counts() -> None:
    shop = Shop()
    shop.deliver(5)
    shop.receiver.end("complete", None)
    acks = shop.peer.core.acks
    for message in shop.stream:
        if message.sequence == 1:
            message.ack()
        elif message.sequence == 2:
            message.cancel()
        elif message.sequence == 3:
            message.expire()
        elif message.sequence == 4:
            message.extend(1)
        else:
            acks.settle("work", "cancel", [(5, 5)])
    assert shop.said() == [
        ("ack", 1, 1),
        ("cancel", 2, 1),
        ("expire", 3, 1),
        ("extend 1000", 4, 1),
        ("ack", 4, 1),
        ("cancel", 5, 1),
    ]


def test_batches_are_acknowledged_as_a_whole_but_for_what_was_settled() -> None:
    shop = Shop()
    shop.deliver(3)
    shop.deliver(4)
    shop.receiver.end("complete", None)
    for batch in shop.stream.batches():
        if batch.count == 4:
            assert shop.said() == [("ack", 1, 3)]
            list(batch)[1].cancel()
    assert shop.said() == [("cancel", 5, 1), ("ack", 4, 1), ("ack", 6, 2)]


def test_a_batch_that_an_exception_left_is_cancelled() -> None:
    shop = Shop()
    shop.deliver(3)
    with suppress(Failed), shop.stream:
        for _ in shop.stream.batches():
            raise Failed
    assert shop.said() == [("cancel", 1, 3)]


def test_the_rest_of_a_batch_that_was_begun_is_settled_apart() -> None:
    shop = Shop()
    shop.deliver(3)
    shop.receiver.end("complete", None)
    assert next(shop.stream).sequence == 1
    assert [batch.count for batch in shop.stream.batches()] == [2]
    assert shop.said() == [("ack", 1, 1), ("ack", 2, 2)]


def test_what_waits_when_the_connection_is_lost_is_not_handed_out() -> None:
    shop = Shop(automatic=False)
    shop.deliver(2)
    shop.deliver(2, once=True)
    shop.deliver(1)
    assert next(shop.stream).sequence == 1
    shop.peer.lose()
    shop.receiver.end("disconnected", None)
    assert [message.sequence for message in shop.stream] == [3, 4]


def test_what_waits_as_a_batch_when_the_connection_is_lost_is_not_handed_out() -> None:
    shop = Shop(automatic=False)
    shop.deliver(3)
    shop.deliver(2)
    shop.deliver(1, once=True)
    next(shop.stream)
    shop.peer.lose()
    shop.receiver.end("disconnected", None)
    assert [batch.count for batch in shop.stream.batches()] == [1]


def test_a_lost_connection_does_not_end_a_loop_with_an_exception() -> None:
    shop = Shop()
    shop.deliver(2)
    for message in shop.stream:
        assert message.sequence == 1
        shop.peer.lose()
        shop.receiver.end("disconnected", None)
    assert shop.peer.sent() == []


# -- handlers of the blocking client ------------------------------------------------------------------


def test_a_handler_that_returns_acknowledges_and_one_that_raises_cancels() -> None:
    shop = Shop()

    def handle(message: Message) -> None:
        if message.sequence == 2:
            raise Failed
        if message.sequence == 3:
            message.expire()
        if message.sequence == 4:
            message.ack()
            raise Failed

    shop.handled(handle).push(shop.peer.deliver(5))
    assert shop.said() == [("ack", 1, 1), ("cancel", 2, 1), ("expire", 3, 1), ("ack", 4, 1), ("ack", 5, 1)]
    assert [type(error) for error in shop.told] == [Failed, Failed]


def test_a_handler_without_auto_ack_settles_nothing() -> None:
    shop = Shop(automatic=False)
    shop.handled(lambda _: None).push(shop.peer.deliver(2))
    assert shop.said() == []


def test_a_handler_is_given_nothing_that_has_gone_back() -> None:
    shop = Shop()
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.sequence)
        shop.peer.lose()

    receiver = shop.handled(handle)
    leased, once = shop.peer.deliver(2), shop.peer.deliver(2, once=True)
    receiver.push(leased)
    receiver.push(once)
    assert seen == [1, 3, 4]


def test_a_message_without_a_queue_is_handed_on_as_ever() -> None:
    shop = Shop()
    batch = shop.peer.deliver(2)
    batch.context = None
    seen: list[Message] = []
    shop.handled(seen.append).push(batch)
    assert len(seen) == 2
    assert shop.said() == []


# -- the asyncio client -------------------------------------------------------------------------------


def test_an_async_loop_acknowledges_the_message_before() -> None:
    async def work() -> None:
        shop = Shop()
        shop.deliver(2)
        shop.deliver(1)
        seen: list[int] = []
        async for message in shop.astream:
            assert shop.said() == [("ack", sequence, 1) for sequence in seen[-1:]]
            seen.append(message.sequence)
            if len(seen) == 3:
                shop.async_receiver.end("complete", None)
        assert seen == [1, 2, 3]
        assert shop.said() == [("ack", 3, 1)]

    run(work())


def test_an_exception_that_leaves_an_async_stream_cancels() -> None:
    async def work() -> None:
        shop = Shop()
        shop.deliver(3)
        with suppress(Failed):
            async with shop.astream:
                async for message in shop.astream:
                    if message.sequence == 2:
                        raise Failed
        assert shop.said() == [("ack", 1, 1), ("cancel", 2, 1)]

    run(work())


def test_async_loops_gets_and_batches_settle_as_blocking_ones() -> None:
    async def work() -> None:
        shop = Shop()
        shop.deliver(4)
        shop.deliver(2)
        assert (await shop.astream.get()).sequence == 1
        assert (await anext(shop.astream)).sequence == 2
        async for message in shop.astream:
            assert message.sequence == 3
            break
        assert shop.said() == [("ack", 1, 1), ("ack", 2, 1)]
        shop.async_receiver.end("complete", None)
        assert [batch.count async for batch in shop.astream.batches()] == [1, 2]
        assert shop.said() == [("cancel", 3, 1), ("ack", 4, 1), ("ack", 5, 2)]

    run(work())


def test_what_waits_in_an_async_stream_when_the_connection_is_lost_is_not_handed_out() -> None:
    async def work() -> None:
        shop = Shop(automatic=False)
        shop.deliver(2)
        shop.deliver(2, once=True)
        assert (await shop.astream.get()).sequence == 1
        shop.peer.lose()
        shop.async_receiver.end("disconnected", None)
        assert [message.sequence async for message in shop.astream] == [3, 4]

    run(work())


def test_async_handlers_settle_by_themselves() -> None:
    async def work() -> None:
        shop = Shop()

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            if message.sequence == 2:
                raise Failed
            if message.sequence == 3:
                message.cancel()

        receiver = AsyncHandlerReceiver(asked(), Owner(), handler=handle, handlers=shop.handlers)
        receiver.push(shop.peer.deliver(4))
        receiver.end("complete", None)
        await receiver.hand_on()
        assert shop.said() == [("ack", 1, 1), ("cancel", 2, 1), ("cancel", 3, 1), ("ack", 4, 1)]
        assert [type(error) for error in shop.told] == [Failed]

    run(work())


def test_an_async_handler_is_given_nothing_that_has_gone_back() -> None:
    async def work() -> None:
        shop = Shop()
        seen: list[int] = []

        def handle(message: Message) -> None:
            seen.append(message.sequence)
            shop.peer.lose()

        receiver = AsyncHandlerReceiver(asked(), Owner(), handler=handle, handlers=shop.handlers)
        receiver.push(shop.peer.deliver(2))
        receiver.push(shop.peer.deliver(1, once=True))
        receiver.end("complete", None)
        await receiver.hand_on()
        assert seen == [1, 3]

    run(work())


def test_a_handler_that_is_cancelled_gives_its_message_back() -> None:
    async def work() -> None:
        shop = Shop()
        begun = asyncio.Event()

        async def handle(_: Message) -> None:
            begun.set()
            await asyncio.Event().wait()

        receiver = AsyncHandlerReceiver(asked(), Owner(), handler=handle, handlers=shop.handlers)
        receiver.push(shop.peer.deliver(1))
        task = asyncio.ensure_future(receiver.hand_on())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert shop.said() == [("cancel", 1, 1)]

    run(work())
