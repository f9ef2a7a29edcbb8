"""Owns the message stream of the blocking client: waiting for what a subscription delivered.

Must never block the receive thread: what may be waiting here is bounded by the credit of the subscription.
What it means to hold, take and end is in `inbox.py`.

An exception that a signal handler raises may come between any two steps of the application's thread. Locks
are then given back by their owner; a batch that was taken stays at hand until its messages were begun, and
its cost is owed until it was reported. So whoever catches the exception can go on reading.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from inspect import GEN_CLOSED, getgeneratorstate
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tickertape.base.errors import TickertapeError, UsageError
from tickertape.batch.arrow import table_of
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.api.auto_ack import AutoAckReader, bare, handler_for, is_gone
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.handlers import Handler, HandlerRunner
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import DEFAULT, Timeout, seconds_of
from tickertape.client.subscriptions.duplicates import unless_over
from tickertape.client.subscriptions.message_buffer import NOWHERE, MessageBuffer, ReadPosition
from tickertape.client.subscriptions.message_buffer_conflation import Superseded, discard_superseded

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class MessageStream:
    """The messages of one subscription, in log order: an iterator of `Message`, for one consumer at a time.

    Iteration waits for messages and ends, without an exception, when the subscription is over; `end_reason`
    then says why. A stream of a limited reading (`Client.replay`, `Client.read_positions`) raises instead
    when it was cut short, because there the end means that everything was read. A stream that has ended
    does not revive. A stream is also a context manager that closes itself. In a forked child everything but
    `close` raises `Forked`.
    """

    def __init__(
        self,
        sub_id: str,
        *,
        consumed: Callable[[str, int], None],
        unsubscribe: Callable[[str], None],
        limited: bool = False,
        client_seconds: float | None = None,
    ) -> None:
        self.sub_id = sub_id
        """Id of the subscription."""
        self.timeout: float | str | None = None
        """How long iteration, `get`, `batches` and `to_arrow` wait for a message when they are not told:
        seconds or text; None (default) = as long as the subscription runs. Then they raise `TimedOut`, and
        can be tried again."""
        self._client_seconds = client_seconds
        self._report = consumed
        self._unsubscribe = unsubscribe
        self._lock = threading.RLock()
        # Python's own conditions ask a lock this way; there is no public name for it.
        self._owns_lock: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        self._changed = threading.Condition(self._lock)
        self._inbox = MessageBuffer(sub_id, limited=limited)
        self._forked = False
        self._place = NOWHERE
        self._reading = AutoAckReader()
        self._iterator = self._iterate()
        forks.register(self)

    # -- the application --------------------------------------------------------------------------------

    @property
    def end_reason(self) -> str | None:
        """None while more may come; then `complete`, `unsubscribed`, `replaced`, `closed`, or the code of
        `end_error`. What came before is still to be taken, or on its way to the handler."""
        return self._inbox.end_reason

    @property
    def end_error(self) -> TickertapeError | None:
        """The error that ended it, if one did."""
        return self._inbox.end_error

    @property
    def started_after(self) -> str | None:
        """Where a bookmark subscription really started: the bookmark of the last message before its start,
        EPOCH at the beginning of the log. After a reconnection, the start on the new connection. None for a
        plain subscription, and where the server does not know it yet."""
        return self._inbox.started_after

    @property
    def bookmark_found(self) -> bool | None:
        """Whether the log has the bookmark at which this subscription was to start; when it has not, it
        started as `bookmark_not_found` says. None for a plain subscription."""
        return self._inbox.bookmark_found

    @property
    def recovery_point(self) -> str | None:
        """Where a bookmark subscription can be taken up again so that nothing is missed: a bookmark of the
        log, or None while none is known. It begins at `started_after`, and moves when the next batch is
        asked for, and, about once a second, while nothing matches and nothing is waiting here. What was taken
        of the batch at hand comes again.
        """
        return self._inbox.recovery_point

    def __iter__(self) -> Iterator[Message]:
        self._reading.began()
        return self._messages()

    def _messages(self) -> Iterator[Message]:
        if getgeneratorstate(self._iterator) == GEN_CLOSED:
            self._iterator = self._iterate()  # an exception ends a generator, but not the stream
        return self._iterator

    def __next__(self) -> Message:
        self._reading.took()
        for message in self._messages():  # unlike a call of `next`, it lets no signal handler in behind it
            return message
        raise StopIteration

    def batches(self, timeout: Timeout = DEFAULT) -> Iterator[MessageBatch]:
        """Iterate whole batches, as they were delivered; ends as iteration of messages does.

        `timeout`: raise `TimedOut` when none comes for so long, in seconds or text; None = wait as long as
        it runs; by default the stream's own `timeout`. A batch that iteration or `get` has begun comes first,
        without the messages given already.
        """
        reading = self._reading
        reading.began()
        reading.done()
        rest = self._take_rest()
        if rest is not None and not is_gone(rest):
            reading.batch(rest)
            yield rest
            reading.done()
        while (batch := self._next_batch(timeout)) is not None:
            self._place = ReadPosition.end(batch)
            reading.batch(batch)
            yield batch
            reading.done()

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
            self._reading.in_loop = False
            for message in self._place.messages:  # no call: see `__next__`
                return message
            batch = self._next_batch(timeout)
            if batch is None:
                raise self._inbox.over()
            self._begin(batch)

    def wait_caught_up(self, timeout: Timeout = DEFAULT) -> None:
        """Wait until the replay has caught up with the log, or reached its stop: the `completed`
        acknowledgement.

        What arrives meanwhile is held for the application, up to `catch_up_bytes_max` if it does not consume.
        `timeout` in seconds or text, None = wait as long as the subscription runs; by default the client's
        own. Raises `TimedOut`, or `StreamEnded` when the subscription ended before.
        """
        seconds = self._client_seconds
        if timeout is not DEFAULT:
            seconds = seconds_of(timeout)
        inbox = self._inbox
        who = object()
        try:
            self._locked(self._begin_catch_up, who)
            self._pay(early=inbox.early)
            self._locked(self._wait_caught_up, seconds)
        finally:
            self._locked(inbox.end_catch_up, who)

    def conflate(self, by: str = "sow_key") -> None:
        """From now on, of what waits here only the newest message of each key is kept: for a consumer that
        is slower than the stream and wants the present, not the past.

        `by`: `"sow_key"` (the topic and the key that the publisher gave; messages without one are all kept)
        or `"topic"`. The others are dropped, and discarded in the bookmark store; the order of what is left
        is that of the log. Messages of the batch that was begun are still given. Raises `UsageError`.
        """
        inbox = self._inbox
        superseded = self._locked(self._conflate, by)
        self._let_go(superseded)
        self._pay(early=inbox.early)

    def close(self) -> None:
        """End the subscription; messages not taken yet are dropped. Nothing happens when it is over."""
        if self._forked:
            return
        running = self._locked(self._inbox.close)
        self._drop_current()
        if running:
            self._unsubscribe(self.sub_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._reading.failed()
        self.close()

    # -- the receive thread -----------------------------------------------------------------------------

    def push(self, batch: MessageBatch) -> None:
        """Internal: a batch was delivered."""
        with self._lock:
            owed = self._inbox.push(batch)
            superseded = self._inbox.take_superseded()
            self._changed.notify_all()  # whoever was interrupted while it waited may still be on the list
        if superseded is not None:
            self._let_go(superseded)
        if owed:
            self._report(self.sub_id, owed)

    def started(self, after: str, found: bool) -> None:
        """Internal: the server placed it."""
        with self._lock:
            self._inbox.started(after, found=found)

    def caught_up(self) -> None:
        """Internal: the replay has caught up or reached its stop."""
        with self._lock:
            self._inbox.caught_up = True
            self._changed.notify_all()

    def noticed(self, bookmark: str) -> None:
        """Internal: everything up to `bookmark` was delivered."""
        with self._lock:
            self._inbox.notice(bookmark)

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """Internal: nothing more comes; what is here can still be taken."""
        with self._lock:
            self._inbox.end(reason, error)
            self._changed.notify_all()

    def again(self) -> None:
        """Internal: what was not handed on comes again, on another connection."""
        self._inbox.voids += 1

    def forked(self) -> None:
        """Internal: this is a forked child, where the receive thread does not exist."""
        self._forked = True
        refusing: Any = forks.ForkedLock()  # it refuses whoever would wait
        self._lock = self._changed = refusing
        self._owns_lock = forks.refuse
        self._drop_current()

    # -- inside -----------------------------------------------------------------------------------------

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
        messages = self._reading.over(place.messages, batch)
        self._place = place if messages is place.messages else place._replace(messages=messages)

    def _next_batch(self, timeout: Timeout) -> MessageBatch | None:
        """The batch that comes next. Whoever begins it says so in `_place`; until then it comes again."""
        inbox = self._inbox
        batch = inbox.at_hand
        if batch is not None and self._place.at_hand is not batch and not inbox.passed:
            return batch
        while True:
            self._pay(early=inbox.early, owed=inbox.owed)
            self._locked(inbox.settle)
            self._place = NOWHERE
            if not inbox.ready:
                self._locked(self._wait, self.timeout if timeout is DEFAULT else timeout)
            batch = self._locked(inbox.take)
            if batch is None or not inbox.passed:
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

    def _pay(self, *, early: int, owed: int = 0) -> None:
        inbox = self._inbox
        if early or owed:
            self._report(self.sub_id, early + owed)
            # Only now: an exception that comes out of the report says that nothing was reported.
            inbox.early -= early
            inbox.owed -= owed

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

    def _conflate(self, by: str) -> Superseded | None:
        inbox = self._inbox
        inbox.early += inbox.conflate(by)
        return inbox.take_superseded()

    def _let_go(self, superseded: Superseded | None) -> None:
        error = None if superseded is None else discard_superseded(superseded)
        if error is not None:
            self.end(error.code, error)

    def _begin_catch_up(self, who: object) -> None:
        inbox = self._inbox
        inbox.early += inbox.begin_catch_up(who)

    def _wait_caught_up(self, seconds: float | None) -> None:
        self._wait_until(lambda: self._inbox.settled, seconds)
        self._inbox.check_caught_up(seconds)

    def _wait(self, timeout: float | str | None) -> None:
        seconds = seconds_of(timeout)
        if not self._wait_until(lambda: self._inbox.ready, seconds):
            raise self._inbox.late(seconds)

    def _wait_until(self, is_so: Callable[[], bool], seconds: float | None) -> bool:
        try:
            return self._changed.wait_for(is_so, seconds)
        except BaseException:
            if not self._owns_lock():
                self._lock.acquire()  # it was given back for the wait, and the caller gives it back again
            raise

    def _drop_current(self) -> None:
        deque(bare(self._place.messages), maxlen=0)  # a loop may be in the middle of it
        self._place = ReadPosition.end(self._inbox.at_hand)


class HandledStream(MessageStream):
    """A subscription whose messages go to a handler, on the receive thread, as they come.

    `handlers` runs it; whatever it raises, the next message is handed on all the same.
    """

    def __init__(
        self,
        sub_id: str,
        *,
        consumed: Callable[[str, int], None],
        unsubscribe: Callable[[str], None],
        handler: Handler,
        handlers: HandlerRunner,
        request: SubscribeRequest | None = None,
        client_seconds: float | None = None,
    ) -> None:
        super().__init__(sub_id, consumed=consumed, unsubscribe=unsubscribe, client_seconds=client_seconds)
        self._handlers = handlers
        self.handler = handler
        """Internal: what messages are handed to."""
        self.request = request
        """Internal: what was asked for."""
        self.inbox = self._inbox
        """Internal: what it keeps account of."""

    def push(self, batch: MessageBatch) -> None:
        """Internal: a batch was delivered; hand its messages on, until the handler closes the stream."""
        handler, run, inbox = handler_for(self.handler, batch), self._handlers.run, self._inbox
        voids = inbox.voids
        for message in batch:
            if inbox.closed or inbox.voids != voids:
                break
            run(handler, message)
        else:
            inbox.done(batch)
        self._report(self.sub_id, batch.cost)

    def conflate(self, by: str = "sow_key") -> None:  # noqa: ARG002 - overrides
        """Raises `UsageError`: messages go to the handler as they come."""
        raise UsageError(f"messages of {self.sub_id} go to on_message; there is nothing to conflate")

    def _next_batch(self, timeout: Timeout) -> MessageBatch | None:  # noqa: ARG002 - overrides
        raise UsageError(f"messages of {self.sub_id} go to on_message; this stream gives none")


HandledPart = tuple[HandledStream, MessageBatch, Sequence[int]]
"""A stream with a handler, its share of a batch, and which rows of the batch these are."""


def push_all(
    bodies: Sequence[bytes], parts: Sequence[HandledPart], caught: Callable[[BaseException], None]
) -> None:
    """Shares of one batch with these `bodies` were delivered: hand all messages on, in its order.

    What handlers raise is told. What was consumed is not reported here."""
    order: list[tuple[int, int, MessageBatch, MessageBuffer, int, Handler]] = []
    for stream, share, rows in parts:
        inbox = stream.inbox
        handler, voids = unless_over(stream.handler, share), inbox.voids
        order += [(row, index, share, inbox, voids, handler) for index, row in enumerate(rows)]
    order.sort(key=itemgetter(0))
    for row, index, share, inbox, voids, handler in order:
        if not inbox.closed and inbox.voids == voids:
            try:
                handler(Message(bodies[row], share, index))
            except BaseException as error:  # noqa: BLE001 - code of the application may raise anything
                caught(error)
    for stream, share, _ in parts:
        stream.inbox.done(share)
