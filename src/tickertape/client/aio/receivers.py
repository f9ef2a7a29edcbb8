"""Receivers of the asyncio client: for streams, and for handlers in a task of their own.

A `HandlerOrder` calls the handlers of several receivers in one common order.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any

from tickertape.base.errors import TickertapeError
from tickertape.base.limits import batch_bytes_target
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.aio.waiting import Notifier
from tickertape.client.api.auto_ack import async_handler, lease_in
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.handlers import Handler, HandlerRunner
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.subscriptions.duplicates import is_over
from tickertape.client.subscriptions.receiver import StreamOwner, StreamReceiver, T
from tickertape.client.subscriptions.routing import in_order


class AsyncReceiver(StreamReceiver):
    """Receiver of a stream: the event loop adds batches, and a task of the application takes them."""

    __slots__ = ("changed",)

    def __init__(self, request: SubscribeRequest, owner: StreamOwner) -> None:
        super().__init__(request, owner)
        self.lock = nullcontext()
        self.changed = Notifier()

    def locked(self, step: Callable[..., T], *arguments: object) -> T:
        """Change the buffer on behalf of the application. Raises `Forked`."""
        self.check_not_forked()
        return step(*arguments)

    def wake(self) -> None:
        """Wake all waiting consumers."""
        self.changed.wake()

    def refuse(self) -> None:
        """Refuse every call of the application: a forked child does not run the parent's event loop."""
        self.forked = True

    def check_not_forked(self) -> None:
        """Raise `Forked` in a forked child."""
        if self.forked:
            raise forks.forked_error()

    def closed(self) -> None:
        """Handle that the application closed the stream."""


class AsyncHandlerReceiver(AsyncReceiver):
    """Receiver that calls a handler for each message, one after the other.

    The client runs `hand_on` in a task. The handler is a function or a coroutine function. After an exception
    of the handler, the next message is still delivered. A slow handler delays its own subscription, and the
    subscriptions that were resumed together with it: a `HandlerOrder` calls their handlers in one order.
    """

    __slots__ = ("_by_itself", "_handler", "_handlers", "_order", "_own_batches", "_settles")

    def __init__(
        self, request: SubscribeRequest, owner: StreamOwner, *, handler: Handler, handlers: HandlerRunner
    ) -> None:
        super().__init__(request, owner)
        self._handler = handler
        self._handlers = handlers
        self._settles = False
        """Whether the messages are from queues, so that the handler is wrapped for acknowledgements."""
        self._order: HandlerOrder | None = None
        self._own_batches = 0
        """Batches from before the receiver joined its handler order, which its own task still processes."""
        self._by_itself = True
        forks.register(self, type(self).refuse)  # the application need not keep the stream

    # -- called by the driver ---------------------------------------------------------------------------

    def push(self, batch: MessageBatch) -> None:
        """Add a delivered batch."""
        if not self._settles and lease_in(batch) is not None:
            self._settles, self._handler = True, async_handler(self._handler)
        super().push(batch)
        if self._order is not None:
            self._order.put([(self, ())])

    def push_share(self, batch: MessageBatch) -> None:
        """Add a batch that the caller puts into the handler order."""
        super().push(batch)

    def again(self) -> None:
        """Drop unprocessed messages, which a new connection redelivers."""
        self.buffer.void()

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """End the subscription. Waiting messages still go to the handler."""
        super().end(reason, error)
        if self._order is not None:
            self._order.look()

    def closed(self) -> None:
        """Handle that the application closed the stream."""
        self.changed.wake()
        if self._order is not None:
            self._order.look()

    @property
    def running(self) -> bool:
        """Whether the subscription runs."""
        return self.buffer.end_reason is None and not self.buffer.closed

    # -- in its own task --------------------------------------------------------------------------------

    async def hand_on(self) -> None:
        """Call the handler for each message until the end of the stream or a handler order."""
        buffer = self.buffer
        in_a_row_bytes = 0
        try:
            while self._order is None or self._own_batches:
                self.settle()
                if not buffer.ready:
                    in_a_row_bytes = 0
                    await self.changed.wait()
                    continue
                self.check_not_forked()
                if in_a_row_bytes >= batch_bytes_target:
                    in_a_row_bytes = 0
                    await asyncio.sleep(0)
                batch = self._take()
                if batch is None:
                    return
                in_a_row_bytes += batch.cost
                self._own_batches = max(0, self._own_batches - 1)
                for message in batch:
                    if buffer.closed:
                        return
                    if buffer.voided:
                        break
                    await self.hand(message)
            self.settle()
        finally:
            self.abandon()

    def _take(self) -> MessageBatch | None:
        due = self.buffer.settle()
        if due:
            self.owner.consumed(self.request, due)
        return self.buffer.take(whole=True)

    def abandon(self) -> None:
        """Record that the receiver has no task of its own (any more)."""
        self._by_itself = False
        self.changed.wake()

    # -- in a handler order -----------------------------------------------------------------------------

    @property
    def free(self) -> bool:
        """Whether the receiver is not in a handler order."""
        return self._order is None

    def join(self, order: HandlerOrder) -> None:
        """Let `order` process all later messages."""
        self._order = order
        self._own_batches = self.buffer.waiting
        self.changed.wake()

    async def caught_up_by_itself(self) -> None:
        """Wait until the own task has processed all batches from before the handler order."""
        while self._by_itself:
            await self.changed.wait()

    def take(self) -> MessageBatch | None:
        """Return the next batch."""
        self.settle()
        return self.buffer.take(whole=True)

    def settle(self) -> None:
        """Settle the last batch, unless the stream was closed within it."""
        due = 0 if self.buffer.closed else self.buffer.settle()
        if due:
            self.owner.consumed(self.request, due)

    async def hand(self, message: Message) -> None:
        """Call the handler, unless the stream is closed.

        Skips a message that will be redelivered, and a redelivered message that was discarded meanwhile.
        """
        if self.buffer.closed or self.buffer.voided or is_over(message):
            return
        try:
            outcome = self._handler(message)
            if outcome is not None and inspect.isawaitable(outcome):
                await outcome
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._handlers.report(error)  # An awaitable inside the handler was cancelled.
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything
            self._handlers.report(error)


