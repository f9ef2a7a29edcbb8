"""Automatic acknowledgement by streams and handlers, also at a lost connection."""

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
    """An error of the application."""


class Consumer:
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
        self.reported: list[BaseException] = []
        self.handlers = HandlerRunner()
        self.handlers.listener = self.reported.append

    def deliver(self, messages: int = 1, **how: Any) -> MessageBatch:
        """Deliver messages from the queue."""
        batch = self.peer.deliver(messages, **how)
        self.receiver.push(batch)
        self.async_receiver.push(batch)
        return batch

    def handled(self, handler: Any) -> HandlerReceiver:
        """Return a receiver that passes messages to `handler`."""
        return HandlerReceiver(asked(), Owner(), handler=handler, handlers=self.handlers)

    def settlements(self) -> list[tuple[str, int, int]]:
        """Return the settlements since the last call: action, first sequence, count."""
        found: list[Settled] = self.peer.settled()
        while more := self.peer.answer():
            found += more
        return [(action, first, count) for _, action, runs in found for _, first, count in runs]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


# -- streams of the blocking client -------------------------------------------------------------------


def test_auto_ack_stream_acknowledges_a_message_when_the_next_is_requested() -> None:
    consumer = Consumer()
    consumer.deliver(2)
    consumer.deliver(1)
    seen: list[int] = []
    for message in consumer.stream:
        assert consumer.settlements() == [("ack", sequence, 1) for sequence in seen[-1:]]
        seen.append(message.sequence)
        if len(seen) == 3:
            consumer.receiver.end("complete", None)
    assert seen == [1, 2, 3]
    assert consumer.settlements() == [("ack", 3, 1)]


def test_stream_without_auto_ack_settles_nothing() -> None:
    consumer = Consumer(automatic=False)
    consumer.deliver(2)
    consumer.receiver.end("complete", None)
    with suppress(Failed), consumer.stream:
        for _ in consumer.stream:
            pass
        raise Failed
    assert consumer.settlements() == []


def test_auto_ack_ignores_messages_delivered_before_the_setting() -> None:
    consumer = Consumer(automatic=False)
    consumer.deliver()
    consumer.peer.core.acks.automatic = True
    consumer.deliver()
    consumer.receiver.end("complete", None)
    assert [message.sequence for message in consumer.stream] == [1, 2]
    assert consumer.settlements() == [("ack", 2, 1)]


def test_exception_in_with_block_cancels_the_current_message() -> None:
    consumer = Consumer()
    consumer.deliver(3)
    with suppress(Failed), consumer.stream:
        for message in consumer.stream:
            if message.sequence == 2:
                raise Failed
    assert consumer.settlements() == [("ack", 1, 1), ("cancel", 2, 1)]


def test_with_block_left_by_break_does_not_settle_the_current_message() -> None:
    consumer = Consumer()
    consumer.deliver(3)
    with consumer.stream:
        for _ in consumer.stream:
            break
    assert consumer.settlements() == []


def test_next_loop_cancels_the_message_of_an_interrupted_loop() -> None:
    consumer = Consumer()
    consumer.deliver(3)
    with suppress(Failed):
        for _ in consumer.stream:
            raise Failed
    assert consumer.settlements() == []
    consumer.receiver.end("complete", None)
    assert [message.sequence for message in consumer.stream] == [2, 3]
    assert consumer.settlements() == [("cancel", 1, 1), ("ack", 2, 1), ("ack", 3, 1)]


def test_single_gets_acknowledge_the_previous_message() -> None:
    consumer = Consumer()
    consumer.deliver(2)
    consumer.deliver(2)
    assert consumer.stream.get().sequence == 1
    assert next(consumer.stream).sequence == 2
    assert consumer.settlements() == [("ack", 1, 1)]
    assert consumer.stream.get().sequence == 3
    assert consumer.settlements() == [("ack", 2, 1)]
    for message in consumer.stream:  # the loop before was not interrupted
        assert message.sequence == 4
        assert consumer.settlements() == [("ack", 3, 1)]
        break
    with pytest.raises(TimedOut):
        consumer.stream.get(timeout=0.01)
    assert consumer.settlements() == [("ack", 4, 1)]


