"""Message streams of both fronts, as far as nothing waits.

Invariant: what waits in a stream is bounded by the credit of its subscription.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar

from tickertape.base.errors import TickertapeError, UsageError
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.api.auto_ack import AutoAckReader
from tickertape.client.common.request import SubscribeRequest, SubscriptionContext
from tickertape.client.common.waiting import Timeout
from tickertape.client.subscriptions.message_buffer import MessageBuffer, Superseded, discard_superseded

T = TypeVar("T")
NO_REQUEST: Final = SubscribeRequest(topic="", context=SubscriptionContext(sub_id=""))
"""Request of the stream of a command that subscribes to nothing."""


class StreamOwner(Protocol):
    """The driver of a client, as its streams see it."""

    def consumed(self, request: SubscribeRequest, cost: int) -> None:
        """The application is done with `cost` of what was delivered."""

    def leave(self, request: SubscribeRequest) -> None:
        """The stream has no reader any more."""

    def seconds(self, timeout: Timeout) -> float | None:
        """Return the timeout of a call in seconds. Raises `BadOption`."""


class StreamBase(ABC):
    """Base of the streams of both fronts."""

    __slots__ = (
        "__weakref__",
        "_auto_ack",
        "_forked",
        "_in_loop",
        "_owner",
        "buffer",
        "request",
        "sub_id",
        "timeout",
    )

    _lock: AbstractContextManager[object]
    """Held while the buffer changes; on an event loop there is nothing to hold."""

    def __init__(self, request: SubscribeRequest, owner: StreamOwner) -> None:
        self.request = request
        self.sub_id = request.context.sub_id
        """Id of the subscription."""
        self.timeout: float | str | None = None
        """How long iteration, `get`, `batches` and `to_arrow` wait for a message when they are not told:
        seconds or text; None (default) = as long as the subscription runs. Then they raise `TimedOut`, and
        can be tried again."""
        self.buffer = MessageBuffer(self.sub_id, limited=request.limited and not request.handled)
        self._owner = owner
        self._auto_ack = AutoAckReader()
        self._in_loop = False
        """Whether a loop asks, so that it has to come back before the next loop."""
        self._forked = False

    def __repr__(self) -> str:
        state = "running" if self.end_reason is None else f"ended: {self.end_reason}"
        return f"<{type(self).__name__} {self.sub_id!r} on {self.request.topic!r}, {state}>"

    # -- the application --------------------------------------------------------------------------------

    @property
    def end_reason(self) -> str | None:
        """None while more may come; then `complete`, `unsubscribed`, `replaced`, `closed`, or the code of
        `end_error`. What came before is still to be taken, or on its way to the handler."""
        return self.buffer.end_reason

    @property
    def end_error(self) -> TickertapeError | None:
        """The error that ended it, if one did."""
        return self.buffer.end_error

    @property
    def started_after(self) -> str | None:
        """Where a bookmark subscription really started: the bookmark of the last message before its start,
        EPOCH at the beginning of the log. After a reconnection, the start on the new connection. None for a
        plain subscription, and where the server does not know it yet."""
        return self.buffer.started_after

    @property
    def bookmark_found(self) -> bool | None:
        """Whether the log has the bookmark at which this subscription was to start; when it has not, it
        started as `bookmark_not_found` says. None for a plain subscription."""
        return self.buffer.bookmark_found

    @property
    def recovery_point(self) -> str | None:
        """Where a bookmark subscription can be taken up again so that nothing is missed: a bookmark of the
        log, or None while none is known. It begins at `started_after`, and moves when the next batch is
        asked for, and, about once a second, while nothing matches and nothing is waiting here. What was taken
        of the batch at hand comes again.
        """
        return self.buffer.recovery_point

    def conflate(self, by: str = "sow_key") -> None:
        """From now on, of what waits here only the newest message of each key is kept: for a consumer that
        is slower than the stream and wants the present, not the past.

        `by`: `"sow_key"` (the topic and the key that the publisher gave; messages without one are all kept)
        or `"topic"`. The others are dropped, and discarded in the bookmark store; the order of what is left
        is that of the log. Messages of the batch that was begun are still given. Raises `UsageError`.
        """
        superseded = self._locked(self._begin_conflation, by)
        self._discard(superseded)
        self._pay(early=self.buffer.credit_early)

    # -- the driver -------------------------------------------------------------------------------------

    def push(self, batch: MessageBatch) -> None:
        """Internal: a batch was delivered."""
        with self._lock:
            due = self.buffer.push(batch)
            superseded = self.buffer.take_superseded()
            self._wake()  # whoever was interrupted while it waited may still be on the list
        if superseded is not None:
            self._discard(superseded)
        if due:
            self._owner.consumed(self.request, due)

    def started(self, after: str, found: bool) -> None:
        """Internal: the server placed it."""
        with self._lock:
            self.buffer.started(after, found=found)

    def caught_up(self) -> None:
        """Internal: the replay has caught up or reached its stop."""
        with self._lock:
            self.buffer.catch_up()
            self._wake()

    def noticed(self, bookmark: str) -> None:
        """Internal: everything up to `bookmark` was delivered."""
        with self._lock:
            self.buffer.notice(bookmark)

    def again(self) -> None:
        """Internal: what was not handed on comes again, on another connection."""
        self.buffer.restart()

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """Internal: nothing more comes; what is here can still be taken."""
        with self._lock:
            self.buffer.end(reason, error)
            self._wake()

    # -- inside -----------------------------------------------------------------------------------------

    @abstractmethod
    def _locked(self, step: Callable[..., T], *arguments: object) -> T:
        """Change the buffer on behalf of the application. Raises `Forked`."""

    @abstractmethod
    def _wake(self) -> None:
        """Let everybody who waits look again."""

    @abstractmethod
    def _drop_current(self) -> None:
        """Give nothing more of the batch at hand."""

    def _begin_loop(self) -> None:
        """A loop begins: one before that was left in the middle of a message may not be done with it."""
        if self._in_loop:
            self._auto_ack.failed()
        self._in_loop = True

    def _end_subscription(self) -> None:
        if self._forked:
            return
        running = self._locked(self.buffer.close)
        self._drop_current()
        if running:
            self._owner.leave(self.request)

    def _pay(self, *, early: int, due: int = 0) -> None:
        if early or due:
            self._owner.consumed(self.request, early + due)
            # Only now: an exception that comes out of the report says that nothing was reported.
            self.buffer.paid(early=early, due=due)

    def _begin_conflation(self, by: str) -> Superseded | None:
        self.buffer.conflate(by)
        return self.buffer.take_superseded()

    def _discard(self, superseded: Superseded | None) -> None:
        error = None if superseded is None else discard_superseded(superseded)
        if error is not None:
            self.end(error.code, error)

    def _goes_to_handler(self) -> UsageError:
        return UsageError(f"messages of {self.sub_id} go to on_message; this stream gives none")
