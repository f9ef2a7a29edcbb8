"""Handler order of an asyncio client across subscriptions that were resumed together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tests.unit.client.stream_owner import Owner, asked
from tickertape.batch import MessageBatch, batch_from_bodies
from tickertape.batch.message_batch import Message
from tickertape.client.aio.receivers import AsyncHandlerReceiver, HandlerOrder
from tickertape.client.aio.streams import AsyncMessageStream
from tickertape.client.common.handlers import HandlerRunner
from tickertape.client.common.request import SubscriptionContext
from tickertape.client.subscriptions.routing import RouteCache

Handle = Callable[[Message], Awaitable[None]]


class Fed:
    """Streams with handlers. Tests push batches to their receivers."""

    def __init__(self, handle: Handle, *sub_ids: str) -> None:
        self.costs: dict[str, list[int]] = {sub_id: [] for sub_id in sub_ids}
        self.receivers = {sub_id: self._receiver(sub_id, handle) for sub_id in sub_ids}
        self.streams = {sub_id: AsyncMessageStream(self.receivers[sub_id]) for sub_id in sub_ids}
        self.order = HandlerOrder()
        self.order.over = False
        self.recent = RouteCache()
        self.tasks = [asyncio.create_task(receiver.hand_on()) for receiver in self.receivers.values()]
        self.next = 0

    def _receiver(self, sub_id: str, handle: Handle) -> AsyncHandlerReceiver:
        owner = Owner(self.costs[sub_id])
        return AsyncHandlerReceiver(asked(sub_id), owner, handler=handle, handlers=HandlerRunner())

    @property
    def consumed(self) -> dict[str, int]:
        return {sub_id: sum(costs) for sub_id, costs in self.costs.items()}

    def batch(self, count: int, sub_id: str) -> MessageBatch:
        self.next += count
        bodies = [b"%d" % i for i in range(self.next - count, self.next)]
        batch = batch_from_bodies("t", bodies, publisher=1, first_sequence=self.next)
        batch.context = SubscriptionContext(sub_id=sub_id, with_bookmark=True)
        return batch

    def join(self) -> None:
        self.order.join(list(self.receivers.values()))
        self.tasks.append(asyncio.create_task(self.order.hand_on()))

    def push(self, sub_id: str, count: int = 1) -> None:
        self.receivers[sub_id].push(self.batch(count, sub_id))

    def push_all(self, **rows: list[int]) -> None:
        batch = self.batch(1 + max(row for own in rows.values() for row in own), "")
        shared = self.recent.add(batch)
        for sub_id, own in rows.items():
            self.receivers[sub_id].push_share(
                shared.share(own, 33 * len(own), SubscriptionContext(sub_id=sub_id))
            )
        self.order.put([(self.receivers[sub_id], own) for sub_id, own in rows.items()])

    async def finish(self) -> None:
        for receiver in self.receivers.values():
            receiver.end("complete", None)
        await asyncio.wait_for(asyncio.gather(*self.tasks), 10)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


@pytest.mark.behaviour(16)
def test_slow_handlers_keep_log_order_across_single_and_shared_frames() -> None:
    async def work() -> None:
        received: list[tuple[str | None, int]] = []
        running = 0

        async def handle(message: Message) -> None:
            nonlocal running
            running += 1
            assert running == 1, "one after the other"
            await asyncio.sleep(0.001 if message.sub_id == "a" else 0)
            received.append((message.sub_id, int(message.data)))
            running -= 1

        fed = Fed(handle, "a", "b")
        fed.join()
        fed.push("a", 2)
        fed.push("b", 2)
        fed.push_all(a=[0, 2, 3], b=[1, 3])
        fed.push("a")
        await fed.finish()
        assert received == [
            ("a", 0), ("a", 1), ("b", 2), ("b", 3), ("a", 4), ("b", 5), ("a", 6), ("a", 7), ("b", 7),
            ("a", 8),
        ]  # fmt: skip
        assert fed.order.over
        assert fed.consumed == {"a": 6 * 33, "b": 4 * 33}

    run(work())


def test_messages_from_before_the_join_are_handled_first() -> None:
    async def work() -> None:
        received: list[tuple[str | None, int]] = []
        go_on = asyncio.Event()

        async def handle(message: Message) -> None:
            await go_on.wait()
            received.append((message.sub_id, int(message.data)))

        fed = Fed(handle, "a", "b")
        fed.push("a", 2)
        fed.push("a", 1)
        await asyncio.sleep(0)
        fed.join()
        fed.push_all(a=[1], b=[0])
        await asyncio.sleep(0)
        go_on.set()
        await fed.finish()
        assert received == [("a", 0), ("a", 1), ("a", 2), ("b", 3), ("a", 4)]

    run(work())


def test_closed_stream_lets_joined_streams_continue() -> None:
    async def work() -> None:
        received: list[tuple[str | None, int]] = []

        async def handle(message: Message) -> None:
            received.append((message.sub_id, int(message.data)))
            if int(message.data) == 1:
                await fed.streams["a"].close()

        fed = Fed(handle, "a", "b")
        fed.join()
        fed.push_all(a=[0, 2], b=[1, 3])
        fed.push_all(a=[0], b=[1])
        fed.push("a")
        fed.push("b")
        await fed.finish()
        assert received == [("a", 0), ("b", 1), ("b", 3), ("b", 5), ("b", 7)]
        assert fed.consumed["b"] == 4 * 33
        assert fed.order.over

    run(work())


def test_handler_order_without_open_streams_is_over() -> None:
    async def work() -> None:
        async def handle(message: Message) -> None:
            raise AssertionError(message)

        fed = Fed(handle, "a", "b")
        fed.join()
        await asyncio.sleep(0)
        assert not fed.order.over
        await fed.streams["a"].close()
        await asyncio.sleep(0)
        assert not fed.order.over
        await fed.finish()
        assert fed.order.over

    run(work())


def test_redelivered_messages_are_handled_in_the_new_order_only() -> None:
    async def work() -> None:
        received: list[tuple[str | None, int]] = []
        go_on = asyncio.Event()

        async def handle(message: Message) -> None:
            await go_on.wait()
            received.append((message.sub_id, int(message.data)))

        fed = Fed(handle, "a", "b")
        fed.join()
        fed.push_all(a=[0, 2], b=[1, 3])
        fed.push("a", 2)
        fed.push("b", 1)
        await asyncio.sleep(0.01)  # the first message is with its handler
        fed.receivers["a"].again()
        fed.push("a", 1)
        go_on.set()
        await fed.finish()
        assert received == [("a", 0), ("b", 1), ("b", 3), ("b", 6), ("a", 7)]
        assert fed.consumed == {"a": 5 * 33, "b": 3 * 33}

    run(work())
