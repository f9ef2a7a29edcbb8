"""Receivers of the blocking client: for streams, and for handlers on the receive thread.

The receive thread never waits here. A signal handler may raise between any two steps of the application's
thread. Then the owner releases the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import Any

from tickertape.base.errors import UsageError
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.api.auto_ack import handler_for
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.handlers import Handler, HandlerRunner
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.subscriptions.duplicates import unless_over
from tickertape.client.subscriptions.message_buffer import MessageBuffer
from tickertape.client.subscriptions.receiver import StreamOwner, StreamReceiver, T


class ThreadGuard:
    """Lock and condition between the receive thread and the threads of the application."""

    lock: AbstractContextManager[object]
    changed: threading.Condition
    owns_lock: Callable[[], bool]

    def make_lock(self) -> None:
        """Create the lock and its condition."""
        lock = threading.RLock()
        self.lock = lock
        # The same private method that `threading.Condition` uses. A public one does not exist.
        self.owns_lock = lock._is_owned  # type: ignore[attr-defined]
        self.changed = threading.Condition(lock)
        self._waiting = 0
        """Number of waiting consumers. After an exception of a signal handler it may be too high."""

    def wake(self) -> None:
        """Wake all waiting consumers."""
        if self._waiting:
            self.changed.notify_all()

    def refuse(self) -> None:
        """Refuse every call of the application: a forked child has no receive thread."""
        refusing: Any = forks.ForkedLock()  # raises on acquire
        self.lock = self.changed = refusing
        self.owns_lock = forks.refuse

    def locked(self, step: Callable[..., T], *arguments: object) -> T:
        """Run a step under the lock on behalf of the application. Raises `Forked`, `UsageError`."""
        if self.owns_lock():
            raise UsageError(
                "Cannot read a stream: the signal handler interrupted another read. Read outside of signal "
                "handlers."
            )
        try:
            with self.lock:
                return step(*arguments)
        except BaseException:
            if self.owns_lock():
                self.changed.release()
            raise

    def wait_until(self, is_so: Callable[[], bool], seconds: float | None) -> bool:
        """Wait, under the lock, until a condition is true. Returns False after `seconds`."""
        self._waiting += 1
        try:
            return self.changed.wait_for(is_so, seconds)
        except BaseException:
            if not self.owns_lock():
                self.changed.acquire()  # The wait released it, and the caller releases it again.
            raise
        finally:
            self._waiting -= 1


class ThreadReceiver(ThreadGuard, StreamReceiver):
    """Receiver of a stream: the receive thread adds batches, and a thread of the application takes them."""

    def __init__(self, request: SubscribeRequest, owner: StreamOwner) -> None:
        super().__init__(request, owner)
        self.make_lock()

    def refuse(self) -> None:
        """Refuse every call of the application: a forked child has no receive thread."""
        self.forked = True
        super().refuse()


class HandlerReceiver(ThreadReceiver):
    """Receiver that calls a handler for each message, on the receive thread.

    `handlers` runs the handler. After an exception of the handler, the next message is still delivered.
    """

    __slots__ = ("_handlers", "handler")

    def __init__(
        self, request: SubscribeRequest, owner: StreamOwner, *, handler: Handler, handlers: HandlerRunner
    ) -> None:
        super().__init__(request, owner)
        self._handlers = handlers
        self.handler = handler
        """Handler of the messages."""

    def push(self, batch: MessageBatch) -> None:
        """Call the handler for each message of a batch, until the stream is closed."""
        handler, run, buffer = handler_for(self.handler, batch), self._handlers.run, self.buffer
        generation = buffer.generation
        for message in batch:
            if buffer.closed or buffer.generation != generation:
                break
            run(handler, message)
        else:
            buffer.done(batch)
        if batch.cost:
            self.owner.consumed(self.request, batch.cost)


HandledPart = tuple[HandlerReceiver, MessageBatch, Sequence[int]]
"""A receiver with a handler, its part of a batch, and the rows of the batch in that part."""


def push_all(
    bodies: Sequence[bytes], parts: Sequence[HandledPart], caught: Callable[[BaseException], None]
) -> None:
    """Call the handlers for the parts of one batch with these `bodies`, in the order of the batch.

    `caught` gets the exceptions of handlers. The caller reports the consumed credit.
    """
    order: list[tuple[int, int, MessageBatch, MessageBuffer, int, Handler]] = []
    for receiver, share, rows in parts:
        buffer = receiver.buffer
        handler, generation = unless_over(receiver.handler, share), buffer.generation
        order += [(row, index, share, buffer, generation, handler) for index, row in enumerate(rows)]
    order.sort(key=itemgetter(0))
    for row, index, share, buffer, generation, handler in order:
        if not buffer.closed and buffer.generation == generation:
            try:
                handler(Message(bodies[row], share, index))
            except BaseException as error:  # noqa: BLE001 - code of the application may raise anything
                caught(error)
    for receiver, share, _ in parts:
        receiver.buffer.done(share)
