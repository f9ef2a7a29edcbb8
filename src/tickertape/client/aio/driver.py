"""Driver of the asyncio client: one connection, two timers, and tasks for the application's handlers.

All code runs on one event loop, so it needs no lock. Only calls of the application wait. Their cancellation
leaves the client consistent.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final

import msgspec

from tickertape.base.errors import Closed, Disconnected, StoreFull, TickertapeError, TimedOut, UsageError
from tickertape.base.units import within
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.aio import loop_flush
from tickertape.client.aio.connection import AsyncioConnection, AsyncioTlsConnection
from tickertape.client.aio.receivers import AsyncHandlerReceiver, AsyncReceiver, HandlerOrder
from tickertape.client.aio.streams import AsyncMessageStream, stream_of
from tickertape.client.aio.waiting import AsyncioWaiter, Notifier, remaining
from tickertape.client.api import exit_flush as exits
from tickertape.client.api.driver import ClientDriver, DriverSettings, Step
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.effects import ConnectionDown, DeliverShared, Effect, Send, Sink
from tickertape.client.common.handlers import Handler
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.sockets import not_connected
from tickertape.client.common.waiting import Timeout, no_logon, now
from tickertape.client.limits import cancelled_handler_seconds_max
from tickertape.client.protocol.core import BytesReceived, ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.client.publishing.pending_deletes import NOTHING_DELETED, DeleteResult, with_answer
from tickertape.wire.commands import Deleted, LoggedOn

LOOP_ENDED: Final = "Cannot continue: the event loop of the connection has ended. Connect again."
"""Text of the error of a connection whose event loop has ended."""


class AsyncioDriver(ClientDriver):
    """Driver of an `AsyncClient`: connects, waits and performs effects, on one event loop at a time."""

    lock = nullcontext()

    def __init__(self, core: ClientProtocol, settings: DriverSettings) -> None:
        super().__init__(core, settings)
        self.connection: AsyncioConnection | None = None
        self.turn_due = False
        """Whether the next publish must yield to the event loop first, which then sends."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._logon: AsyncioWaiter | None = None
        self._connecting = asyncio.Lock()
        self._handling_loss = asyncio.Lock()
        self._loss_handled_in: asyncio.Task[Any] | None = None
        self._room = Notifier()
        self._timer: asyncio.TimerHandle | None = None
        self._beat_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._order = HandlerOrder()
        forks.register(self, type(self).forked)
        exits.register(self)

    # -- calls ------------------------------------------------------------------------------------------

    async def connect(self, timeout: Timeout) -> None:
        """See `AsyncClient.connect`."""
        seconds = self.seconds(timeout)
        self.check_not_forked()
        handler = self._loss_handled_in
        self._check_no_takeover(handling_loss=handler is not None and handler is asyncio.current_task())
        async with self._connecting:
            loop = asyncio.get_running_loop()
            if self.connection is not None and self._loop is not None and self._loop is not loop:
                if self._loop.is_running():
                    self._check_usable()
                self.connection.discard(Disconnected(LOOP_ENDED))
            if self.connection is not None and self.logon.ending is not None:
                self.connection.discard(
                    Disconnected("Cannot continue: the connection has ended. Connect again.")
                )
            if self.logon.logged_on is not None:
                return
            if self.logon.closed:
                raise self.closed_error()
            self._loop = loop
            await self._log_on(seconds)

    async def close(self, timeout: Timeout) -> None:
        """See `AsyncClient.close`."""
        if not self.is_open:
            return
        seconds = self.seconds(timeout)
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        connection = self.connection
        self.publishing.end()
        self._room.wake()
        answered = False
        try:
            if self.logon.connected and self._loop is loop and self.acks.unsettled():
                answered = await self._flush_before_close(seconds)
        except asyncio.CancelledError:
            self._report_unanswered()
            self._shut()
            if connection is not None:
                connection.discard(Disconnected("Cannot continue: the close of the client was cancelled."))
            raise
        if not answered:
            self._report_unanswered()
        self._shut()
        try:
            if connection is not None and self._loop is loop:
                await connection.changed.wait_for(lambda: connection.gone, remaining(deadline))
        finally:
            if connection is not None and not connection.gone:
                connection.discard(Disconnected("Cannot send everything: the server did not read in time."))
        await self._finish_tasks(deadline)

    async def flush(self, timeout: Timeout, level: str) -> None:
        """See `AsyncClient.publish_flush`."""
        seconds = self.seconds(timeout)
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        while True:
            try:
                await self.call(
                    lambda call: self.core.flush(call, level),
                    remaining(deadline),
                    f"publish_flush ({level})",
                )
                break
            except StoreFull as full:
                self.drive()
                await self._wait_for_store(full, seconds, deadline)
        self.core.flushed()
        refused = self.rejections.take()
        if refused is not None:
            raise refused

    async def open_stream(
        self, request: SubscribeRequest, timeout: Timeout, on_message: Handler | None
    ) -> AsyncMessageStream:
        """Send a subscribe and wait until it is accepted."""
        request = msgspec.structs.replace(request, handled=on_message is not None)
        receiver = self._receiver(request, on_message)
        stream = stream_of(receiver)
        if request.query is not None and request.limited:
            stream.timeout = self.seconds(timeout)
        try:
            await self.call(lambda call: self.core.subscribe(call, request, receiver), timeout, request.call)
        except BaseException as error:
            if isinstance(receiver, AsyncHandlerReceiver):
                receiver.abandon()
            if isinstance(error, TimedOut | asyncio.CancelledError):
                self.leave(request)  # The caller has no stream, so it would fill up.
            raise
        if isinstance(receiver, AsyncHandlerReceiver):
            self._spawn(receiver.hand_on())
        return stream

    def _receiver(self, request: SubscribeRequest, on_message: Handler | None) -> AsyncReceiver:
        if on_message is None:
            return AsyncReceiver(request, self)
        return AsyncHandlerReceiver(request, self, handler=on_message, handlers=self.handlers)

    async def name_subscriptions(self, what: str, sub_ids: tuple[str, ...], timeout: Timeout) -> None:
        """Send a command for existing subscriptions and wait for its completion."""
        await self.call(self._naming(what, sub_ids), timeout, what)

    def leave(self, request: SubscribeRequest) -> None:
        """End a subscription whose stream has no consumer any more."""
        # The subscription may have ended meanwhile, for example with its connection.
        with suppress(Disconnected, Closed):
            self.core.leave(request)
            self.drive()

    async def delete(self, body: bytes, timeout: Timeout, *, wait: bool) -> DeleteResult | None:
        seconds = self.seconds(timeout)
        if not wait:
            await self.publish_when_room(partial(self.publishing.delete, body), seconds)
            return None
        self._check_usable()
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        result, more = NOTHING_DELETED, True
        while more:
            if self.publishing.store is None:  # otherwise the delete is stored now, and sent later
                await self._until_ready(deadline, seconds, "sow_delete")
            call = AsyncioWaiter()
            await self.publish_when_room(partial(self.core.delete, call, body), remaining(deadline))
            try:
                answer = await call.wait(remaining(deadline), "sow_delete", seconds)
            except BaseException:
                self.publishing.deletes.abandon(call)
                raise
            assert isinstance(answer, Deleted)
            result, more = with_answer(result, answer), answer.more
        return result

    async def call(self, begin: Callable[[AsyncioWaiter], None], timeout: Timeout, what: str) -> object:
        seconds = self.seconds(timeout)
        self._check_usable()
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        await self._until_ready(deadline, seconds, what)
        call = AsyncioWaiter()
        begin(call)
        self.drive()
        return await call.wait(remaining(deadline), what, seconds)

    async def _until_ready(self, deadline: float | None, seconds: float | None, what: str) -> None:
        """Wait for a reconnect until `deadline`, the end of the timeout of `seconds` of the call `what`.

        This class does not reconnect, so a call on a lost connection raises. The HA driver overrides it.
        """

    def consumed(self, request: SubscribeRequest, cost: int) -> None:
        """Report consumed flow-control credit of a stream."""
        self.check_not_forked()
        self.core.consumed(request.context.sub_id, cost, request)
        if self.effects:
            self.drive()

    def _check_usable(self) -> None:
        super()._check_usable()
        if self.connection is not None and self._loop is not asyncio.get_running_loop():
            raise UsageError(
                f"Cannot use client {self.core.name!r}: it is connected on another event loop. Use it on "
                "that loop, or call connect() on this one."
            )

    # -- publishing and acknowledgements ------------------------------------------------------------------

    async def give_turn(self, seconds: float | None) -> None:
        """Yield to the event loop, and wait while the write buffer is full."""
        self._check_usable()
        self.turn_due = False
        connection = self.connection
        if connection is None or not connection.congested:
            await asyncio.sleep(0)
        elif not await connection.wait_room(seconds):
            self.turn_due = True
            raise TimedOut(
                f"Cannot publish: the server accepted no data {within(seconds)}. Check the server, or "
                "pass a longer timeout."
            )

    async def publish_when_room(self, publish: Callable[[], int | None], seconds: float | None) -> int | None:
        """Run a step of publishing as soon as the publish store has space, within `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        while True:
            try:
                sequence = publish()
            except StoreFull as error:
                self.drive()
                store = self.publishing.store
                if store is None or store.when_full == "raise":
                    raise
                await self._wait_for_store(error, seconds, deadline)
            else:
                self.drive()
                self.turn_due = True
                return sequence

    async def _wait_for_store(self, full: StoreFull, seconds: float | None, deadline: float | None) -> None:
        """Wait until the publish store may have space again after the error `full`.

        `deadline`: the end of the timeout of `seconds`. Raises `TimedOut`, and `Disconnected` if no
        connection can free space.
        """
        if not self.publishing.starved:
            return
        self._check_worth_waiting(full, reconnects=self.reconnects(seconds))
        try:
            async with asyncio.timeout_at(deadline):
                await self._room.wait()
        except TimeoutError:
            raise TimedOut(
                f"Cannot publish: the publish store got no free space {within(seconds)}. {full}"
            ) from full

    def settle_now(self, step: Step) -> None:
        """Run a step of the acknowledgements and send the resulting frames. Any thread may call it."""
        self.check_not_forked()
        loop = self._loop
        if loop is not None and not self._is_here(loop):  # also without a connection: it may just be lost
            try:
                loop.call_soon_threadsafe(self._settle_soon, step)
            except RuntimeError as error:
                raise Disconnected(
                    "Cannot acknowledge: the event loop of the connection has ended. Call connect() again."
                ) from error
            return
        try:
            step()
        finally:
            self.drive()
        self._arm_sooner()

    def _settle_soon(self, step: Step) -> None:
        """Run a step of the acknowledgements on the event loop, on behalf of another thread."""
        try:
            self.settle_now(step)
        except TickertapeError as error:
            self.handlers.report(error)

    # -- called by the connection and the loop ----------------------------------------------------------

    def opened(self, connection: AsyncioConnection) -> None:
        """Process the established connection."""
        assert self._logon is not None
        if self.logon.closed:
            closed = self.closed_error()
            self._logon.settle(closed)
            connection.discard(Disconnected(str(closed)))
            return
        self.connection = connection
        self.core.receive(ConnectionOpened(self._logon), now())
        self.drive()
        self._arm_beats()

    def arrived(self, count: int) -> None:
        """Process received bytes."""
        self.core.receive(BytesReceived(count), now())
        self.drive()
        self._arm()

    def written(self, connection: AsyncioConnection, frame: int) -> None:
        """Process written publish frames."""
        if connection is self.connection:
            self.core.written(frame)
            self.drive()

    def lost(self, connection: AsyncioConnection, error: Disconnected) -> None:
        """Process the loss of the connection."""
        if connection is not self.connection:
            return
        self.connection = None
        self._disarm()
        try:
            self.publishing.interrupted()  # A second Ctrl-C may have ended the loop within a step.
        finally:
            try:
                self.core.receive(ConnectionEnded(error), now())
            finally:  # Also after an exception, the loss is reported.
                self.drive()
                self._room.wake()

    def is_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the client is connected on `loop`."""
        return self._loop is loop and self._may_end()

    async def flush_with_loop(self, seconds: float) -> None:
        """Send everything at the end of the loop if the client is open."""
        if self.logon.connected and self.acks.unsettled():
            with suppress(TickertapeError):  # The end of the program reports unanswered messages.
                await self.flush(self._at_most(seconds), "persisted")

    async def _close_at_end(self, seconds: float) -> None:
        with self._ending():
            await self.close(self._at_most(seconds))

    def end_with_program(self, seconds: float) -> exits.ProgramEnd | None:
        """Close the client at the end of the program if it is open. Its loop may have ended before."""
        if not self._may_end():
            return None
        loop = self._loop
        with suppress(Exception):  # A loop can fail in several ways. Then the messages are counted.
            if loop is not None and loop.is_running():
                asyncio.run_coroutine_threadsafe(self._close_at_end(seconds), loop).result(seconds)
            elif loop is not None and not loop.is_closed():
                loop.run_until_complete(self._close_at_end(seconds))
        if not self.logon.closed:
            with self._ending():
                self._unsent = self.publishing.unanswered_count()
                connection = self.connection
                self.core.close()
                if connection is not None:
                    connection.discard(Disconnected(LOOP_ENDED))
        return exits.ProgramEnd(self.core.name, self._unsent)

    def forked(self) -> None:
        """Refuse every call: a forked child does not run the parent's event loop."""
        super().forked()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.detach()

    # -- inside -----------------------------------------------------------------------------------------

    async def _log_on(self, seconds: float | None) -> LoggedOn:
        """Connect to `_address` and log on. A failure leaves no connection."""
        await loop_flush.watch(self)
        connection = self._new_connection()
        self._logon = AsyncioWaiter()
        try:
            async with asyncio.timeout(seconds):
                await connection.dial()
                outcome = await self._logon.wait(None, "the logon")
        except TickertapeError:
            raise
        except TimeoutError as error:
            late = no_logon(self._address.uri, seconds)
            connection.discard(Disconnected(str(late)))
            raise late from error
        except (OSError, UnicodeError) as error:
            raise not_connected(self._address, error) from error
        except asyncio.CancelledError:
            connection.discard(Disconnected("Cannot connect: the attempt was cancelled. Connect again."))
            raise
        assert isinstance(outcome, LoggedOn)
        return outcome

    def _new_connection(self) -> AsyncioConnection:
        address = self._address
        if not address.tls:
            return AsyncioConnection(address, self)
        return AsyncioTlsConnection(
            address, self, self._credentials.context(), self._credentials.name_of(address)
        )

    def drive_turn(self) -> None:
        """Perform the effects of a publish. The next publish yields to the event loop first."""
        self.drive()
        self.turn_due = True

    def take_step(self, step: Step) -> None:
        """Run a step of the protocol and send the resulting frames."""
        step()
        self.drive()

    def drive(self) -> None:
        """Perform the effects of the protocol: sends first, in the order of the frames."""
        connection = self.connection
        buffers: list[Any] = []
        later: list[Effect] = []
        for effect in self.core.effects():
            if type(effect) is Send:
                buffers += effect.buffers
            else:
                later.append(effect)
        if buffers and connection is not None:
            connection.send(buffers)
        if (frame := self.publishing.unwritten_frame) and connection is not None and self._loop is not None:
            connection.report_written(frame, self._loop)
        if later:
            self._perform(later, connection)

    def _arm(self) -> None:
        """Arm the timer for the next deadline of the protocol. An early timer is harmless."""
        deadline = self.core.next_deadline()
        if deadline is None or self._timer is not None or self._loop is None:
            return
        self._timer = self._loop.call_at(self._loop_time(deadline), self._wake)

    def _loop_time(self, deadline: float) -> float:
        assert self._loop is not None
        return self._loop.time() + max(0.0, deadline - now().mono)

    def _wake(self) -> None:
        self._timer = None
        moment = now()
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= moment.mono:
            self.core.wake(moment)
            self.drive()
        self._arm()

    def _arm_sooner(self) -> None:
        """Rearm the timer if the next deadline of the protocol is before it."""
        deadline, timer = self.core.next_deadline(), self._timer
        if deadline is not None and timer is not None and timer.when() > self._loop_time(deadline):
            timer.cancel()
            self._timer = None
        self._arm()

    def _arm_beats(self) -> None:
        if self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None
        deadline = self.core.next_heartbeat()
        if deadline is not None and self._loop is not None and self.connection is not None:
            self._beat_timer = self._loop.call_at(self._loop_time(deadline), self._look)

    def _look(self) -> None:
        self._beat_timer = None
        moment = now()
        deadline = self.core.next_heartbeat()
        if self.connection is not None and deadline is not None and deadline <= moment.mono:
            self.core.check_heartbeat(self.connection.liveness(), moment)
            self.drive()
        self._arm_beats()

    def _disarm(self) -> None:
        for timer in (self._timer, self._beat_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._beat_timer = None

    @staticmethod
    def _is_here(loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether this is the thread of `loop`. True for a loop that does not run."""
        try:
            return asyncio.get_running_loop() is loop
        except RuntimeError:
            return not loop.is_running()

    async def _flush_before_close(self, seconds: float | None) -> bool:
        """Flush, and return whether the server has everything."""
        try:
            await self.flush(seconds, "processed")
        except TickertapeError as error:
            self.handlers.report(error)
            return False
        return True

    def _shut(self) -> None:
        refused = self.rejections.take()
        if self.connection is not None:
            self.connection.end_gently()
        self.core.close()
        self.drive()
        self._room.wake()
        self._disarm()
        if refused is not None:
            self.handlers.report(refused)

    # -- handlers ---------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish_tasks(self, deadline: float | None) -> None:
        waiting = self._tasks - {asyncio.current_task()}
        if not waiting:
            return
        _, late = await asyncio.wait(waiting, timeout=remaining(deadline))
        for task in late:
            task.cancel()
        if late:
            _, late = await asyncio.wait(late, timeout=cancelled_handler_seconds_max)
        if late:
            self.handlers.report(
                TimedOut(
                    f"Cannot close in time: {len(late)} handler(s) did not end after close() cancelled their "
                    "tasks. Let a handler end when it is cancelled."
                )
            )

    def _handle(self, handler: Callable[..., object], *arguments: object) -> None:
        self._spawn(self._run_handler(handler, *arguments))

    def _handle_each(self, handler: Handler, batch: MessageBatch) -> None:
        self._spawn(self._run_for_each(handler, batch))

    async def _run_for_each(self, handler: Handler, batch: MessageBatch) -> None:
        for message in batch:
            await self._run_handler(handler, message)

    async def _run_handler(self, handler: Callable[..., object], *arguments: object) -> None:
        try:
            outcome = handler(*arguments)
            if outcome is not None and inspect.isawaitable(outcome):
                await outcome
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything
            self.handlers.report(error)

    def _wake_publishers(self) -> None:
        self._room.wake()

    def _deliver_shared(self, effect: DeliverShared) -> None:
        together = []
        for sink, share, rows in effect.parts:
            if isinstance(sink, AsyncHandlerReceiver) and not sink.free:
                sink.push_share(share)
                together.append((sink, rows))
            else:
                sink.push(share)
        if together:
            self._order.put(together)

    def _order_together(self, sinks: Sequence[Sink]) -> None:
        handled = [sink for sink in sinks if isinstance(sink, AsyncHandlerReceiver) and sink.running]
        if len(handled) < 2:
            return
        if self._order.over:
            self._order = HandlerOrder()
            self._spawn(self._order.begin())
        self._order.join([sink for sink in handled if sink.free])

    def _connection_lost(self, lost: ConnectionDown) -> None:  # noqa: ARG002 - for overrides
        if self._disconnect_handler is not None:
            self._spawn(self._run_disconnect_handler())

    async def _run_disconnect_handler(self) -> None:
        async with self._handling_loss:
            handler = self._disconnect_handler
            if handler is not None:
                self._loss_handled_in = asyncio.current_task()
                try:
                    await self._run_handler(handler)
                finally:
                    self._loss_handled_in = None
