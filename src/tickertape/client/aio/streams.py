"""Message stream of the asyncio client: an async iterator over the messages of a subscription.

A consumer that never waits still yields to other tasks after each `batch_bytes_target`. `message_buffer.py`
defines the states of batches. A `HandlerOrder` calls the handlers of several streams in one common order.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tickertape.base.errors import TickertapeError, UsageError
from tickertape.base.limits import batch_bytes_target
from tickertape.batch.arrow import check_columns, table_of
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.aio.waiting import Notifier
from tickertape.client.api.auto_ack import async_handler, bare, is_gone, lease_in
from tickertape.client.api.streams import StreamBase, StreamOwner, T
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.handlers import Handler, HandlerRunner
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import DEFAULT, Timeout, seconds_of
from tickertape.client.subscriptions.duplicates import is_over
from tickertape.client.subscriptions.message_buffer import Superseded, rest_of
from tickertape.client.subscriptions.routing import in_order

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncMessageStream(StreamBase):
    """The messages of one subscription in log order: an async iterator, for one consumer at a time.

    The asyncio counterpart of `MessageStream`, with the same ends, timeouts and errors. The cancellation of a
    wait loses no message. The stream is an async context manager that closes itself.

    Raises:
        TimedOut: Iteration: no message within `timeout` of the stream (default None: no timeout).
        Disconnected: Iteration of a bounded stream (`replay`, `read_positions`): the connection was lost.
        UsageError: Iteration: the messages go to a handler (`on_message`).
        Forked: Every call except `close` in a forked child.

    Example:
        >>> await client.publish_batch("orders", [{"id": 1}, {"id": 2}])
        >>> await client.publish_flush()
        >>> async with await client.replay("orders") as stream:
        ...     async for message in stream:
        ...         print(message.json()["id"])
        1
        2
    """

    __slots__ = ("_changed", "_current", "_in_a_row_bytes", "_iterator")

    _lock = nullcontext()

    def __init__(self, request: SubscribeRequest, owner: StreamOwner) -> None:
        super().__init__(request, owner)
        self._changed = Notifier()
        self._in_a_row_bytes = 0
        self._current: Iterator[Message] = iter(())
        self._iterator = self._iterate()
        forks.register(self)

    # -- the application --------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        self._begin_loop()
        return self._iterator

    async def __anext__(self) -> Message:
        self._in_loop = False
        return await anext(self._iterator)

    async def batches(self, timeout: Timeout = DEFAULT) -> AsyncIterator[MessageBatch]:
        """Iterate over whole batches as the server delivered them. See `MessageStream.batches`.

        Args:
            timeout: Longest wait for each batch, in seconds or text (`"500ms"`). None: no timeout. Default:
                `timeout` of the stream.

        Returns:
            An async iterator of `MessageBatch`.

        Raises:
            TimedOut: No batch within `timeout`.
            Disconnected: The connection of a bounded stream was lost.
            UsageError: The messages go to a handler (`on_message`).
            BadOption: The timeout is invalid.

        Example:
            >>> await client.publish_batch("orders", [{"id": 1}, {"id": 2}])
            >>> await client.publish_flush()
            >>> stream = await client.replay("orders")
            >>> sum([batch.count async for batch in stream.batches()])
            2
        """
        auto_ack = self._auto_ack
        self._begin_loop()
        auto_ack.done()
        rest = rest_of(bare(self._current))
        if rest is not None and not is_gone(rest):
            auto_ack.batch(rest)
            yield rest
            auto_ack.done()
        while (batch := await self._next_batch(timeout)) is not None:
            auto_ack.batch(batch)
            yield batch
            auto_ack.done()

    async def to_arrow(self, columns: Sequence[str] | None = None, timeout: Timeout = DEFAULT) -> pa.Table:
        """Read the stream to its end and return an Arrow table. See `MessageStream.to_arrow`.

        Args:
            columns: Names of the columns, as in `MessageBatch.to_arrow`. None (default): all columns.
            timeout: Longest wait for each batch, in seconds or text. None: no timeout. Default: `timeout` of
                the stream.

        Raises:
            UsageError: A column is unknown, or the messages go to a handler (`on_message`).
            TimedOut: No batch within `timeout`. The messages read until then are lost.
            Disconnected: The connection of a bounded stream was lost.
            BadOption: The timeout is invalid.

        Example:
            >>> await client.publish_batch("orders", [{"id": 1}, {"id": 2}])
            >>> await client.publish_flush()
            >>> stream = await client.replay("orders")
            >>> (await stream.to_arrow(["topic", "data"])).num_rows
            2
        """
        check_columns(columns)
        return table_of([batch async for batch in self.batches(timeout)], columns)

    async def get(self, timeout: Timeout = DEFAULT) -> Message:
        """Wait for the next message and return it.

        Args:
            timeout: Longest wait in seconds or text (`"500ms"`). None: no timeout. Default: `timeout` of the
                stream.

        Raises:
            TimedOut: No message within `timeout`. The stream remains usable.
            StreamEnded: The subscription has ended, and all its messages were read.
            Disconnected: The connection of a bounded stream was lost.
            UsageError: The messages go to a handler (`on_message`).
            BadOption: The timeout is invalid.

        Example:
            >>> async with await client.subscribe("orders") as stream:
            ...     await client.publish("orders", {"id": 1})
            ...     (await stream.get(timeout=5)).json()
            {'id': 1}
        """
        self._in_loop = False
        while True:
            message = next(self._current, None)
            if message is not None:
                return message
            batch = await self._next_batch(timeout)
            if batch is None:
                raise self._buffer.over()
            self._current = self._auto_ack.over(iter(batch), batch)

    async def wait_caught_up(self, timeout: Timeout = DEFAULT) -> None:
        """Wait until a bookmark subscription has caught up with the log. See `MessageStream.wait_caught_up`.

        Args:
            timeout: Longest wait in seconds or text. None: no timeout. Default: the timeout of the client.

        Raises:
            TimedOut: The subscription has not caught up within `timeout`.
            StreamEnded: The subscription ended before it had caught up.
            BadOption: The timeout is invalid.

        Example:
            >>> await client.publish("orders", {"id": 1})
            >>> await client.publish_flush()
            >>> async with await client.bookmark_subscribe("orders", tt.EPOCH) as stream:
            ...     await stream.wait_caught_up()
            ...     (await stream.get(timeout=5)).json()
            {'id': 1}
        """
        seconds = self._owner.seconds(timeout)
        buffer = self._buffer
        who = object()
        try:
            self._locked(buffer.begin_catch_up, who)
            self._pay(early=buffer.credit_early)
            await self._changed.wait_for(lambda: buffer.settled, seconds)
            buffer.check_caught_up(seconds)
        finally:
            buffer.end_catch_up(who)

    async def close(self) -> None:
        """End the subscription and drop its unread messages. Does nothing after its end.

        Example:
            >>> stream = await client.subscribe("orders")
            >>> await stream.close()
        """
        self._end_subscription()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._auto_ack.failed()
        await self.close()

    # -- inside -----------------------------------------------------------------------------------------

    def forked(self) -> None:
        """Internal: refuse every call, because a forked child does not run the parent's event loop."""
        self._forked = True
        self._drop_current()

    def _locked(self, step: Callable[..., T], *arguments: object) -> T:
        self._check_not_forked()
        return step(*arguments)

    def _wake(self) -> None:
        self._changed.wake()

    async def _iterate(self) -> AsyncIterator[Message]:
        try:
            while True:
                current = self._current
                for message in current:
                    yield message
                if self._current is not current:
                    continue  # `get` has started another batch.
                batch = await self._next_batch(DEFAULT)
                if batch is None:
                    break
                self._current = self._auto_ack.over(iter(batch), batch)
        except GeneratorExit:
            raise
        except BaseException:
            self._iterator = self._iterate()  # An exception ends the generator, but not the stream.
            raise

    async def _next_batch(self, timeout: Timeout) -> MessageBatch | None:
        while True:
            batch = await self._take_next(timeout)
            if batch is None or not self._buffer.passed:
                return batch

    async def _take_next(self, timeout: Timeout, *, whole: bool = False) -> MessageBatch | None:
        self._check_not_forked()
        buffer = self._buffer
        due = buffer.settle()
        if due:
            self._owner.consumed(self._request, due)
        if not buffer.ready:
            await self._wait(self.timeout if timeout is DEFAULT else timeout)
        elif self._in_a_row_bytes >= batch_bytes_target:
            self._in_a_row_bytes = 0
            await asyncio.sleep(0)
        batch = buffer.take(whole=whole)
        if batch is not None:
            self._in_a_row_bytes += batch.cost
        return batch

    async def _wait(self, timeout: float | str | None) -> None:
        self._in_a_row_bytes = 0
        seconds = seconds_of(timeout)
        if not await self._changed.wait_for(lambda: self._buffer.ready, seconds):
            raise self._buffer.late(seconds)

    def _drop_current(self) -> None:
        deque(bare(self._current), maxlen=0)  # A loop may still use this iterator.

    def _check_not_forked(self) -> None:
        if self._forked:
            raise forks.forked_error()