Item = Sequence[tuple[AsyncHandlerReceiver, Sequence[int]]]
"""The members that received a batch, and their rows of it. Rows are unused for a single member."""


class HandlerOrder:
    """The common order of handler calls for jointly resumed subscriptions: the order of delivery.

    One task calls all handlers, so a slow handler delays the others. A blocking client needs none of this:
    all its handlers run on the receive thread.

    Invariant: the order takes a message from a subscription only after the subscription's own task has
    processed all messages from before it joined.
    """

    def __init__(self) -> None:
        self._members: list[AsyncHandlerReceiver] = []
        self._items: deque[Item] = deque()
        self._changed = Notifier()
        self.over = True
        """Whether no task runs `hand_on`: none was started yet, or it has ended."""

    def join(self, members: Sequence[AsyncHandlerReceiver]) -> None:
        """Call the handlers of these members for all messages delivered from now on."""
        self._members = [member for member in self._members if member.running]
        self._members += members
        for member in members:
            member.join(self)

    def put(self, item: Item) -> None:
        """Add a batch that is in the buffer of each member."""
        self._items.append(item)
        self._changed.wake()

    def look(self) -> None:
        """Check again, because a member ended or was closed."""
        self._changed.wake()

    def begin(self) -> Coroutine[Any, Any, None]:
        """Return the coroutine for the task of this order."""
        self.over = False
        return self.hand_on()

    async def hand_on(self) -> None:
        """Call handlers until all members have ended."""
        in_a_row_bytes = 0
        try:
            while self._items or any(member.running for member in self._members):
                if not self._items:
                    in_a_row_bytes = 0
                    await self._changed.wait()
                    continue
                in_a_row_bytes += await self._hand(self._items.popleft())
                if in_a_row_bytes >= batch_bytes_target:
                    in_a_row_bytes = 0
                    await asyncio.sleep(0)
        finally:
            self.over = True

    async def _hand(self, item: Item) -> int:
        """Call the handlers for one batch and return its cost."""
        shares = []
        for member, rows in item:
            await member.caught_up_by_itself()
            batch = member.take()
            if batch is not None:
                shares.append((member, batch, rows))
        if len(shares) == 1:
            member, batch, _ = shares[0]
            for message in batch:
                await member.hand(message)
        else:
            messages = [iter(batch) for _, batch, _ in shares]
            for _, number in in_order([rows for _, _, rows in shares]):
                await shares[number][0].hand(next(messages[number]))
        for member, _, _ in shares:
            member.settle()
        return sum(batch.cost for _, batch, _ in shares)