def test_explicit_settlement_takes_precedence_over_auto_ack() -> None:
    consumer = Consumer()
    consumer.deliver(5)
    consumer.receiver.end("complete", None)
    acks = consumer.peer.core.acks
    for message in consumer.stream:
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
    assert consumer.settlements() == [
        ("ack", 1, 1),
        ("cancel", 2, 1),
        ("expire", 3, 1),
        ("extend 1000", 4, 1),
        ("ack", 4, 1),
        ("cancel", 5, 1),
    ]


def test_auto_ack_of_batch_skips_messages_already_settled() -> None:
    consumer = Consumer()
    consumer.deliver(3)
    consumer.deliver(4)
    consumer.receiver.end("complete", None)
    for batch in consumer.stream.batches():
        if batch.count == 4:
            assert consumer.settlements() == [("ack", 1, 3)]
            list(batch)[1].cancel()
    assert consumer.settlements() == [("cancel", 5, 1), ("ack", 4, 1), ("ack", 6, 2)]


def test_exception_in_with_block_cancels_the_current_batch() -> None:
    consumer = Consumer()
    consumer.deliver(3)
    with suppress(Failed), consumer.stream:
        for _ in consumer.stream.batches():
            raise Failed
    assert consumer.settlements() == [("cancel", 1, 3)]


def test_partly_read_batch_is_acknowledged_in_two_parts() -> None:
    consumer = Consumer()
    consumer.deliver(3)
    consumer.receiver.end("complete", None)
    assert next(consumer.stream).sequence == 1
    assert [batch.count for batch in consumer.stream.batches()] == [2]
    assert consumer.settlements() == [("ack", 1, 1), ("ack", 2, 2)]


def test_stream_after_connection_loss_drops_waiting_leased_messages() -> None:
    consumer = Consumer(automatic=False)
    consumer.deliver(2)
    consumer.deliver(2, once=True)
    consumer.deliver(1)
    assert next(consumer.stream).sequence == 1
    consumer.peer.lose()
    consumer.receiver.end("disconnected", None)
    assert [message.sequence for message in consumer.stream] == [3, 4]


def test_stream_after_connection_loss_drops_waiting_leased_batches() -> None:
    consumer = Consumer(automatic=False)
    consumer.deliver(3)
    consumer.deliver(2)
    consumer.deliver(1, once=True)
    next(consumer.stream)
    consumer.peer.lose()
    consumer.receiver.end("disconnected", None)
    assert [batch.count for batch in consumer.stream.batches()] == [1]


def test_loop_over_stream_ends_quietly_after_connection_loss() -> None:
    consumer = Consumer()
    consumer.deliver(2)
    for message in consumer.stream:
        assert message.sequence == 1
        consumer.peer.lose()
        consumer.receiver.end("disconnected", None)
    assert consumer.peer.sent() == []


# -- handlers of the blocking client ------------------------------------------------------------------


def test_auto_ack_handler_acknowledges_on_return_and_cancels_on_exception() -> None:
    consumer = Consumer()

    def handle(message: Message) -> None:
        if message.sequence == 2:
            raise Failed
        if message.sequence == 3:
            message.expire()
        if message.sequence == 4:
            message.ack()
            raise Failed

    consumer.handled(handle).push(consumer.peer.deliver(5))
    assert consumer.settlements() == [
        ("ack", 1, 1),
        ("cancel", 2, 1),
        ("expire", 3, 1),
        ("ack", 4, 1),
        ("ack", 5, 1),
    ]
    assert [type(error) for error in consumer.reported] == [Failed, Failed]


def test_handler_without_auto_ack_settles_nothing() -> None:
    consumer = Consumer(automatic=False)
    consumer.handled(lambda _: None).push(consumer.peer.deliver(2))
    assert consumer.settlements() == []


def test_handler_after_connection_loss_gets_no_leased_messages() -> None:
    consumer = Consumer()
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.sequence)
        consumer.peer.lose()

    receiver = consumer.handled(handle)
    leased, once = consumer.peer.deliver(2), consumer.peer.deliver(2, once=True)
    receiver.push(leased)
    receiver.push(once)
    assert seen == [1, 3, 4]


