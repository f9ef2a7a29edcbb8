"""Owns the message stream of the asyncio client: awaiting what a subscription delivered.

Must never hold up the event loop: what may be waiting here is bounded by the credit of the subscription, and
a consumer that never has to wait still lets others run after each `batch_bytes_target`. What it means to
hold, take and end is in `inbox.py`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tickertape.base.errors import TickertapeError, UsageError
from tickertape.base.limits import batch_bytes_target
from tickertape.batch.arrow import check_columns, table_of
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.aio.handler_order import HandlerOrder
from tickertape.client.aio.waiting import Notifier
from tickertape.client.api.auto_ack import AutoAckReader, async_handler, bare, is_gone, lease_in
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.handlers import Handler, HandlerRunner
from tickertape.client.common.waiting import DEFAULT, Timeout, seconds_of
from tickertape.client.subscriptions.duplicates import is_over
from tickertape.client.subscriptions.message_buffer import MessageBuffer, rest_of
from tickertape.client.subscriptions.message_buffer_conflation import discard_superseded

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncMessageStream:
    """The messages of one subscription, in log order: an async iterator of `Message`, for one consumer at a
    time.

    Iteration waits for messages and ends, without an exception, when the subscription is over; `end_reason`
    then says why. A stream of a limited reading (`AsyncClient.replay`, `AsyncClient.read_positions`) raises
    instead when it was cut short, because there the end means that everything was read. A stream that has
    ended does not revive. Whoever waits may be cancelled: no message is lost by that. It is also an async
    context manager that closes itself. In a forked child everything but `close` raises `Forked`.
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
        self._changed = Notifier()
        self._inbox = MessageBuffer(sub_id, limited=limited)
        self._forked = False
        self._in_a_row_bytes = 0
        self._current: Iterator[Message] = iter(())
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

    def __aiter__(self) -> AsyncIterator[Message]:
        self._reading.began()
        return self._iterator

    async def __anext__(self) -> Message:
        self._reading.in_loop = False
        return await anext(self._iterator)

    async def batches(self, timeout: Timeout = DEFAULT) -> AsyncIterator[MessageBatch]:
        """Iterate whole batches, as they were delivered; ends as iteration of messages does.

        `timeout`: raise `TimedOut` when none comes for so long, in seconds or text; None = wait as long as
        it runs; by default the stream's own `timeout`. A batch that iteration or `get` has begun comes first,
        without the messages given already.
        """
        reading = self._reading
        reading.began()
        reading.done()
        rest = rest_of(bare(self._current))
        if rest is not None and not is_gone(rest):
            reading.batch(rest)
            yield rest
            reading.done()
        while (batch := await self._next_batch(timeout)) is not None:
            reading.batch(batch)
            yield batch
            reading.done()

    async def to_arrow(self, columns: Sequence[str] | None = None, timeout: Timeout = DEFAULT) -> pa.Table:
        """Read until the stream is over, into an Arrow table that keeps the memory of all its batches.

        Bodies are not copied. `columns` as in `MessageBatch.to_arrow`, `timeout` as in `batches`. For what is
        larger than memory, or never over, use `batches()` and `to_arrow()` of each. Raises `UsageError` for
        an unknown column, `TimedOut` (what was read till then is lost), and what `batches` raises.
        """
        check_columns(columns)
        return table_of([batch async for batch in self.batches(timeout)], columns)

    async def get(self, timeout: Timeout = DEFAULT) -> Message:
        """The next message. `timeout` in seconds or text, None = wait as long as the subscription runs; by
        default the stream's own `timeout`.

        Raises `TimedOut` when none came, `StreamEnded` when there are no more, and what cut a limited
        reading short.
        """
        self._reading.in_loop = False
        while True:
            message = next(self._current, None)
            if message is not None:
                return message
            batch = await self._next_batch(timeout)
            if batch is None:
                raise self._inbox.over()
            self._current = self._reading.over(iter(batch), batch)

    async def wait_caught_up(self, timeout: Timeout = DEFAULT) -> None:
        """Wait until the replay has caught up with the log, or reached its stop: the `completed`
        acknowledgement.

        What arrives meanwhile is held for the application, up to `catch_up_bytes_max` if it does not consume.
        `timeout` in seconds or text, None = wait as long as the subscription runs; by default the client's
        own. Raises `TimedOut`, or `StreamEnded` when the subscription ended before.
        """
        seconds = self._client_seconds
        if timeout is not DEFAULT:
            seconds = seconds_of(timeout)
        self._check_not_forked()
        inbox = self._inbox
        who = object()
        owed = inbox.begin_catch_up(who)
        try:
            if owed:
                self._report(self.sub_id, owed)
            await self._changed.wait_for(lambda: inbox.settled, seconds)
            inbox.check_caught_up(seconds)
        finally:
            inbox.end_catch_up(who)

    def conflate(self, by: str = "sow_key") -> None:
        """From now on, of what waits here only the newest message of each key is kept: for a consumer that
        is slower than the stream and wants the present, not the past.

        `by`: `"sow_key"` (the topic and the key that the publisher gave; messages without one are all kept)
        or `"topic"`. The others are dropped, and discarded in the bookmark store; the order of what is left
        is that of the log. Messages of the batch that was begun are still given. Raises `UsageError`.
        """
        self._check_not_forked()
        owed = self._inbox.conflate(by)
        if owed:
            self._report(self.sub_id, owed)
        self._let_go()

    async def close(self) -> None:
        """End the subscription; messages not taken yet are dropped. Nothing happens when it is over."""
        if self._forked:
            return
        running = self._inbox.close()
        self._drop_current()
        if running:
            self._unsubscribe(self.sub_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._reading.failed()
        await self.close()

    # -- the client -------------------------------------------------------------------------------------

    def push(self, batch: MessageBatch) -> None:
        """Internal: a batch was delivered."""
        owed = self._inbox.push(batch)
        self._changed.wake()
        self._let_go()
        if owed:
            self._report(self.sub_id, owed)

    def started(self, after: str, found: bool) -> None:
        """Internal: the server placed it."""
        self._inbox.started(after, found=found)

    def caught_up(self) -> None:
        """Internal: the replay has caught up or reached its stop."""
        self._inbox.caught_up = True
        self._changed.wake()

    def noticed(self, bookmark: str) -> None:
        """Internal: everything up to `bookmark` was delivered."""
        self._inbox.notice(bookmark)

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """Internal: nothing more comes; what is here can still be taken."""
        self._inbox.end(reason, error)
        self._changed.wake()

    def again(self) -> None:
        """Internal: what was not handed on comes again, on another connection."""
        self._inbox.void()

    def forked(self) -> None:
        """Internal: this is a forked child, which has no part in the parent's event loop."""
        self._forked = True
        self._drop_current()

    # -- inside -----------------------------------------------------------------------------------------

    async def _iterate(self) -> AsyncIterator[Message]:
        try:
            while True:
                current = self._current
                for message in current:
                    yield message
                if self._current is not current:
                    continue  # get() has moved on to another batch
                batch = await self._next_batch(DEFAULT)
                if batch is None:
                    break
                self._current = self._reading.over(iter(batch), batch)
        except GeneratorExit:
            raise
        except BaseException:
            self._iterator = self._iterate()  # an exception ends a generator, but not the stream
            raise

    async def _next_batch(self, timeout: Timeout) -> MessageBatch | None:
        while True:
            batch = await self._take_next(timeout)
            if batch is None or not self._inbox.passed:
                return batch

    async def _take_next(self, timeout: Timeout, *, whole: bool = False) -> MessageBatch | None:
        self._check_not_forked()
        inbox = self._inbox
        owed = inbox.settle()
        if owed:
            self._report(self.sub_id, owed)
        if not inbox.ready:
            await self._wait(self.timeout if timeout is DEFAULT else timeout)
        elif self._in_a_row_bytes >= batch_bytes_target:
            self._in_a_row_bytes = 0
            await asyncio.sleep(0)
        batch = inbox.take(whole=whole)
        if batch is not None:
            self._in_a_row_bytes += batch.cost
        return batch

    async def _wait(self, timeout: float | str | None) -> None:
        self._in_a_row_bytes = 0
        seconds = seconds_of(timeout)
        if not await self._changed.wait_for(lambda: self._inbox.ready, seconds):
            raise self._inbox.late(seconds)

    def _let_go(self) -> None:
        superseded = self._inbox.take_superseded()
        error = None if superseded is None else discard_superseded(superseded)
        if error is not None:
            self.end(error.code, error)

    def _drop_current(self) -> None:
        deque(bare(self._current), maxlen=0)  # a loop may be in the middle of it

    def _check_not_forked(self) -> None:
        if self._forked:
            raise forks.forked_error()


class AsyncHandledStream(AsyncMessageStream):
    """A subscription whose messages go to a handler, one after the other, as they come.

    The client runs `hand_on` in a task. The handler is a function or a coroutine function; whatever it
    raises, the next message is handed on all the same. A slow one holds up its own subscription only, and
    those that were resumed together with it: their handlers are called by a `HandlerOrder`, in one order.
    """

    def __init__(
        self,
        sub_id: str,
        *,
        consumed: Callable[[str, int], None],
        unsubscribe: Callable[[str], None],
        handler: Handler,
        handlers: HandlerRunner,
        client_seconds: float | None = None,
    ) -> None:
        super().__init__(sub_id, consumed=consumed, unsubscribe=unsubscribe, client_seconds=client_seconds)
        self._handler = handler
        self._handlers = handlers
        self._settles = False
        """Whether messages come out of queues, so that the handler is looked after."""
        self._order: HandlerOrder | None = None
        self._own_batches = 0
        """Those that came before it joined the convoy, and are still to be taken here."""
        self._by_itself = True

    # -- on its own -------------------------------------------------------------------------------------

    async def hand_on(self) -> None:
        """Hand every message to the handler until the subscription is over, closed, or in a convoy."""
        inbox = self._inbox
        try:
            while self._order is None or self._own_batches:
                self.settle()
                if not inbox.ready:
                    self._in_a_row_bytes = 0
                    await self._changed.wait()
                    continue
                batch = await self._take_next(None, whole=True)
                if batch is None:
                    return
                self._own_batches = max(0, self._own_batches - 1)
                for message in batch:
                    if inbox.closed:
                        return
                    if inbox.voided:
                        break
                    await self.hand(message)
            self.settle()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Internal: nothing is handed on by a task of its own, or no more."""
        self._by_itself = False
        self._changed.wake()

    # -- in a convoy ------------------------------------------------------------------------------------

    @property
    def free(self) -> bool:
        """Internal: whether it is in no convoy."""
        return self._order is None

    def join(self, order: HandlerOrder) -> None:
        """Internal: what comes from now on is handed on there."""
        self._order = order
        self._own_batches = self._inbox.waiting
        self._changed.wake()

    def push_share(self, batch: MessageBatch) -> None:
        """Internal: as `push`, but it is the caller who tells the convoy."""
        super().push(batch)

    def push(self, batch: MessageBatch) -> None:
        """Internal: a batch was delivered."""
        if not self._settles and lease_in(batch) is not None:
            self._settles, self._handler = True, async_handler(self._handler)
        super().push(batch)
        if self._order is not None:
            self._order.put([(self, ())])

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """Internal: nothing more comes; what is here is still handed on."""
        super().end(reason, error)
        if self._order is not None:
            self._order.look()

    async def close(self) -> None:
        """As of any stream."""
        await super().close()
        self._changed.wake()
        if self._order is not None:
            self._order.look()

    @property
    def running(self) -> bool:
        """Internal: whether more may come."""
        return self._inbox.end_reason is None and not self._inbox.closed

    async def caught_up_by_itself(self) -> None:
        """Internal: wait until what came before it joined is handed on."""
        while self._by_itself:
            await self._changed.wait()

    def take(self) -> MessageBatch | None:
        """Internal: what comes next."""
        self.settle()
        return self._inbox.take(whole=True)

    def settle(self) -> None:
        """Internal: what was taken last is done with, unless it was closed in the middle of it."""
        owed = 0 if self._inbox.closed else self._inbox.settle()
        if owed:
            self._report(self.sub_id, owed)

    async def hand(self, message: Message) -> None:
        """Internal: call the handler, unless the stream is closed, or the message comes again, or did and is
        discarded by now."""
        if self._inbox.closed or self._inbox.voided or is_over(message):
            return
        try:
            outcome = self._handler(message)
            if outcome is not None and inspect.isawaitable(outcome):
                await outcome
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._handlers.tell(error)  # something that the handler waited for was cancelled
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything
            self._handlers.tell(error)

    def conflate(self, by: str = "sow_key") -> None:  # noqa: ARG002 - overrides
        """Raises `UsageError`: messages go to the handler as they come."""
        raise UsageError(f"messages of {self.sub_id} go to on_message; there is nothing to conflate")

    async def _next_batch(self, timeout: Timeout) -> MessageBatch | None:  # noqa: ARG002 - overrides
        raise UsageError(f"messages of {self.sub_id} go to on_message; this stream gives none")
