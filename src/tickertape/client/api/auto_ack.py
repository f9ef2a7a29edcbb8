"""Automatic acknowledgement of queue messages, for handlers and for streams.

Invariants:
- No message is settled twice. An explicit settlement by the application takes precedence.
- A message whose handler or loop ended with an exception is not acknowledged.
- A batch that is not from a queue costs one check of its context.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

from tickertape.base.errors import Closed, Disconnected
from tickertape.batch.message_batch import Message, MessageBatch, marks_of
from tickertape.batch.queue_lease import Action, Lease
from tickertape.client.common.handlers import Handler
from tickertape.client.subscriptions.duplicates import NotOver, unless_over


def lease_in(batch: MessageBatch) -> Lease | None:
    """Return the lease on the messages of a batch, or None for messages that are not from a queue."""
    context = batch.context
    return None if context is None else context.lease


def is_gone(batch: MessageBatch) -> bool:
    """Return whether the messages of a batch were returned to their queue."""
    lease = lease_in(batch)
    return lease is not None and lease.gone


def settle_rest(handed: Message | MessageBatch, action: Action) -> None:
    """Settle the delivered messages that are subject to automatic acknowledgement and not settled yet."""
    if isinstance(handed, Message):
        batch, index = handed.batch, handed.index
        lease = lease_in(batch)
        marks = [(batch.publisher(index), batch.sequence(index))]
    else:
        lease, marks = lease_in(handed), marks_of(handed)
    if lease is None:
        return
    left = lease.untouched(marks)
    # Without a connection or a publish store the settlement is lost, and the messages are redelivered.
    with suppress(Disconnected, Closed):
        if len(left) == 1 and action == "ack":
            lease.ack(*left[0])
        elif left:
            lease.settle(action, left)


# -- handlers -----------------------------------------------------------------------------------------


def handler_for(handler: Handler, batch: MessageBatch) -> Handler:
    """Return the handler for the messages of `batch`, often `handler` itself."""
    if lease_in(batch) is None:
        return unless_over(handler, batch)
    return lambda message: _handle(handler, message)


def _handle(handler: Handler, message: Message) -> None:
    lease = lease_in(message.batch)
    if lease is None or lease.gone:
        return
    try:
        handler(message)
    except BaseException:
        settle_rest(message, "cancel")
        raise
    settle_rest(message, "ack")


def async_handler(handler: Handler) -> Callable[[Message], Awaitable[None]]:
    """Wrap a handler (possibly a coroutine function) as `handler_for` does, for messages of all batches."""

    async def handle(message: Message) -> None:
        lease = lease_in(message.batch)
        if lease is not None and lease.gone:
            return
        try:
            outcome = handler(message)
            if outcome is not None and inspect.isawaitable(outcome):
                await outcome
        except BaseException:
            settle_rest(message, "cancel")
            raise
        settle_rest(message, "ack")

    return handle


# -- streams ------------------------------------------------------------------------------------------


class AutoAckReader:
    """The last unsettled message of the consumer of one stream.

    A request for the next message acknowledges it. An exception in the consumer releases it.
    """

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: Message | MessageBatch | None = None

    def done(self, action: Action = "ack") -> None:
        """Settle the last message: the consumer asks for the next one."""
        last = self.last
        if last is not None:
            self.last = None
            settle_rest(last, action)

    def failed(self) -> None:
        """Release the last message: the consumer ended with an exception."""
        self.done("cancel")

    def over(self, messages: Iterator[Message], batch: MessageBatch) -> Iterator[Message]:
        """Wrap the `messages` of `batch` for the consumer where the batch needs it."""
        context = batch.context
        if context is None:
            return messages
        if context.lease is not None:
            return _Leased(self, context.lease, messages)
        return NotOver(messages) if context.came_again else messages

    def batch(self, batch: MessageBatch) -> None:
        """Record that the consumer gets a whole batch."""
        lease = lease_in(batch)
        if lease is not None and lease.touched is not None:
            self.last = batch


class _Leased:
    """Iterator over the messages of a queue batch, until the lease ends."""

    __slots__ = ("_lease", "_reading", "messages")

    def __init__(self, reading: AutoAckReader, lease: Lease, messages: Iterator[Message]) -> None:
        self._reading = reading
        self._lease = lease
        self.messages = messages

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        reading, lease = self._reading, self._lease
        if reading.last is not None:
            reading.done()
        if lease.gone:
            raise StopIteration
        automatic = lease.touched is not None
        for message in self.messages:  # not `next()`: see `MessageStream.__next__`
            if automatic:
                reading.last = message
            return message
        raise StopIteration


def bare(messages: Iterator[Any]) -> Iterator[Any]:
    """Return the iterator inside a wrapper of `over`, to read messages without effects on their lease."""
    return messages.messages if isinstance(messages, _Leased | NotOver) else messages
