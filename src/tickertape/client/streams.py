"""Owns the message stream of the blocking client: waiting for what a subscription delivered.

Must never block the receive thread: what may be waiting here is bounded by the credit of the subscription.
What it means to hold, take and end is in `inbox.py`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tickertape.base.errors import TickertapeError, UsageError
from tickertape.base.units import parse_interval
from tickertape.batch.arrow import table_of
from tickertape.batch.layout import MessageBatch
from tickertape.batch.message import Message
from tickertape.client import forks
from tickertape.client.handlers import Handlers
from tickertape.client.inbox import Inbox, rest_of
from tickertape.client.subscribing import Handler
from tickertape.client.waiting import DEFAULT, Timeout

if TYPE_CHECKING:
    import pyarrow as pa


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
        self._changed = threading.Condition(threading.Lock())
        self._inbox = Inbox(sub_id, limited=limited)
        self._forked = False
        self._current: Iterator[Message] = iter(())
        self._iterator = self._iterate()
        forks.register(self)

    # -- the application --------------------------------------------------------------------------------

    @property
    def end_reason(self) -> str | None:
        """None while it runs; then `complete`, `unsubscribed`, `closed`, or the code of `end_error`."""
        return self._inbox.end_reason

    @property
    def end_error(self) -> TickertapeError | None:
        """The error that ended it, if one did."""
        return self._inbox.end_error

    @property
    def recovery_point(self) -> str | None:
        """Where a bookmark subscription can be taken up again so that nothing is missed: a bookmark of the
        log, or None while none is known. It moves when the next batch is asked for, and, about once a second,
        while nothing matches and nothing is waiting here. What was taken of the batch at hand comes again.
        """
        return self._inbox.recovery_point

    def __iter__(self) -> Iterator[Message]:
        return self._iterator

    def __next__(self) -> Message:
        return next(self._iterator)

    def batches(self, timeout: Timeout = DEFAULT) -> Iterator[MessageBatch]:
        """Iterate whole batches, as they were delivered; ends as iteration of messages does.

        `timeout`: raise `TimedOut` when none comes for so long, in seconds or text; None = wait as long as
        it runs; by default the stream's own `timeout`. A batch that iteration or `get` has begun comes first,
        without the messages given already.
        """
        rest = rest_of(self._current)
        if rest is not None:
            yield rest
        while (batch := self._next_batch(timeout)) is not None:
            yield batch

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
            message = next(self._current, None)
            if message is not None:
                return message
            batch = self._next_batch(timeout)
            if batch is None:
                raise self._inbox.over()
            self._current = iter(batch)

    def wait_caught_up(self, timeout: Timeout = DEFAULT) -> None:
        """Wait until the replay has caught up with the log, or reached its stop: the `completed`
        acknowledgement.

        What arrives meanwhile is held for the application, up to `catch_up_bytes_max` if it does not consume.
        `timeout` in seconds or text, None = wait as long as the subscription runs; by default the client's
        own. Raises `TimedOut`, or `StreamEnded` when the subscription ended before.
        """
        seconds = self._client_seconds
        if timeout is not DEFAULT:
            seconds = None if timeout is None else parse_interval(timeout)
        inbox = self._inbox
        with self._changed:
            owed = inbox.begin_catch_up()
        try:
            if owed:
                self._report(self.sub_id, owed)
            with self._changed:
                self._changed.wait_for(lambda: inbox.settled, seconds)
                inbox.check_caught_up(seconds)
        finally:
            with self._changed:
                inbox.end_catch_up()

    def close(self) -> None:
        """End the subscription; messages not taken yet are dropped. Nothing happens when it is over."""
        if self._forked:
            return
        with self._changed:
            running = self._inbox.close()
        self._drop_current()
        if running:
            self._unsubscribe(self.sub_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the receive thread -----------------------------------------------------------------------------

    def push(self, batch: MessageBatch) -> None:
        """Internal: a batch was delivered."""
        with self._changed:
            owed = self._inbox.push(batch)
            self._changed.notify()
        if owed:
            self._report(self.sub_id, owed)

    def caught_up(self) -> None:
        """Internal: the replay has caught up or reached its stop."""
        with self._changed:
            self._inbox.caught_up = True
            self._changed.notify_all()

    def noticed(self, bookmark: str) -> None:
        """Internal: everything up to `bookmark` was delivered."""
        with self._changed:
            self._inbox.notice(bookmark)

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """Internal: nothing more comes; what is here can still be taken."""
        with self._changed:
            self._inbox.end(reason, error)
            self._changed.notify_all()

    def forked(self) -> None:
        """Internal: this is a forked child, where the receive thread does not exist."""
        self._forked = True
        self._changed = forks.ForkedLock()  # type: ignore[assignment]  # it refuses whoever would wait
        self._drop_current()

    # -- inside -----------------------------------------------------------------------------------------

    def _iterate(self) -> Iterator[Message]:
        try:
            while True:
                current = self._current
                yield from current
                if self._current is not current:
                    continue  # get() has moved on to another batch
                batch = self._next_batch(DEFAULT)
                if batch is None:
                    return
                self._current = iter(batch)
        except GeneratorExit:
            raise
        except BaseException:
            self._iterator = self._iterate()  # an exception ends a generator, but not the stream
            raise

    def _next_batch(self, timeout: Timeout) -> MessageBatch | None:
        inbox = self._inbox
        owed = inbox.settle()
        if owed:
            self._report(self.sub_id, owed)
        with self._changed:
            if not inbox.ready:
                self._wait(self.timeout if timeout is DEFAULT else timeout)
            return inbox.take()

    def _wait(self, timeout: float | str | None) -> None:
        seconds = None if timeout is None else parse_interval(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._inbox.ready:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise self._inbox.late(seconds)
            self._changed.wait(left)

    def _drop_current(self) -> None:
        deque(self._current, maxlen=0)  # a loop may be in the middle of it


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
        handlers: Handlers,
        client_seconds: float | None = None,
    ) -> None:
        super().__init__(sub_id, consumed=consumed, unsubscribe=unsubscribe, client_seconds=client_seconds)
        self._handler = handler
        self._handlers = handlers

    def push(self, batch: MessageBatch) -> None:
        """Internal: a batch was delivered; hand its messages on, until the handler closes the stream."""
        handler, run, inbox = self._handler, self._handlers.run, self._inbox
        for message in batch:
            if inbox.closed:
                break
            run(handler, message)
        inbox.done(batch)
        self._report(self.sub_id, batch.cost)

    def _next_batch(self, timeout: Timeout) -> MessageBatch | None:  # noqa: ARG002 - overrides
        raise UsageError(f"messages of {self.sub_id} go to on_message; this stream gives none")