def test_auto_ack_handler_passes_messages_without_queue_unsettled() -> None:
    consumer = Consumer()
    batch = consumer.peer.deliver(2)
    batch.context = None
    seen: list[Message] = []
    consumer.handled(seen.append).push(batch)
    assert len(seen) == 2
    assert consumer.settlements() == []


# -- the asyncio client -------------------------------------------------------------------------------


def test_async_loop_acknowledges_the_previous_message() -> None:
    async def work() -> None:
        consumer = Consumer()
        consumer.deliver(2)
        consumer.deliver(1)
        seen: list[int] = []
        async for message in consumer.astream:
            assert consumer.settlements() == [("ack", sequence, 1) for sequence in seen[-1:]]
            seen.append(message.sequence)
            if len(seen) == 3:
                consumer.async_receiver.end("complete", None)
        assert seen == [1, 2, 3]
        assert consumer.settlements() == [("ack", 3, 1)]

    run(work())


def test_exception_in_async_with_block_cancels_the_current_message() -> None:
    async def work() -> None:
        consumer = Consumer()
        consumer.deliver(3)
        with suppress(Failed):
            async with consumer.astream:
                async for message in consumer.astream:
                    if message.sequence == 2:
                        raise Failed
        assert consumer.settlements() == [("ack", 1, 1), ("cancel", 2, 1)]

    run(work())


def test_async_loops_gets_and_batches_settle_like_blocking_calls() -> None:
    async def work() -> None:
        consumer = Consumer()
        consumer.deliver(4)
        consumer.deliver(2)
        assert (await consumer.astream.get()).sequence == 1
        assert (await anext(consumer.astream)).sequence == 2
        async for message in consumer.astream:
            assert message.sequence == 3
            break
        assert consumer.settlements() == [("ack", 1, 1), ("ack", 2, 1)]
        consumer.async_receiver.end("complete", None)
        assert [batch.count async for batch in consumer.astream.batches()] == [1, 2]
        assert consumer.settlements() == [("cancel", 3, 1), ("ack", 4, 1), ("ack", 5, 2)]

    run(work())


def test_async_stream_after_connection_loss_drops_waiting_leased_messages() -> None:
    async def work() -> None:
        consumer = Consumer(automatic=False)
        consumer.deliver(2)
        consumer.deliver(2, once=True)
        assert (await consumer.astream.get()).sequence == 1
        consumer.peer.lose()
        consumer.async_receiver.end("disconnected", None)
        assert [message.sequence async for message in consumer.astream] == [3, 4]

    run(work())


def test_async_auto_ack_handler_acknowledges_on_return_and_cancels_on_exception() -> None:
    async def work() -> None:
        consumer = Consumer()

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            if message.sequence == 2:
                raise Failed
            if message.sequence == 3:
                message.cancel()

        receiver = AsyncHandlerReceiver(asked(), Owner(), handler=handle, handlers=consumer.handlers)
        receiver.push(consumer.peer.deliver(4))
        receiver.end("complete", None)
        await receiver.hand_on()
        assert consumer.settlements() == [("ack", 1, 1), ("cancel", 2, 1), ("cancel", 3, 1), ("ack", 4, 1)]
        assert [type(error) for error in consumer.reported] == [Failed]

    run(work())


def test_async_handler_after_connection_loss_gets_no_leased_messages() -> None:
    async def work() -> None:
        consumer = Consumer()
        seen: list[int] = []

        def handle(message: Message) -> None:
            seen.append(message.sequence)
            consumer.peer.lose()

        receiver = AsyncHandlerReceiver(asked(), Owner(), handler=handle, handlers=consumer.handlers)
        receiver.push(consumer.peer.deliver(2))
        receiver.push(consumer.peer.deliver(1, once=True))
        receiver.end("complete", None)
        await receiver.hand_on()
        assert seen == [1, 3]

    run(work())


def test_cancelled_async_handler_cancels_the_message() -> None:
    async def work() -> None:
        consumer = Consumer()
        begun = asyncio.Event()

        async def handle(_: Message) -> None:
            begun.set()
            await asyncio.Event().wait()

        receiver = AsyncHandlerReceiver(asked(), Owner(), handler=handle, handlers=consumer.handlers)
        receiver.push(consumer.peer.deliver(1))
        task = asyncio.ensure_future(receiver.hand_on())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert consumer.settlements() == [("cancel", 1, 1)]

    run(work())
