"""Automatic acknowledgement of queue messages, for handlers and for streams.

Invariants:
- No message is settled twice, and what the application itself said of a message counts.
- A message whose handler or loop ended with an exception is not acknowledged.
- A batch that is not from a queue costs one look at its context.
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
    """The lease on the messages of a batch; None when they did not come out of a queue."""
    context = batch.context
    return None if context is None else context.lease


def is_gone(batch: MessageBatch) -> bool:
    """Whether its messages have gone back to their queue."""
    lease = lease_in(batch)
    return lease is not None and lease.gone


def settle_rest(handed: Message | MessageBatch, action: Action) -> None:
    """Settle what was handed out, as far as nobody has and it is to be settled by itself."""
    if isinstance(handed, Message):
        batch, index = handed.batch, handed.index
        lease = lease_in(batch)
        marks = [(batch.publisher(index), batch.sequence(index))]
    else:
        lease, marks = lease_in(handed), marks_of(handed)
    if lease is None:
        return
    left = lease.untouched(marks)
    # Without a connection or a publish store nobody hears of it: the messages come again.
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
    """Return a handler for all batches, of one that may be a coroutine function; see `handler_for`."""

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
    """The message that the reader of one stream got last and has not settled.

    Asking for the next one says that it is done, leaving by an exception that it is not.
    """

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: Message | MessageBatch | None = None

    def done(self, action: Action = "ack") -> None:
        """The reader asks for the next."""
        last = self.last
        if last is not None:
            self.last = None
            settle_rest(last, action)

    def failed(self) -> None:
        """The reader has left by an exception."""
        self.done("cancel")

    def over(self, messages: Iterator[Message], batch: MessageBatch) -> Iterator[Message]:
        """`messages` of `batch` for the reader: they often are themselves."""
        context = batch.context
        if context is None:
            return messages
        if context.lease is not None:
            return _Leased(self, context.lease, messages)
        return NotOver(messages) if context.came_again else messages

    def batch(self, batch: MessageBatch) -> None:
        """The reader is given a whole batch."""
        lease = lease_in(batch)
        if lease is not None and lease.touched is not None:
            self.last = batch


class _Leased:
    """Messages of a batch that came out of a queue, while the lease lasts."""

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
        for message in self.messages:  # no call behind it: see `MessageStream.__next__`
            if automatic:
                reading.last = message
            return message
        raise StopIteration


def bare(messages: Iterator[Any]) -> Iterator[Any]:
    """`messages` without what looks after them: for those who take them and hand them to nobody."""
    return messages.messages if isinstance(messages, _Leased | NotOver) else messages
