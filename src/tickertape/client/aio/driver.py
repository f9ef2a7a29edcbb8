"""Owns how the asyncio client runs its machine: one link, one timer, tasks for the application's handlers.

Must never decide what the protocol says (`core.py`). Everything happens on one event loop, so nothing needs a
lock; nothing here waits but on behalf of a caller, who may be cancelled and leaves the client as it was.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from tickertape.base.errors import Closed, Disconnected, StoreFull, TickertapeError, TimedOut, UsageError
from tickertape.base.units import within
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.aio.connection import AsyncioConnection
from tickertape.client.aio.tls_connection import AsyncioTlsConnection
from tickertape.client.aio.waiting import AsyncioWaiter, Notifier, remaining
from tickertape.client.api import exit_flush as exits
from tickertape.client.api.frontend import ClientFrontend, DisconnectHandler
from tickertape.client.common import fork_safety as forks
from tickertape.client.common.credentials import DEFAULT_WAYS, Credentials
from tickertape.client.common.effects import ConnectionDown, Effect, Send
from tickertape.client.common.handlers import Handler
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.sockets import not_connected
from tickertape.client.common.waiting import DEFAULT, Timeout, now
from tickertape.client.limits import cancelled_handler_seconds_max
from tickertape.client.protocol.core import BytesReceived, ConnectionEnded, ConnectionOpened
from tickertape.client.protocol.heartbeat import Interval
from tickertape.wire.commands import LoggedOn


class AsyncioDriver(ClientFrontend):
    """The half of `AsyncClient` that connects, waits and carries out. One event loop at a time may use it."""

    def __init__(
        self,
        name: str,
        uri: str,
        user: str | None,
        password: str | None,
        timeout: float | str | None,
        credentials: Credentials = DEFAULT_WAYS,
    ) -> None:
        super().__init__(name, uri, user, password, timeout, credentials)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._link: AsyncioConnection | None = None
        self._logon: AsyncioWaiter | None = None
        self._connecting = asyncio.Lock()
        self._handling_loss = asyncio.Lock()
        self._loss_handled_in: asyncio.Task[Any] | None = None
        self._room = Notifier()
        self._turn_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._beat_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        forks.register(self)
        exits.register(self)

    # -- connection -------------------------------------------------------------------------------------

    async def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """Connect and log on; nothing happens when the client is connected.

        `timeout` in seconds or text, None = wait for ever. What the publish store holds and the server lacks
        is sent again. Raises `Disconnected` (nobody answers), `TimedOut`, `Closed`, and what the server
        refuses the logon with: `Refused`, `NameInUse`, `BadVersion`, ...
        """
        seconds = self._seconds(timeout)
        self._check_not_forked()
        handler = self._loss_handled_in
        self._not_in_a_fight(handling_loss=handler is not None and handler is asyncio.current_task())
        async with self._connecting:
            loop = asyncio.get_running_loop()
            if self._link is not None and self._loop is not None and self._loop is not loop:
                if self._loop.is_running():
                    self._check_usable()
                self._link.discard(Disconnected("the event loop of the connection ended"))
            if self._link is not None and self._core.ending is not None:
                self._link.discard(Disconnected("the connection is over"))
            if self._core.logged_on is not None:
                return
            if self._core.closed:
                raise Closed("the client was closed")
            self._loop = loop
            await self._log_on(seconds)

    async def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send what was published, wait until the server has it, and disconnect. Further calls raise
        `Closed`.

        `publish` raises it from the beginning on, in other tasks too.
        `timeout` bounds the waiting, in seconds or text; handlers that still run then are cancelled, and one
        that goes on all the same is left to itself. Never raises but when it is cancelled, and then it is
        closed all the same: the exception listener is told what went wrong, and how many messages have no
        answer. A publish store keeps what is not persisted. In a forked child nothing happens.
        """
        if self._core.closed or self._forked:
            return
        seconds = self._seconds(timeout)
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        link = self._link
        self._publishing.end()
        self._room.wake()
        answered = False
        try:
            if self.connected and self._loop is loop and self._core.acks.unsettled():
                answered = await self._flush_before_close(seconds)
        except asyncio.CancelledError:
            self._tell_unanswered()
            self._shut()
            if link is not None:
                link.discard(Disconnected("closing was cancelled"))
            raise
        if not answered:
            self._tell_unanswered()
        self._shut()
        try:
            if link is not None and self._loop is loop:
                await link.changed.wait_for(lambda: link.gone, remaining(deadline))
        finally:
            if link is not None and not link.gone:
                link.discard(Disconnected("the server did not take what was sent"))
        await self._finish_tasks(deadline)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def set_heartbeat(self, interval: Interval | None, idle: Interval | None = None) -> None:
        """Have both sides show that they live, so that a dead connection ends instead of standing still.

        From now on, also on later connections, each side says something every `interval` (seconds or text,
        0.1 to 3,600 seconds; None: no heartbeat, the default). The server ends the connection when nothing
        came from this client for two intervals; the client ends it, with `HeartbeatMissed` as the reason,
        when nothing came from the server for `idle` (seconds or text, above `interval`, default twice as
        much). What has arrived counts, read or not. Raises `BadOption`,
        and `UsageError` on an HA client that is connected or connecting.
        """
        self._check_usable()
        self._check_heartbeat()
        self._core.set_heartbeat(interval, idle, now())
        self._drive()
        self._arm_beats()

    def set_disconnect_handler(self, handler: DisconnectHandler | None) -> None:
        """Call `handler(client)` once for each connection that is lost, not for `close`.

        A function or a coroutine function; it runs in a task of its own, may await `connect`, and losses are
        handled one after the other. When another process took over the client name, `connect` raises
        `NameInUse` there: the two would throw each other out for ever.
        """
        self._disconnect_handler = handler

    async def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """Wait until everything sent on this connection is persisted, with or without a publish store.

        `level="processed"`: until the server has it. `timeout` in seconds or text, None = as long as the
        connection lasts. A settlement that has no room in the publish store is waited for. Raises `TimedOut`
        (the store is as it was), `Disconnected`, `Closed`, `PublisherTakenOver` (another process published
        under this name), and, unless there is a failed-write handler, `PublishRejected` when the server
        refused messages since the last flush.
        """
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        while True:
            try:
                await self._call(
                    lambda call: self._core.flush(call, level),
                    remaining(deadline),
                    f"publish_flush ({level})",
                )
                break
            except StoreFull as full:
                self._drive()
                await self._wait_for_store(full, seconds, deadline)
        refused = self._publishing.rejections.take()
        if refused is not None:
            raise refused

    # -- called by the link and the loop ----------------------------------------------------------------

    def opened(self, link: AsyncioConnection) -> None:
        """Internal: the connection stands."""
        assert self._logon is not None
        if self._core.closed:
            self._logon.settle(Closed("the client was closed"))
            link.discard(Disconnected("the client was closed"))
            return
        self._link = link
        self._core.receive(ConnectionOpened(self._logon), now())
        self._drive()
        self._arm_beats()

    def buffer(self) -> memoryview:
        """Internal: where the link reads into."""
        return self._core.buffer()

    def arrived(self, count: int) -> None:
        """Internal: bytes came."""
        self._core.receive(BytesReceived(count), now())
        self._drive()
        self._arm()

    def written(self, link: AsyncioConnection, frame: int) -> None:
        """Internal: publish frames were written."""
        if link is self._link:
            self._core.written(frame)
            self._drive()

    def lost(self, link: AsyncioConnection, error: Disconnected) -> None:
        """Internal: the connection is gone."""
        if link is not self._link:
            return
        self._link = None
        self._disarm()
        try:
            self._publishing.interrupted()  # a second Ctrl-C may have ended the loop in the middle of a step
        finally:
            try:
                self._core.receive(ConnectionEnded(error), now())
            finally:  # whatever comes in between: the loss is told
                self._drive()
                self._room.wake()

    def is_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Internal: whether it is connected on `loop`."""
        return self._loop is loop and self._may_end()

    async def flush_with_loop(self, seconds: float) -> None:
        """Internal: the loop ends, and nobody closed the client."""
        if self.connected and self._core.acks.unsettled():
            with suppress(TickertapeError):  # what is not answered is counted at the end of the program
                await self.publish_flush(timeout=self._at_most(seconds))

    async def _close_at_end(self, seconds: float) -> None:
        with self._ending():
            await self.close(timeout=self._at_most(seconds))

    def end_with_program(self, seconds: float) -> exits.ProgramEnd | None:
        """Internal: the program ends, and nobody closed the client; its loop may have ended before."""
        if not self._may_end():
            return None
        loop = self._loop
        with suppress(Exception):  # a loop may refuse in more than one way: then the messages are counted
            if loop is not None and loop.is_running():
                asyncio.run_coroutine_threadsafe(self._close_at_end(seconds), loop).result(seconds)
            elif loop is not None and not loop.is_closed():
                loop.run_until_complete(self._close_at_end(seconds))
        if not self._core.closed:
            with self._ending():
                self._unsent = self._publishing.unanswered_count()
                link = self._link
                self._core.close()
                if link is not None:
                    link.discard(Disconnected("the event loop of the connection ended"))
        return exits.ProgramEnd(self.name, self._unsent)

    def forked(self) -> None:
        """Internal: this is a forked child, which has no part in the parent's event loop."""
        super().forked()
        link, self._link = self._link, None
        if link is not None:
            link.let_go()

    # -- inside -----------------------------------------------------------------------------------------

    async def _log_on(self, seconds: float | None) -> LoggedOn:
        """Connect to `_address` and log on; where that fails, there is no connection afterwards."""
        await exits.watch(self)
        link = self._new_link()
        self._logon = AsyncioWaiter()
        try:
            async with asyncio.timeout(seconds):
                await link.dial()
                outcome = await self._logon.wait(None, "the logon")
        except TickertapeError:
            raise
        except TimeoutError as error:
            late = TimedOut(f"no logon at {self._address.uri} {within(seconds)}")
            link.discard(Disconnected(str(late)))
            raise late from error
        except (OSError, UnicodeError) as error:
            raise not_connected(self._address, error) from error
        except asyncio.CancelledError:
            link.discard(Disconnected("connecting was cancelled"))
            raise
        assert isinstance(outcome, LoggedOn)
        return outcome

    def _new_link(self) -> AsyncioConnection:
        address = self._address
        if not address.tls:
            return AsyncioConnection(address, self)
        return AsyncioTlsConnection(
            address, self, self._credentials.context(), self._credentials.name_of(address)
        )

    def _drive(self) -> None:
        """Carry out what the machine asks for: sends first, in the order in which frames were made."""
        link = self._link
        buffers: list[Any] = []
        later: list[Effect] = []
        for effect in self._core.effects():
            if type(effect) is Send:
                buffers += effect.buffers
            else:
                later.append(effect)
        if buffers and link is not None:
            link.send(buffers)
        if (frame := self._publishing.unwritten_frame) and link is not None and self._loop is not None:
            link.report_written(frame, self._loop)
        if later:
            self._settle(later, link)

    def _arm(self) -> None:
        """One timer, for the next deadline of the machine; one that fires too early does no harm."""
        deadline = self._core.next_deadline()
        if deadline is None or self._timer is not None or self._loop is None:
            return
        self._timer = self._loop.call_at(self._loop_time(deadline), self._wake)

    def _loop_time(self, deadline: float) -> float:
        assert self._loop is not None
        return self._loop.time() + max(0.0, deadline - now().mono)

    def _wake(self) -> None:
        self._timer = None
        moment = now()
        deadline = self._core.next_deadline()
        if deadline is not None and deadline <= moment.mono:
            self._core.wake(moment)
            self._drive()
        self._arm()

    def _arm_sooner(self) -> None:
        """As `_arm`, where the machine may want to be woken before the timer fires."""
        deadline, timer = self._core.next_deadline(), self._timer
        if deadline is not None and timer is not None and timer.when() > self._loop_time(deadline):
            timer.cancel()
            self._timer = None
        self._arm()

    def _arm_beats(self) -> None:
        if self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None
        deadline = self._core.next_heartbeat()
        if deadline is not None and self._loop is not None and self._link is not None:
            wait = max(0.0, deadline - now().mono)
            self._beat_timer = self._loop.call_at(self._loop.time() + wait, self._look)

    def _look(self) -> None:
        self._beat_timer = None
        moment = now()
        deadline = self._core.next_heartbeat()
        if self._link is not None and deadline is not None and deadline <= moment.mono:
            self._core.check_heartbeat(self._link.liveness(), moment)
            self._drive()
        self._arm_beats()

    def _disarm(self) -> None:
        for timer in (self._timer, self._beat_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._beat_timer = None

    async def _call(self, begin: Callable[[AsyncioWaiter], None], timeout: Timeout, what: str) -> object:
        seconds = self._seconds(timeout)
        self._check_usable()
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        await self._until_ready(deadline, seconds, what)
        call = AsyncioWaiter()
        begin(call)
        self._drive()
        return await call.wait(remaining(deadline), what, seconds)

    async def _wait_for_store(self, full: StoreFull, seconds: float | None, deadline: float | None) -> None:
        """Wait until there may be room for what was refused with `full`; `deadline` is where `seconds` end.
        Raises `TimedOut`, and `Disconnected` where nobody makes room."""
        if not self._publishing.starved:
            return
        self._check_worth_waiting(full, reconnects=self._reconnects(seconds))
        try:
            async with asyncio.timeout_at(deadline):
                await self._room.wait()
        except TimeoutError:
            raise TimedOut(f"no room {within(seconds)}: {full}") from full

    async def _until_ready(self, deadline: float | None, seconds: float | None, what: str) -> None:
        """Wait while somebody is connecting; `deadline` is where the `seconds` of the call `what` end. Here
        nobody is: a call on a lost connection raises."""

    def consumed(self, request: SubscribeRequest, cost: int) -> None:
        """Internal: report what a stream owes."""
        self._check_not_forked()
        self._core.consumed(request.context.sub_id, cost, request)
        if self._waiting:
            self._drive()

    def _check_not_forked(self) -> None:
        if self._forked:
            raise forks.forked_error()

    def _check_usable(self) -> None:
        self._check_not_forked()
        if self._link is not None and self._loop is not asyncio.get_running_loop():
            raise UsageError("this client is connected on another event loop: use it there, or connect again")

    @staticmethod
    def _is_here(loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this is the thread of `loop`, as far as it runs."""
        try:
            return asyncio.get_running_loop() is loop
        except RuntimeError:
            return not loop.is_running()

    async def _flush_before_close(self, seconds: float | None) -> bool:
        """Whether the server has everything."""
        try:
            await self.publish_flush(timeout=seconds, level="processed")
        except TickertapeError as error:
            self._handlers.tell(error)
            return False
        return True

    def _shut(self) -> None:
        refused = self._publishing.rejections.take()
        if self._link is not None:
            self._link.gently = True
        self._core.close()
        self._drive()
        self._room.wake()
        self._disarm()
        if refused is not None:
            self._handlers.tell(refused)

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
            self._handlers.tell(TimedOut(f"a handler goes on though it was cancelled by close ({len(late)})"))

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
            self._handlers.tell(error)

    def _room_again(self) -> None:
        self._room.wake()

    def _down(self, lost: ConnectionDown) -> None:  # noqa: ARG002 - for those who override it
        if self._disconnect_handler is not None:
            self._spawn(self._run_disconnect_handler())

    async def _run_disconnect_handler(self) -> None:
        async with self._handling_loss:
            handler = self._disconnect_handler
            if handler is not None:
                self._loss_handled_in = asyncio.current_task()
                try:
                    await self._run_handler(handler, self)
                finally:
                    self._loss_handled_in = None
