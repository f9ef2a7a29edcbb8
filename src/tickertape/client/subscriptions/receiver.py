"""Receiver of one subscription: the driver delivers to it, and the stream of the application reads it.

Invariant: the credit of its subscription bounds the size of the buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from tickertape.base.errors import TickertapeError
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import Timeout
from tickertape.client.subscriptions.message_buffer import MessageBuffer, Superseded, discard_superseded

T = TypeVar("T")


class StreamOwner(Protocol):
    """The calls of a stream to the driver of its client."""

    def consumed(self, request: SubscribeRequest, cost: int) -> None:
        """Report that the application has processed messages of this `cost` (flow-control credit)."""

    def leave(self, request: SubscribeRequest) -> None:
        """End the subscription of a stream without a consumer."""

    def seconds(self, timeout: Timeout) -> float | None:
        """Return the timeout of a call in seconds. Raises `BadOption`."""


class StreamReceiver(ABC):
    """Base of the receivers of both clients: the `Sink` of a subscription, with its buffer and lock."""

    __slots__ = ("__weakref__", "buffer", "forked", "lock", "owner", "request")

    lock: AbstractContextManager[object]
    """Held while the buffer changes. The asyncio receiver uses a null context."""

    def __init__(self, request: SubscribeRequest, owner: StreamOwner) -> None:
        self.request = request
        self.owner = owner
        self.buffer = MessageBuffer(request.context.sub_id, limited=request.limited and not request.handled)
        self.forked = False
        """Whether this process is a forked child."""

    # -- called by the driver ---------------------------------------------------------------------------

    def push(self, batch: MessageBatch) -> None:
        """Add a delivered batch."""
        with self.lock:
            due = self.buffer.push(batch)
            superseded = self.buffer.take_superseded()
            self.wake()  # also for waiters that an exception has interrupted
        if superseded is not None:
            self.discard(superseded)
        if due:
            self.owner.consumed(self.request, due)

    def started(self, after: str, found: bool) -> None:
        """Record the start of the subscription at the server."""
        with self.lock:
            self.buffer.started(after, found=found)

    def snapshot_begun(self, as_of: str, position: int | None) -> None:
        """Record the start of the result of a query."""
        with self.lock:
            self.buffer.snapshot_begun(as_of, position)
            self.wake()

    def snapshot_ended(self, as_of: str, matches: int, topic_matches: int, records: int) -> None:
        """Record the end of the result of a query."""
        with self.lock:
            self.buffer.snapshot_ended(as_of, matches, topic_matches, records)
            self.wake()

    def caught_up(self) -> None:
        """Record that the replay has caught up or reached its stop."""
        with self.lock:
            self.buffer.catch_up()
            self.wake()

    def noticed(self, bookmark: str) -> None:
        """Record that all messages up to `bookmark` were delivered."""
        with self.lock:
            self.buffer.notice(bookmark)

    def again(self) -> None:
        """Drop unprocessed messages, which a new connection redelivers."""
        self.buffer.restart()

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """End the subscription. Waiting messages remain readable."""
        with self.lock:
            self.buffer.end(reason, error)
            self.wake()

    # -- called by the stream ---------------------------------------------------------------------------

    @abstractmethod
    def locked(self, step: Callable[..., T], *arguments: object) -> T:
        """Change the buffer on behalf of the application. Raises `Forked`."""

    @abstractmethod
    def wake(self) -> None:
        """Wake all waiting consumers."""

    @abstractmethod
    def refuse(self) -> None:
        """Refuse every call of the application from now on: this process is a forked child."""

    def discard(self, superseded: Superseded | None) -> None:
        """Discard superseded messages in the bookmark store. Its error ends the subscription."""
        error = None if superseded is None else discard_superseded(superseded)
        if error is not None:
            self.end(error.code, error)