class AsyncHandledStream(AsyncMessageStream):
    """A subscription whose messages go to a handler, one after the other.

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
        """Batches from before the stream joined its handler order, which its own task still processes."""
        self._by_itself = True

    def again(self) -> None:
        """Internal: drop unprocessed messages, which a new connection redelivers."""
        self._buffer.void()

    # -- in its own task --------------------------------------------------------------------------------

    async def hand_on(self) -> None:
        """Internal: call the handler for each message until the end of the stream or a handler order."""
        buffer = self._buffer
        try:
            while self._order is None or self._own_batches:
                self.settle()
                if not buffer.ready:
                    self._in_a_row_bytes = 0
                    await self._changed.wait()
                    continue
                batch = await self._take_next(None, whole=True)
                if batch is None:
                    return
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

    def abandon(self) -> None:
        """Internal: record that the stream has no task of its own (any more)."""
        self._by_itself = False
        self._changed.wake()

    # -- in a handler order -----------------------------------------------------------------------------

    @property
    def free(self) -> bool:
        """Internal: whether the stream is not in a handler order."""
        return self._order is None

    def join(self, order: HandlerOrder) -> None:
        """Internal: let `order` process all later messages."""
        self._order = order
        self._own_batches = self._buffer.waiting
        self._changed.wake()

    def push_share(self, batch: MessageBatch) -> None:
        """Internal: add a batch that the caller puts into the handler order."""
        super().push(batch)

    def push(self, batch: MessageBatch) -> None:
        """Internal: add a delivered batch."""
        if not self._settles and lease_in(batch) is not None:
            self._settles, self._handler = True, async_handler(self._handler)
        super().push(batch)
        if self._order is not None:
            self._order.put([(self, ())])

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """Internal: end the subscription. Waiting messages still go to the handler."""
        super().end(reason, error)
        if self._order is not None:
            self._order.look()

    async def close(self) -> None:
        """End the subscription. See `AsyncMessageStream.close`."""
        await super().close()
        self._changed.wake()
        if self._order is not None:
            self._order.look()

    @property
    def running(self) -> bool:
        """Internal: whether the subscription runs."""
        return self._buffer.end_reason is None and not self._buffer.closed

    async def caught_up_by_itself(self) -> None:
        """Internal: wait until the own task has processed all batches from before the handler order."""
        while self._by_itself:
            await self._changed.wait()

    def take(self) -> MessageBatch | None:
        """Internal: return the next batch."""
        self.settle()
        return self._buffer.take(whole=True)

    def settle(self) -> None:
        """Internal: settle the last batch, unless the stream was closed within it."""
        due = 0 if self._buffer.closed else self._buffer.settle()
        if due:
            self._owner.consumed(self._request, due)

    async def hand(self, message: Message) -> None:
        """Internal: call the handler, unless the stream is closed.

        Skips a message that will be redelivered, and a redelivered message that was discarded meanwhile.
        """
        if self._buffer.closed or self._buffer.voided or is_over(message):
            return
        try:
            outcome = self._handler(message)
            if outcome is not None and inspect.isawaitable(outcome):
                await outcome
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._handlers.tell(error)  # An awaitable inside the handler was cancelled.
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything
            self._handlers.tell(error)

    def _begin_conflation(self, by: str) -> Superseded | None:  # noqa: ARG002 - overrides
        raise UsageError(f"Cannot conflate subscription {self.sub_id!r}: its messages go to on_message.")

    async def _next_batch(self, timeout: Timeout) -> MessageBatch | None:  # noqa: ARG002 - overrides
        raise self._goes_to_handler()


Item = Sequence[tuple[AsyncHandledStream, Sequence[int]]]
"""The members that received a batch, and their rows of it. Rows are unused for a single member."""


class HandlerOrder:
    """The common order of handler calls for jointly resumed subscriptions: the order of delivery.

    One task calls all handlers, so a slow handler delays the others. A blocking client needs none of this:
    all its handlers run on the receive thread.

    Invariant: the order takes a message from a subscription only after the subscription's own task has
    processed all messages from before it joined.
    """

    def __init__(self) -> None:
        self._members: list[AsyncHandledStream] = []
        self._items: deque[Item] = deque()
        self._changed = Notifier()
        self.over = True
        """Whether no task runs `hand_on`: none was started yet, or it has ended."""

    def join(self, members: Sequence[AsyncHandledStream]) -> None:
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
