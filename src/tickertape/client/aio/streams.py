"""Message stream of the asyncio client: waits for what a subscription delivers.

A consumer that never has to wait still lets other tasks run after each `batch_bytes_target`. What it means to
hold, take and end is in `message_buffer.py`. A `HandlerOrder` calls the handlers of several in one order.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tickertape.base.errors import TickertapeError, UsageError
from tickertape.base.limits import batch_bytes_target
from tickertape.batch.arrow import check_columns, table_of
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.aio.waiting import Notifier
from tickertape.client.api.auto_ack import async_handler, bare, is_gone, lease_in
from tickertape.client.api.streams import StreamBase, StreamOwner, T
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.handlers import Handler, HandlerRunner
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import DEFAULT, Timeout, seconds_of
from tickertape.client.subscriptions.duplicates import is_over
from tickertape.client.subscriptions.message_buffer import Superseded, rest_of
from tickertape.client.subscriptions.routing import in_order

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncMessageStream(StreamBase):
    """The messages of one subscription, in log order: an async iterator of `Message`, for one consumer at a
    time.

    Iteration waits for messages and ends, without an exception, when the subscription is over; `end_reason`
    then says why. A stream of a limited reading (`AsyncClient.replay`, `AsyncClient.read_positions`) raises
    instead when it was cut short, because there the end means that everything was read. A stream that has
    ended does not revive. Whoever waits may be cancelled: no message is lost by that. It is also an async
    context manager that closes itself. In a forked child everything but `close` raises `Forked`.
    """

    __slots__ = ("_changed", "_current", "_in_a_row_bytes", "_iterator")

    _lock = nullcontext()

    def __init__(self, request: SubscribeRequest, owner: StreamOwner) -> None:
        super().__init__(request, owner)
        self._changed = Notifier()
        self._in_a_row_bytes = 0
        self._current: Iterator[Message] = iter(())
        self._iterator = self._iterate()
        forks.register(self)

    # -- the application --------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        self._begin_loop()
        return self._iterator

    async def __anext__(self) -> Message:
        self._in_loop = False
        return await anext(self._iterator)

    async def batches(self, timeout: Timeout = DEFAULT) -> AsyncIterator[MessageBatch]:
        """Iterate whole batches, as they were delivered; ends as iteration of messages does.

        `timeout`: raise `TimedOut` when none comes for so long, in seconds or text; None = wait as long as
        it runs; by default the stream's own `timeout`. A batch that iteration or `get` has begun comes first,
        without the messages given already.
        """
        auto_ack = self._auto_ack
        self._begin_loop()
        auto_ack.done()
        rest = rest_of(bare(self._current))
        if rest is not None and not is_gone(rest):
            auto_ack.batch(rest)
            yield rest
            auto_ack.done()
        while (batch := await self._next_batch(timeout)) is not None:
            auto_ack.batch(batch)
            yield batch
            auto_ack.done()

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
        self._in_loop = False
        while True:
            message = next(self._current, None)
            if message is not None:
                return message
            batch = await self._next_batch(timeout)
            if batch is None:
                raise self.buffer.over()
            self._current = self._auto_ack.over(iter(batch), batch)

    async def wait_caught_up(self, timeout: Timeout = DEFAULT) -> None:
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
            await self._changed.wait_for(lambda: buffer.settled, seconds)
            buffer.check_caught_up(seconds)
        finally:
            buffer.end_catch_up(who)

    async def close(self) -> None:
        """End the subscription; messages not taken yet are dropped. Nothing happens when it is over."""
        self._end_subscription()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._auto_ack.failed()
        await self.close()

    # -- inside -----------------------------------------------------------------------------------------

    def forked(self) -> None:
        """Internal: this is a forked child, which has no part in the parent's event loop."""
        self._forked = True
        self._drop_current()

    def _locked(self, step: Callable[..., T], *arguments: object) -> T:
        self._check_not_forked()
        return step(*arguments)

    def _wake(self) -> None:
        self._changed.wake()

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
                self._current = self._auto_ack.over(iter(batch), batch)
        except GeneratorExit:
            raise
        except BaseException:
            self._iterator = self._iterate()  # an exception ends a generator, but not the stream
            raise

    async def _next_batch(self, timeout: Timeout) -> MessageBatch | None:
        while True:
            batch = await self._take_next(timeout)
            if batch is None or not self.buffer.passed:
                return batch

    async def _take_next(self, timeout: Timeout, *, whole: bool = False) -> MessageBatch | None:
        self._check_not_forked()
        buffer = self.buffer
        due = buffer.settle()
        if due:
            self._owner.consumed(self.request, due)
        if not buffer.ready:
            await self._wait(self.timeout if timeout is DEFAULT else timeout)
        elif self._in_a_row_bytes >= batch_bytes_target:
            self._in_a_row_bytes = 0
            await asyncio.sleep(0)
        batch = buffer.take(whole=whole)
        if batch is not None:
            self._in_a_row_bytes += batch.cost
        return batch

    async def _wait(self, timeout: float | str | None) -> None:
        self._in_a_row_bytes = 0
        seconds = seconds_of(timeout)
        if not await self._changed.wait_for(lambda: self.buffer.ready, seconds):
            raise self.buffer.late(seconds)

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

    __slots__ = ("_by_itself", "_handler", "_handlers", "_order", "_own_batches", "_settles")

    def __init__(
        self, request: SubscribeRequest, owner: StreamOwner, *, handler: Handler, handlers: HandlerRunner
    ) -> None:
        super().__init__(request, owner)
        self._handler = handler
        self._handlers = handlers
        self._settles = False
        """Whether messages come out of queues, so that the handler is looked after."""
        self._order: HandlerOrder | None = None
        self._own_batches = 0
        """Batches delivered before it joined the handler order, still to be taken here."""
        self._by_itself = True

    def again(self) -> None:
        """Internal: what was not handed on comes again, on another connection."""
        self.buffer.void()

    # -- on its own -------------------------------------------------------------------------------------

    async def hand_on(self) -> None:
        """Hand every message to the handler until the subscription is over, closed, or in a handler order."""
        buffer = self.buffer
        try:
            while self._order is None or self._own_batches:
                self.settle()
                if not buffer.ready:
                    self._in_a_row_bytes = 0
                    await self._changed.wait()
                    continue
                batch = await self._take_next(None, whole=True)
                if batch is None:
                    return
                self._own_batches = max(0, self._own_batches - 1)
                for message in batch:
                    if buffer.closed:
                        return
                    if buffer.voided:
                        break
                    await self.hand(message)
            self.settle()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Internal: nothing is handed on by a task of its own, or no more."""
        self._by_itself = False
        self._changed.wake()

    # -- in a handler order -----------------------------------------------------------------------------

    @property
    def free(self) -> bool:
        """Internal: whether it is in no handler order."""
        return self._order is None

    def join(self, order: HandlerOrder) -> None:
        """Internal: what comes from now on is handed on there."""
        self._order = order
        self._own_batches = self.buffer.waiting
        self._changed.wake()

    def push_share(self, batch: MessageBatch) -> None:
        """Internal: as `push`, but the caller puts it into the handler order."""
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
        """End the subscription; see `AsyncMessageStream.close`."""
        await super().close()
        self._changed.wake()
        if self._order is not None:
            self._order.look()

    @property
    def running(self) -> bool:
        """Internal: whether more may come."""
        return self.buffer.end_reason is None and not self.buffer.closed

    async def caught_up_by_itself(self) -> None:
        """Internal: wait until what came before it joined is handed on."""
        while self._by_itself:
            await self._changed.wait()

    def take(self) -> MessageBatch | None:
        """Internal: what comes next."""
        self.settle()
        return self.buffer.take(whole=True)

    def settle(self) -> None:
        """Internal: what was taken last is done with, unless it was closed in the middle of it."""
        due = 0 if self.buffer.closed else self.buffer.settle()
        if due:
            self._owner.consumed(self.request, due)

    async def hand(self, message: Message) -> None:
        """Internal: call the handler, unless the stream is closed, or the message comes again, or did and is
        discarded by now."""
        if self.buffer.closed or self.buffer.voided or is_over(message):
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

    def _begin_conflation(self, by: str) -> Superseded | None:  # noqa: ARG002 - overrides
        raise UsageError(f"messages of {self.sub_id} go to on_message; there is nothing to conflate")

    async def _next_batch(self, timeout: Timeout) -> MessageBatch | None:  # noqa: ARG002 - overrides
        raise self._goes_to_handler()


Item = Sequence[tuple[AsyncHandledStream, Sequence[int]]]
"""The members that got a batch, and which of its rows; for a single member they do not matter."""


class HandlerOrder:
    """Subscriptions that were resumed together: their handlers are called in one order, that of delivery.

    One task gives the messages of all of them to the handlers; a slow one holds up the others. Invariant: a
    message is taken from a subscription only after its own task has finished with everything before it
    joined. All handlers of a blocking client run on its receive thread, which keeps the order by itself."""

    def __init__(self) -> None:
        self._members: list[AsyncHandledStream] = []
        self._items: deque[Item] = deque()
        self._changed = Notifier()
        self.over = True
        """Whether it needs a task that runs `hand_on`: it has none yet, or that one has ended."""

    def join(self, members: Sequence[AsyncHandledStream]) -> None:
        """Call the handlers of these members for what is delivered from now on."""
        self._members = [member for member in self._members if member.running]
        self._members += members
        for member in members:
            member.join(self)

    def put(self, item: Item) -> None:
        """Add a batch, which is in the buffer of each member."""
        self._items.append(item)
        self._changed.wake()

    def look(self) -> None:
        """A member is over, or was closed."""
        self._changed.wake()

    def begin(self) -> Coroutine[Any, Any, None]:
        """Return the work of the task that it needs."""
        self.over = False
        return self.hand_on()

    async def hand_on(self) -> None:
        """Hand on everything until all members are over."""
        in_a_row_bytes = 0
        try:
            while self._items or any(member.running for member in self._members):
                if not self._items:
                    in_a_row_bytes = 0
                    await self._changed.wait()
                    continue
                in_a_row_bytes += await self._hand(self._items.popleft())
                if in_a_row_bytes >= batch_bytes_target:
                    in_a_row_bytes = 0
                    await asyncio.sleep(0)
        finally:
            self.over = True

    async def _hand(self, item: Item) -> int:
        """Hand on what came at a time; its cost."""
        shares = []
        for member, rows in item:
            await member.caught_up_by_itself()
            batch = member.take()
            if batch is not None:
                shares.append((member, batch, rows))
        if len(shares) == 1:
            member, batch, _ = shares[0]
            for message in batch:
                await member.hand(message)
        else:
            messages = [iter(batch) for _, batch, _ in shares]
            for _, number in in_order([rows for _, _, rows in shares]):
                await shares[number][0].hand(next(messages[number]))
        for member, _, _ in shares:
            member.settle()
        return sum(batch.cost for _, batch, _ in shares)
