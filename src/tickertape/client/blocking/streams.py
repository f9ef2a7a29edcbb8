"""Message stream of the blocking client: waits for what a subscription delivers.

What it means to hold, take and end is in `message_buffer.py`. The receive thread never waits here.

An exception that a signal handler raises may come between any two steps of the application's thread. Locks
are then given back by their owner; a batch that was taken stays at hand until its messages were begun, and
its cost is due until it was reported. So whoever catches the exception can go on reading.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from inspect import GEN_CLOSED, getgeneratorstate
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tickertape.base.errors import UsageError
from tickertape.batch.arrow import table_of
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.api.auto_ack import bare, handler_for, is_gone
from tickertape.client.api.streams import StreamBase, StreamOwner
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.handlers import Handler, HandlerRunner
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import DEFAULT, Timeout, seconds_of
from tickertape.client.subscriptions.duplicates import unless_over
from tickertape.client.subscriptions.message_buffer import (
    NO_POSITION,
    MessageBuffer,
    ReadPosition,
    Superseded,
)

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class MessageStream(StreamBase):
    """The messages of one subscription, in log order: an iterator of `Message`, for one consumer at a time.

    Iteration waits for messages and ends, without an exception, when the subscription is over; `end_reason`
    then says why. A stream of a limited reading (`Client.replay`, `Client.read_positions`) raises instead
    when it was cut short, because there the end means that everything was read. A stream that has ended
    does not revive. A stream is also a context manager that closes itself. In a forked child everything but
    `close` raises `Forked`.
    """

    __slots__ = ("_changed", "_iterator", "_lock", "_owns_lock", "_place")

    _lock: threading.RLock

    def __init__(self, request: SubscribeRequest, owner: StreamOwner) -> None:
        super().__init__(request, owner)
        self._lock = threading.RLock()
        # Python's own conditions ask a lock this way; there is no public name for it.
        self._owns_lock: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        self._changed = threading.Condition(self._lock)
        self._place = NO_POSITION
        self._iterator = self._iterate()
        forks.register(self)

    # -- the application --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        self._begin_loop()
        return self._messages()

    def _messages(self) -> Iterator[Message]:
        if getgeneratorstate(self._iterator) == GEN_CLOSED:
            self._iterator = self._iterate()  # an exception ends a generator, but not the stream
        return self._iterator

    def __next__(self) -> Message:
        self._in_loop = False
        for message in self._messages():  # unlike a call of `next`, it lets no signal handler in behind it
            return message
        raise StopIteration

    def batches(self, timeout: Timeout = DEFAULT) -> Iterator[MessageBatch]:
        """Iterate whole batches, as they were delivered; ends as iteration of messages does.

        `timeout`: raise `TimedOut` when none comes for so long, in seconds or text; None = wait as long as
        it runs; by default the stream's own `timeout`. A batch that iteration or `get` has begun comes first,
        without the messages given already.
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
        """Read until the stream is over, into an Arrow table that keeps the memory of all its batches.

        Bodies are not copied. `columns` as in `MessageBatch.to_arrow`, `timeout` as in `batches`. For what is
        larger than memory, or never over, use `batches()` and `to_arrow()` of each. Raises `UsageError` for
        an unknown column, `TimedOut` (what was read till then is lost), and what `batches` raises.
        """
        return table_of(self.batches(timeout), columns)

    def get(self, timeout: Timeout = DEFAULT) -> Message:
        """The next message. `timeout` in seconds or text, None = wait as long as the subscription runs; by
        default the stream's own `timeout`.

        Raises `TimedOut` when none came, `StreamEnded` when there are no more, and what cut a limited
        reading short.
        """
        while True:
            self._in_loop = False
            for message in self._place.messages:  # no call: see `__next__`
                return message
            batch = self._next_batch(timeout)
            if batch is None:
                raise self.buffer.over()
            self._begin(batch)

    def wait_caught_up(self, timeout: Timeout = DEFAULT) -> None:
        """Wait until the replay has caught up with the log, or reached its stop: the `completed`
        acknowledgement.

        What arrives meanwhile is held for the application, up to `catch_up_bytes_max` if it does not consume.
        `timeout` in seconds or text, None = wait as long as the subscription runs; by default the client's
        own. Raises `TimedOut`, or `StreamEnded` when the subscription ended before.
        """
        seconds = self._owner.seconds(timeout)
        buffer = self.buffer
        who = object()
        try:
            self._locked(buffer.begin_catch_up, who)
            self._pay(early=buffer.credit_early)
            self._locked(self._wait_caught_up, seconds)
        finally:
            self._locked(buffer.end_catch_up, who)

    def close(self) -> None:
        """End the subscription; messages not taken yet are dropped. Nothing happens when it is over."""
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

    def forked(self) -> None:
        """Internal: this is a forked child, where the receive thread does not exist."""
        self._forked = True
        refusing: Any = forks.ForkedLock()  # it refuses whoever would wait
        self._lock = self._changed = refusing
        self._owns_lock = forks.refuse
        self._drop_current()

    def _iterate(self) -> Generator[Message, None, None]:
        while True:
            place = self._place
            yield from place.messages
            if self._place is not place:
                continue  # get() has moved on to another batch
            batch = self._next_batch(DEFAULT)
            if batch is None:
                return
            self._begin(batch)

    def _begin(self, batch: MessageBatch, rest: MessageBatch | None = None) -> None:
        place = ReadPosition.begin(batch, rest)
        messages = self._auto_ack.over(place.messages, batch)
        self._place = place if messages is place.messages else place._replace(messages=messages)

    def _next_batch(self, timeout: Timeout) -> MessageBatch | None:
        """The batch that comes next. Whoever begins it says so in `_place`; until then it comes again."""
        buffer = self.buffer
        batch = buffer.at_hand
        if batch is not None and self._place.at_hand is not batch and not buffer.passed:
            return batch
        while True:
            self._pay(early=buffer.credit_early, due=buffer.credit_due)
            self._locked(buffer.settle)
            self._place = NO_POSITION
            if not buffer.ready:
                self._locked(self._wait, self.timeout if timeout is DEFAULT else timeout)
            batch = self._locked(buffer.take)
            if batch is None or not buffer.passed:
                return batch

    def _take_rest(self) -> MessageBatch | None:
        place = self._place
        rest = place.rest()
        if rest is not None and place.at_hand is not None:
            try:
                deque(bare(place.messages), maxlen=0)  # a loop may be in the middle of it
                self._place = ReadPosition.end(place.at_hand)
            except BaseException:
                deque(bare(place.messages), maxlen=0)
                self._begin(place.at_hand, rest)
                raise
        return rest

    def _wake(self) -> None:
        self._changed.notify_all()

    def _locked(self, step: Callable[..., T], *arguments: object) -> T:
        if self._owns_lock():
            raise UsageError("a signal handler read a stream in the middle of a read that it interrupted")
        try:
            with self._lock:
                return step(*arguments)
        except BaseException:
            if self._owns_lock():
                self._lock.release()
            raise

    def _wait_caught_up(self, seconds: float | None) -> None:
        self._wait_until(lambda: self.buffer.settled, seconds)
        self.buffer.check_caught_up(seconds)

    def _wait(self, timeout: float | str | None) -> None:
        seconds = seconds_of(timeout)
        if not self._wait_until(lambda: self.buffer.ready, seconds):
            raise self.buffer.late(seconds)

    def _wait_until(self, is_so: Callable[[], bool], seconds: float | None) -> bool:
        try:
            return self._changed.wait_for(is_so, seconds)
        except BaseException:
            if not self._owns_lock():
                self._lock.acquire()  # it was given back for the wait, and the caller gives it back again
            raise

    def _drop_current(self) -> None:
        deque(bare(self._place.messages), maxlen=0)  # a loop may be in the middle of it
        self._place = ReadPosition.end(self.buffer.at_hand)


