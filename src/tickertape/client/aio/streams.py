"""Message stream of the asyncio client: an async iterator over the messages of a subscription.

A consumer that never waits still yields to other tasks after each `batch_bytes_target`. `message_buffer.py`
defines the states of batches.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tickertape.base.limits import batch_bytes_target
from tickertape.batch.arrow import check_columns, table_of
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.aio.receivers import AsyncReceiver
from tickertape.client.api.auto_ack import bare, is_gone
from tickertape.client.api.streams import ResultCounts, StreamBase
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.waiting import DEFAULT, Timeout, seconds_of
from tickertape.client.subscriptions.message_buffer import rest_of

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncMessageStream(StreamBase):
    """The messages of one subscription in log order: an async iterator, for one consumer at a time.

    The asyncio counterpart of `MessageStream`: it ends, times out and raises in the same way. Cancelling a
    wait loses no message. The stream is an async context manager that closes itself.

    Raises:
        TimedOut: Iteration got no message within the attribute `timeout` (default None: no timeout).
        Disconnected: Iteration of a bounded stream (`replay`): the connection was lost. Any other error that
            ended the bounded stream early, such as `BookmarkExpired`, is raised too.
        UsageError: Iteration: the messages go to a handler (`on_message`).
        Forked: Raised in a forked child process by all calls except `close`.

    Example:
        >>> await client.publish_batch("orders", [{"id": 1}, {"id": 2}])
        >>> await client.publish_flush()
        >>> async with await client.replay("orders") as stream:
        ...     async for message in stream:
        ...         print(message.json()["id"])
        1
        2
    """

    __slots__ = ("_current", "_in_a_row_bytes", "_iterator")

    _receiver: AsyncReceiver

    def __init__(self, receiver: AsyncReceiver) -> None:
        super().__init__(receiver)
        self._in_a_row_bytes = 0
        self._current: Iterator[Message] = iter(())
        self._iterator = self._iterate()
        forks.register(self, type(self)._refuse_in_child)

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
            Disconnected: The connection of a replay or query was lost. Any other error that ended a replay or
                query early is raised too.
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
            columns: Names of the columns, as in `MessageBatch.to_arrow`. None (default): its default columns.
            timeout: Longest wait for each batch, in seconds or text. None: no timeout. Default: `timeout` of
                the stream.

        Raises:
            UsageError: A column is unknown, or the messages go to a handler (`on_message`).
            TimedOut: No batch within `timeout`. The messages already read are lost.
            Disconnected: The connection of a replay or query was lost. Any other error that ended a replay or
                query early is raised too.
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
            StreamEnded: The stream has ended, and all its messages were read. `end_reason` has the reason.
            Disconnected: The connection of a replay or query was lost. Any other error that ended a replay or
                query early is raised too.
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
            self._receiver.locked(buffer.begin_catch_up, who)
            self._pay(early=buffer.credit_early)
            await self._receiver.changed.wait_for(lambda: buffer.settled, seconds)
            buffer.check_caught_up(seconds)
        finally:
            buffer.end_catch_up(who)

    async def wait_snapshot(self, timeout: Timeout = DEFAULT) -> None:
        """Wait until the stream has received all records of the query result.

        In a stream of `sow_and_subscribe`, new messages follow these records. While the call waits, the
        stream buffers up to 256 MiB of unread messages, as in `wait_caught_up`.

        Args:
            timeout: Longest wait in seconds or text. None: no timeout. Default: the timeout of the client.

        Raises:
            UsageError: The stream has no query result.
            TimedOut: The result is not complete within `timeout`.
            StreamEnded: The subscription ended before the result was complete.
            BadOption: The timeout is invalid.

        Example:
            >>> await client.publish("positions", {"id": 1, "qty": 5})
            >>> await client.publish_flush()
            >>> async with await client.sow_and_subscribe("positions") as stream:
            ...     await stream.wait_snapshot()
            ...     (await stream.get(timeout=5)).command
            'sow'
        """
        self._check_query()
        await self.wait_caught_up(timeout)

    async def close(self) -> None:
        """End the subscription, unless it has already ended, and drop the unread messages.

        A second call has no effect.

        Example:
            >>> stream = await client.subscribe("orders")
            >>> await stream.close()
        """
        self._end_subscription()
        self._receiver.closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._auto_ack.failed()
        await self.close()

    # -- inside -----------------------------------------------------------------------------------------

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
        if self._request.handled:
            raise self._goes_to_handler()
        while True:
            batch = await self._take_next(timeout)
            if batch is None or not self._buffer.passed:
                return batch

    async def _take_next(self, timeout: Timeout) -> MessageBatch | None:
        self._receiver.check_not_forked()
        buffer = self._buffer
        due = buffer.settle()
        if due:
            self._owner.consumed(self._request, due)
        if not buffer.ready:
            await self._wait(self.timeout if timeout is DEFAULT else timeout)
        elif self._in_a_row_bytes >= batch_bytes_target:
            self._in_a_row_bytes = 0
            await asyncio.sleep(0)
        batch = buffer.take()
        if batch is not None:
            self._in_a_row_bytes += batch.cost
        return batch

    async def _wait(self, timeout: float | str | None) -> None:
        self._in_a_row_bytes = 0
        seconds = seconds_of(timeout)
        if not await self._receiver.changed.wait_for(lambda: self._buffer.ready, seconds):
            raise self._buffer.late(seconds)

    def _drop_current(self) -> None:
        deque(bare(self._current), maxlen=0)  # A loop may still use this iterator.


class AsyncSowResult(ResultCounts, AsyncMessageStream):
    """The records of one query: an async iterator of `Message`, for one consumer at a time.

    The asyncio counterpart of `SowResult`, from `AsyncClient.sow`.

    Raises:
        TimedOut: Iteration: no record within the `timeout` of the query.
        Disconnected: Iteration: the connection was lost. Query again.
        QueryTooSlow: Iteration: the server ended the query. Too many records changed while it ran, or
            the results of all running queries need too much memory.
        UsageError: Iteration: the records go to a handler (`execute_async`).
        Forked: Raised in a forked child process by all calls except `close`.

    Example:
        >>> await client.publish_batch("positions", [{"id": 1, "qty": 5}, {"id": 2, "qty": 7}])
        >>> await client.publish_flush()
        >>> result = await client.sow("positions", "/qty > 6")
        >>> [message.json() async for message in result]
        [{'id': 2, 'qty': 7}]
    """

    __slots__ = ()


def stream_of(receiver: AsyncReceiver) -> AsyncMessageStream:
    """Return the stream of a subscription or query."""
    request = receiver.request
    if request.query is not None and request.limited:
        return AsyncSowResult(receiver)
    return AsyncMessageStream(receiver)
