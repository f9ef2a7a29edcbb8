"""Message stream of the blocking client: an iterator that waits for the messages of a subscription.

`message_buffer.py` defines the states of batches.

A signal handler may raise between any two steps of the application's thread. Then the receiver releases the
lock, a taken batch stays current until its iteration starts, and its cost stays due until it is reported. So
the application can continue to read after it catches the exception.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from inspect import GEN_CLOSED, getgeneratorstate
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from tickertape.batch.arrow import table_of
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.api.auto_ack import bare, is_gone
from tickertape.client.api.streams import ResultCounts, StreamBase
from tickertape.client.blocking.receivers import ThreadReceiver
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.waiting import DEFAULT, Timeout, seconds_of
from tickertape.client.subscriptions.message_buffer import (
    NO_POSITION,
    ReadPosition,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class MessageStream(StreamBase):
    """The messages of one subscription in log order: an iterator of `Message`, for one consumer at a time.

    `Client.subscribe`, `bookmark_subscribe`, `replay`, `sow_and_subscribe` and `execute` return it. Iteration
    waits for messages. When the subscription ends, iteration ends too, without an exception, and
    `end_reason` has the reason. A bounded stream (`replay`, or a query by `execute`) is different: if an
    error ends it early, iteration raises the error. So if its iteration ends normally, all its messages were
    read. An ended stream does not restart.

    The stream is a context manager that closes itself.

    Raises:
        TimedOut: Iteration got no message within the attribute `timeout` (default None: no timeout).
        Disconnected: Iteration of a bounded stream: the connection was lost. Any other error that ended the
            bounded stream early, such as `BookmarkExpired`, is raised too.
        UsageError: Iteration: the messages go to a handler (`on_message`).
        Forked: Raised in a forked child process by all calls except `close`.

    Example:
        >>> client.publish_batch("orders", [{"id": 1}, {"id": 2}])
        >>> client.publish_flush()
        >>> with client.replay("orders") as stream:
        ...     for message in stream:
        ...         print(message.json()["id"])
        1
        2
    """

    __slots__ = ("_iterator", "_place")

    _receiver: ThreadReceiver

    def __init__(self, receiver: ThreadReceiver) -> None:
        super().__init__(receiver)
        self._place = NO_POSITION
        self._iterator: Generator[Message, None, None] | None = None
        """The present iteration over messages. It refers to the stream, so `batches` alone makes none."""
        forks.register(self, type(self)._refuse_in_child)

    # -- the application --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        self._begin_loop()
        return self._messages()

    def _messages(self) -> Iterator[Message]:
        iterator = self._iterator
        if iterator is None or getgeneratorstate(iterator) == GEN_CLOSED:
            # An exception ends the generator, but not the stream.
            iterator = self._iterator = self._iterate()
        return iterator

    def __next__(self) -> Message:
        self._in_loop = False
        for message in self._messages():  # Unlike after `next()`, no signal handler runs after the read.
            return message
        raise StopIteration

    def batches(self, timeout: Timeout = DEFAULT) -> Iterator[MessageBatch]:
        """Iterate over whole batches as the server delivered them.

        It ends in the same cases as an iteration over messages. If messages of a batch were already read,
        by iteration or `get`, the first result is the rest of that batch.

        Args:
            timeout: Longest wait for each batch, in seconds or text (`"500ms"`). None: no timeout. Default:
                `timeout` of the stream.

        Returns:
            An iterator of `MessageBatch`.

        Raises:
            TimedOut: No batch within `timeout`.
            Disconnected: The connection of a replay or query was lost. Any other error that ended a replay or
                query early is raised too.
            UsageError: The messages go to a handler (`on_message`).
            BadOption: The timeout is invalid.

        Example:
            >>> client.publish_batch("orders", [{"id": 1}, {"id": 2}])
            >>> client.publish_flush()
            >>> sum(batch.count for batch in client.replay("orders").batches())
            2
        """
        auto_ack = self._auto_ack
        self._begin_loop()
        auto_ack.done()
        rest = self._take_rest()
        if rest is not None and not is_gone(rest):
            auto_ack.batch(rest)
            yield rest
            auto_ack.done()
        while (batch := self._next_batch(timeout)) is not None:
            self._place = ReadPosition.end(batch)
            auto_ack.batch(batch)
            yield batch
            auto_ack.done()

    def to_arrow(self, columns: Sequence[str] | None = None, timeout: Timeout = DEFAULT) -> pa.Table:
        """Read the stream to its end and return an Arrow table.

        The table references the memory of all batches. Message bodies are not copied. For a stream that is
        endless or larger than memory, use `batches()` and `MessageBatch.to_arrow()`.

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
            >>> client.publish_batch("orders", [{"id": 1}, {"id": 2}])
            >>> client.publish_flush()
            >>> client.replay("orders").to_arrow(["topic", "data"]).num_rows
            2
        """
        return table_of(self.batches(timeout), columns)

    def get(self, timeout: Timeout = DEFAULT) -> Message:
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
            >>> with client.subscribe("orders") as stream:
            ...     client.publish("orders", {"id": 1})
            ...     stream.get(timeout=5).json()
            {'id': 1}
        """
        while True:
            self._in_loop = False
            for message in self._place.messages:  # not `next()`: see `__next__`
                return message
            batch = self._next_batch(timeout)
            if batch is None:
                raise self._buffer.over()
            self._begin(batch)

    def wait_caught_up(self, timeout: Timeout = DEFAULT) -> None:
        """Wait until a bookmark subscription has caught up with the log, or has reached the end of its range.

        A subscription without a bookmark has nothing to catch up with, so the call returns at once. While the
        call waits, the stream buffers up to 256 MiB of unread messages. A larger replay pauses at this size
        until another thread reads messages.

        Args:
            timeout: Longest wait in seconds or text. None: no timeout. Default: the timeout of the client.

        Raises:
            TimedOut: The subscription has not caught up within `timeout`.
            StreamEnded: The subscription ended before it had caught up.
            BadOption: The timeout is invalid.

        Example:
            >>> client.publish("orders", {"id": 1})
            >>> client.publish_flush()
            >>> with client.bookmark_subscribe("orders", tt.EPOCH) as stream:
            ...     stream.wait_caught_up()
            ...     stream.get(timeout=5).json()
            {'id': 1}
        """
        seconds = self._owner.seconds(timeout)
        buffer = self._buffer
        who = object()
        try:
            self._receiver.locked(buffer.begin_catch_up, who)
            self._pay(early=buffer.credit_early)
            self._receiver.locked(self._wait_caught_up, seconds)
        finally:
            self._receiver.locked(buffer.end_catch_up, who)

    def wait_snapshot(self, timeout: Timeout = DEFAULT) -> None:
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
            >>> client.publish("positions", {"id": 1, "qty": 5})
            >>> client.publish_flush()
            >>> with client.sow_and_subscribe("positions") as stream:
            ...     stream.wait_snapshot()
            ...     stream.get(timeout=5).command
            'sow'
        """
        self._check_query()
        self.wait_caught_up(timeout)

    def close(self) -> None:
        """End the subscription, unless it has already ended, and drop the unread messages.

        A second call has no effect.

        Example:
            >>> stream = client.subscribe("orders")
            >>> stream.close()
        """
        self._end_subscription()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._auto_ack.failed()
        self.close()

    # -- inside -----------------------------------------------------------------------------------------

    def _iterate(self) -> Generator[Message, None, None]:
        while True:
            place = self._place
            yield from place.messages
            if self._place is not place:
                continue  # `get` has started another batch.
            batch = self._next_batch(DEFAULT)
            if batch is None:
                return
            self._begin(batch)

    def _begin(self, batch: MessageBatch, rest: MessageBatch | None = None) -> None:
        place = ReadPosition.begin(batch, rest)
        messages = self._auto_ack.over(place.messages, batch)
        self._place = place if messages is place.messages else place._replace(messages=messages)

    def _next_batch(self, timeout: Timeout) -> MessageBatch | None:
        """Return the next batch. Until the caller sets `_place`, the next call returns the same batch."""
        if self._request.handled:
            raise self._goes_to_handler()
        buffer = self._buffer
        batch = buffer.at_hand
        if batch is not None and self._place.at_hand is not batch and not buffer.passed:
            return batch
        while True:
            self._pay(early=buffer.credit_early, due=buffer.credit_due)
            batch = self._receiver.locked(self._take, self.timeout if timeout is DEFAULT else timeout)
            if batch is None or not buffer.passed:
                return batch

    def _take(self, timeout: float | str | None) -> MessageBatch | None:
        """Settle the last batch, then wait for the next one and take it."""
        buffer = self._buffer
        buffer.settle()
        self._place = NO_POSITION
        if not buffer.ready:
            self._wait(timeout)
        return buffer.take()

    def _take_rest(self) -> MessageBatch | None:
        place = self._place
        rest = place.rest()
        if rest is not None and place.at_hand is not None:
            try:
                deque(bare(place.messages), maxlen=0)  # A loop may still use this iterator.
                self._place = ReadPosition.end(place.at_hand)
            except BaseException:
                deque(bare(place.messages), maxlen=0)
                self._begin(place.at_hand, rest)
                raise
        return rest

    def _wait_caught_up(self, seconds: float | None) -> None:
        self._receiver.wait_until(lambda: self._buffer.settled, seconds)
        self._buffer.check_caught_up(seconds)

    def _wait(self, timeout: float | str | None) -> None:
        seconds = seconds_of(timeout)
        if not self._receiver.wait_until(lambda: self._buffer.ready, seconds):
            raise self._buffer.late(seconds)

    def _drop_current(self) -> None:
        deque(bare(self._place.messages), maxlen=0)  # A loop may still use this iterator.
        self._place = ReadPosition.end(self._buffer.at_hand)


class SowResult(ResultCounts, MessageStream):
    """The records of one query: an iterator of `Message`, for one consumer at a time.

    `Client.sow` returns it. Each message of the result has the `command` `sow`, the `sow_key` of its
    record, and the bookmark of the message that the record was made from. Records arrive with flow control,
    so a slow reader needs little memory. If an error ends the result early, iteration raises this error. If
    iteration ends without an error, the result is complete.

    The result is a context manager, which closes it at the end of the block. `close` ends the query early.

    Raises:
        TimedOut: Iteration: no record within the `timeout` of the query.
        Disconnected: Iteration: the connection was lost. Query again.
        QueryTooSlow: Iteration: the server ended the query. Too many records changed while it ran, or
            the results of all running queries need too much memory.
        UsageError: Iteration: the records go to a handler (`execute_async`).
        Forked: Raised in a forked child process by all calls except `close`.

    Example:
        >>> client.publish_batch("positions", [{"id": 1, "qty": 5}, {"id": 2, "qty": 7}])
        >>> client.publish_flush()
        >>> with client.sow("positions", order_by="/qty DESC", top_n=1) as result:
        ...     [message.json() for message in result], result.matches
        ([{'id': 2, 'qty': 7}], 2)
    """

    __slots__ = ()


def stream_of(receiver: ThreadReceiver) -> MessageStream:
    """Return the stream of a subscription or query."""
    request = receiver.request
    return SowResult(receiver) if request.query is not None and request.limited else MessageStream(receiver)