class HandledStream(MessageStream):
    """A subscription whose messages go to a handler, on the receive thread, as they come.

    `handlers` runs it; whatever it raises, the next message is handed on all the same.
    """

    __slots__ = ("_handlers", "handler")

    def __init__(
        self, request: SubscribeRequest, owner: StreamOwner, *, handler: Handler, handlers: HandlerRunner
    ) -> None:
        super().__init__(request, owner)
        self._handlers = handlers
        self.handler = handler
        """Internal: what messages are handed to."""

    def push(self, batch: MessageBatch) -> None:
        """Internal: a batch was delivered; hand its messages on, until the handler closes the stream."""
        handler, run, buffer = handler_for(self.handler, batch), self._handlers.run, self.buffer
        generation = buffer.generation
        for message in batch:
            if buffer.closed or buffer.generation != generation:
                break
            run(handler, message)
        else:
            buffer.done(batch)
        self._owner.consumed(self.request, batch.cost)

    def _begin_conflation(self, by: str) -> Superseded | None:  # noqa: ARG002 - overrides
        raise UsageError(f"messages of {self.sub_id} go to on_message; there is nothing to conflate")

    def _next_batch(self, timeout: Timeout) -> MessageBatch | None:  # noqa: ARG002 - overrides
        raise self._goes_to_handler()


HandledPart = tuple[HandledStream, MessageBatch, Sequence[int]]
"""A stream with a handler, its share of a batch, and which rows of the batch these are."""


def push_all(
    bodies: Sequence[bytes], parts: Sequence[HandledPart], caught: Callable[[BaseException], None]
) -> None:
    """Shares of one batch with these `bodies` were delivered: hand all messages on, in its order.

    What handlers raise is told. What was consumed is not reported here."""
    order: list[tuple[int, int, MessageBatch, MessageBuffer, int, Handler]] = []
    for stream, share, rows in parts:
        buffer = stream.buffer
        handler, generation = unless_over(stream.handler, share), buffer.generation
        order += [(row, index, share, buffer, generation, handler) for index, row in enumerate(rows)]
    order.sort(key=itemgetter(0))
    for row, index, share, buffer, generation, handler in order:
        if not buffer.closed and buffer.generation == generation:
            try:
                handler(Message(bodies[row], share, index))
            except BaseException as error:  # noqa: BLE001 - code of the application may raise anything
                caught(error)
    for stream, share, _ in parts:
        stream.buffer.done(share)
