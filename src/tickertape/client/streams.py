"""Owns the message stream: what a subscription delivered, until the application takes it.

Must never block the receive thread: what may be waiting here is bounded by the credit of the subscription.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from tickertape.base.errors import StreamEnded, TickertapeError, TimedOut, UsageError
from tickertape.base.limits import catch_up_bytes_max
from tickertape.batch.layout import MessageBatch
from tickertape.batch.message import Message
from tickertape.client.handlers import Handlers

Handler = Callable[[Message], object]


class MessageStream:
    """The messages of one subscription, in log order: an iterator of `Message`, for one consumer at a time.

    Iteration waits for messages and ends, without an exception, when the subscription is over; `end_reason`
    then says why. A stream of a limited reading (`Client.replay`, `Client.read_positions`) raises instead
    when it was cut short, because there the end means that everything was read. A stream that has ended
    does not revive. A stream is also a context manager that closes itself.
    """

    def __init__(
        self,
        sub_id: str,
        *,
        consumed: Callable[[str, int], None],
        unsubscribe: Callable[[str], None],
        limited: bool = False,
    ) -> None:
        self.sub_id = sub_id
        """Id of the subscription."""
        self.end_reason: str | None = None
        """None while it runs; then `complete`, `unsubscribed`, `closed`, or the code of `end_error`."""
        self.end_error: TickertapeError | None = None
        """The error that ended it, if one did."""
        self._report = consumed
        self._unsubscribe = unsubscribe
        self._limited = limited
        self._changed = threading.Condition(threading.Lock())
        self._batches: deque[MessageBatch] = deque()
        self._held_bytes = 0
        self._prepaid_bytes = 0
        self._catching_up = 0
        self._caught_up = False
        self._closed = False
        self._taken_bytes = 0
        self._current: Iterator[Message] = iter(())
        self._iterator = self._iterate()

    # -- the application --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        return self._iterator

    def __next__(self) -> Message:
        return next(self._iterator)

    def batches(self, timeout: float | None = None) -> Iterator[MessageBatch]:
        """Iterate whole batches, as they were delivered; ends as iteration of messages does.

        `timeout`: raise `TimedOut` when none comes for so many seconds; None = wait as long as it runs.
        Messages of a batch that iteration or `get` has begun are not given again.
        """
        while (batch := self._next_batch(timeout)) is not None:
            yield batch

    def get(self, timeout: float | None = None) -> Message:
        """The next message. `timeout` in seconds, None = wait as long as the subscription runs.

        Raises `TimedOut` when none came, `StreamEnded` when there are no more, and what cut a limited
        reading short.
        """
        while True:
            message = next(self._current, None)
            if message is not None:
                return message
            batch = self._next_batch(timeout)
            if batch is None:
                raise StreamEnded(f"stream {self.sub_id} is over: {self.end_error or self.end_reason}")
            self._current = iter(batch)

    def wait_caught_up(self, timeout: float | None = None) -> None:
        """Wait until the replay has caught up with the log, or reached its stop: the `completed`
        acknowledgement.

        What arrives meanwhile is held for the application, up to `catch_up_bytes_max` if it does not consume.
        `timeout` in seconds, None = wait as long as the subscription runs. Raises `TimedOut`, or
        `StreamEnded` when the subscription ended before.
        """
        with self._changed:
            self._catching_up += 1
            owed = self._prepay()
        try:
            if owed:
                self._report(self.sub_id, owed)
            with self._changed:
                self._changed.wait_for(lambda: self._caught_up or self.end_reason is not None, timeout)
                if self._caught_up:
                    return
                if self.end_reason is not None:
                    why = self.end_error or self.end_reason
                    raise StreamEnded(f"stream {self.sub_id} ended before it had caught up: {why}")
                hint = "; it holds all it may, so consume it meanwhile" if self._full() else ""
                raise TimedOut(f"stream {self.sub_id} has not caught up after {timeout} s{hint}")
        finally:
            with self._changed:
                self._catching_up -= 1

    def close(self) -> None:
        """End the subscription; messages not taken yet are dropped. Nothing happens when it is over."""
        with self._changed:
            ended = self.end_reason is not None
            self._closed = True
            self._batches.clear()
            self._held_bytes = self._prepaid_bytes = 0
        deque(self._current, maxlen=0)  # a loop may be in the middle of it
        if not ended:
            self._unsubscribe(self.sub_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the receive thread -----------------------------------------------------------------------------

    def push(self, batch: MessageBatch) -> None:
        """A batch was delivered."""
        with self._changed:
            if self._closed:
                return
            self._batches.append(batch)
            self._held_bytes += batch.cost
            owed = self._prepay() if self._catching_up else 0
            self._changed.notify()
        if owed:
            self._report(self.sub_id, owed)

    def caught_up(self) -> None:
        """The replay has caught up or reached its stop."""
        with self._changed:
            self._caught_up = True
            self._changed.notify_all()

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """Nothing more comes; what is here can still be taken."""
        with self._changed:
            if self.end_reason is None:
                self.end_reason, self.end_error = reason, error
            self._changed.notify_all()

    # -- inside -----------------------------------------------------------------------------------------

    def _iterate(self) -> Iterator[Message]:
        while True:
            current = self._current
            yield from current
            if self._current is not current:
                continue  # get() has moved on to another batch
            batch = self._next_batch(None)
            if batch is None:
                return
            self._current = iter(batch)

    def _next_batch(self, timeout: float | None) -> MessageBatch | None:
        taken, self._taken_bytes = self._taken_bytes, 0
        if taken:
            self._report(self.sub_id, taken)
        with self._changed:
            if not self._batches and self.end_reason is None:
                self._wait(timeout)
            if not self._batches:
                if self._limited and self.end_error is not None:
                    raise self.end_error
                return None
            batch = self._batches.popleft()
            cost = batch.cost
            self._held_bytes -= cost
            # What was granted again while it lay here is not granted twice.
            prepaid = min(cost, self._prepaid_bytes)
            self._prepaid_bytes -= prepaid
            self._taken_bytes = cost - prepaid
        return batch

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._batches and self.end_reason is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimedOut(f"no message on stream {self.sub_id} within {timeout} s")
            self._changed.wait(left)

    def _full(self) -> bool:
        return self._held_bytes >= catch_up_bytes_max

    def _prepay(self) -> int:
        if self._full():
            return 0
        owed = self._held_bytes - self._prepaid_bytes
        self._prepaid_bytes = self._held_bytes
        return owed


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
    ) -> None:
        super().__init__(sub_id, consumed=consumed, unsubscribe=unsubscribe)
        self._handler = handler
        self._handlers = handlers

    def push(self, batch: MessageBatch) -> None:
        """A batch was delivered: hand its messages on, until the handler closes the subscription."""
        handler, run = self._handler, self._handlers.run
        for message in batch:
            if self._closed:
                break
            run(handler, message)
        self._report(self.sub_id, batch.cost)

    def _next_batch(self, timeout: float | None) -> MessageBatch | None:  # noqa: ARG002 - overrides
        raise UsageError(f"messages of {self.sub_id} go to on_message; this stream gives none")
