"""Driver of the asyncio HA client: one task performs the reconnect loop.

All code runs on one event loop, so it needs no lock. Cancellation of a waiting call leaves the client
consistent.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from contextlib import nullcontext
from typing import Any

from tickertape.base.errors import Disconnected, TickertapeError, TimedOut, UsageError
from tickertape.client.aio.driver import LOOP_ENDED, AsyncioDriver
from tickertape.client.aio.streams import AsyncMessageStream
from tickertape.client.aio.waiting import AsyncioWaiter, Notifier, perform, remaining
from tickertape.client.api.driver import DriverSettings
from tickertape.client.api.ha_driver import GetPassword, HADriver, Hangup, LogOn, Place, Step
from tickertape.client.common.connection_state import ConnectionState
from tickertape.client.common.effects import ConnectionDown
from tickertape.client.common.handlers import Handler
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import Timeout, now
from tickertape.client.ha import reconnect as machine
from tickertape.client.ha.policies import ApplicationPolicies, stored_of
from tickertape.client.protocol.core import ClientProtocol


class AsyncioHADriver(HADriver, AsyncioDriver):
    """Driver of an `AsyncHAClient`: keeps it connected."""

    lock = nullcontext()
    _managing = nullcontext()

    def __init__(self, core: ClientProtocol, settings: DriverSettings, policies: ApplicationPolicies) -> None:
        self._home: asyncio.AbstractEventLoop | None = None
        """The event loop of the last `connect` call."""
        self._reconnecting: asyncio.Task[None] | None = None
        self._changed = Notifier()
        """Wakes when the state machine has actions, becomes ready, or stops."""
        super().__init__(core, settings, policies)

    # -- calls ------------------------------------------------------------------------------------------

    async def connect(self, timeout: Timeout) -> None:
        """See `AsyncHAClient.connect_and_logon`."""
        seconds = self.seconds(timeout)
        self.check_not_forked()
        self._check_not_in_task("connect_and_logon")
        if self.logon.closed:
            raise self.closed_error()
        self._move_to_loop()
        if self._machine.ready:
            return
        call = AsyncioWaiter()
        self.feed(machine.Start())
        self._connect_waiters[call] = self._machine.begun
        try:
            await call.wait(seconds, "connect_and_logon")
        except TimedOut:
            late = self._not_in_time(seconds)
            self._stop_waiting(call, late)
            raise late from None
        except asyncio.CancelledError:
            self._stop_waiting(
                call, Disconnected("Cannot connect: the connection attempt was cancelled. Connect again.")
            )
            raise

    async def flush(self, timeout: Timeout, level: str) -> None:
        """See `AsyncHAClient.publish_flush`."""
        seconds = self.seconds(timeout)
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        while True:
            try:
                await super().flush(remaining(deadline), level)
            except Disconnected:
                if not self._flushes_again():
                    raise
                await self._until_lost(deadline)
            else:
                return

    async def _until_lost(self, deadline: float | None) -> None:
        """Wait until the loss of an ended connection is reported."""
        connection = self.connection
        if connection is not None and self.logon.ending is not None:
            await connection.changed.wait_for(lambda: connection.gone, remaining(deadline))

    async def close(self, timeout: Timeout) -> None:
        """See `AsyncHAClient.close`."""
        if not self.is_open:
            return
        loop, seconds = asyncio.get_running_loop(), self.seconds(timeout)
        deadline = None if seconds is None else loop.time() + seconds
        self._take_in(machine.CloseRequested())
        task = self._end_task()
        self._act_at_once()
        try:
            await super().close(seconds)
            if task is not None and task.get_loop() is loop:
                await asyncio.wait((task,), timeout=remaining(deadline))
        finally:
            self._close_own()

    async def open_stream(
        self, request: SubscribeRequest, timeout: Timeout, on_message: Handler | None
    ) -> AsyncMessageStream:
        """Send a subscribe. The subscription manager stores a subscription with a handler."""
        stream = await super().open_stream(request, timeout, on_message)
        if on_message is not None and not request.limited:
            self._remember(stored_of(request), stream)
        return stream

    async def name_subscriptions(self, what: str, sub_ids: tuple[str, ...], timeout: Timeout) -> None:
        """Send a command for existing subscriptions. An unsubscribe while they wait needs no server."""
        if self._drops_kept(what, sub_ids):
            self._naming(what, sub_ids)(AsyncioWaiter())
            self.drive()
        else:
            await super().name_subscriptions(what, sub_ids, timeout)

    def _stop_waiting(self, call: AsyncioWaiter, error: TickertapeError) -> None:
        """Cancel the wait of `call`. Without other callers, stop connecting with `error`."""
        self._connect_waiters.pop(call, None)
        if self._connect_waiters:
            return
        self._take_in(machine.Cancelled(error))
        if not self._machine.trying:
            self._end_task()
            if self.connection is not None:
                self.connection.discard(Disconnected(str(error)))
            self._act_at_once()

    def _end_task(self) -> asyncio.Task[None] | None:
        """Cancel the reconnect task and return it, unless it is the current task."""
        task, self._reconnecting = self._reconnecting, None
        if task is None or task is asyncio.current_task() or task.get_loop().is_closed():
            return None
        task.cancel()
        return task

    def _move_to_loop(self) -> None:
        """Reset the client if the event loop of its connection has ended."""
        running = asyncio.get_running_loop()
        before = self._home if self.connection is None else self._loop
        if before is None or before is running:
            self._home = running
            return
        if before.is_running():
            raise UsageError(
                f"Cannot use client {self.core.name!r}: it is connected on another event loop. Use it there."
            )
        self._reconnecting = None
        self._connect_waiters.clear()
        ended = Disconnected(LOOP_ENDED)
        if self._machine.trying:
            self._take_in(machine.DriverFailed(ended))
            self._machine.effects()
        if self.connection is not None:
            self.connection.discard(ended)
        self._home = running

    async def _until_ready(self, deadline: float | None, seconds: float | None, what: str) -> None:
        while self._must_wait() and self._reconnecting is not asyncio.current_task():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                raise self._not_in_time(seconds, f" for {what}") from None

    def _check_not_in_task(self, what: str) -> None:
        if self._reconnecting is not None and self._reconnecting is asyncio.current_task():
            raise UsageError(f"Cannot wait for {what} in the reconnect task. Make the call in another task.")

    def _connection_lost(self, lost: ConnectionDown) -> None:
        if self._concerns_machine(lost):
            self.feed(machine.ConnectionLost(lost.error))
        super()._connection_lost(lost)

    # -- reconnect task ---------------------------------------------------------------------------------

    def feed(self, happened: machine.Event) -> None:
        """Pass an event to the state machine and trigger its actions."""
        self._take_in(happened)
        if self._reconnecting is None and self._machine.trying:
            self._reconnecting = asyncio.get_running_loop().create_task(self._keep())
            self._reconnecting.add_done_callback(self._task_ended)
        self._changed.wake()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step runs no code of `_keep`.
        if self._reconnecting is task:
            self._reconnecting = None
            if self._machine.trying:
                self._task_was_cancelled()

    async def _keep(self) -> None:
        state, task = self._machine, asyncio.current_task()
        try:
            while True:
                for effect in state.effects():
                    await perform(self._steps(effect), self._take)
                if state.due:
                    continue
                if not state.trying:
                    break
                deadline = state.next_deadline()
                left = None if deadline is None else max(0.0, deadline - now().mono)
                await self._changed.wait_for(lambda: state.due, left)
                self._wake_machine()
        except asyncio.CancelledError:
            if self._reconnecting is task and not state.ready:
                self._task_was_cancelled()
            raise
        except GeneratorExit:  # The loop was closed before the task ended.
            raise
        except BaseException as error:
            # This should not happen. If it does, no caller waits for ever.
            failure = Disconnected(
                f"Cannot reconnect: the reconnect task failed: {error!r}. Report the defect, and create "
                "a new client."
            )
            self._take_in(machine.DriverFailed(failure))
            if self.connection is not None:
                self.connection.discard(failure)
            self._act_at_once()
            raise
        finally:
            if self._reconnecting is task:
                self._reconnecting = None

    def _task_was_cancelled(self) -> None:
        """Process a cancellation from outside, without slow work: the loop may be ending."""
        self._take_in(
            machine.DriverFailed(
                Disconnected("Cannot reconnect: the reconnect task was cancelled. Connect again.")
            )
        )
        for effect in self._machine.effects():
            if isinstance(effect, machine.Stopped):
                self._act(effect)

    def _act_at_once(self) -> None:
        """Perform the last actions of the stopped state machine, which do not wait."""
        for effect in self._machine.effects():
            self._act(effect)

    async def _take(self, step: Step) -> object:
        """Perform one step, and return its answer."""
        seconds = self._attempt_seconds
        if isinstance(step, Hangup):
            self._end_connection(step.why)
            return None
        if isinstance(step, GetPassword):
            given = step.given
            return await _given(given, seconds) if inspect.isawaitable(given) else given
        if isinstance(step, LogOn):
            self._loop = asyncio.get_running_loop()
            return await self._log_on(seconds)
        if isinstance(step, Place):
            return await super().open_stream(step.request, seconds, step.handler)
        call = AsyncioWaiter()
        self.core.resubscribe(call)
        self.drive()
        return await call.wait_idle(seconds, "resubscribing")

    def _end_connection(self, error: Disconnected) -> None:
        if self.connection is not None:
            self.connection.discard(error)

    def _tell_state(self, state: ConnectionState) -> None:
        self._report_state(state)

    def _wake_callers(self) -> None:
        self._changed.wake()


async def _given(password: Awaitable[str | None], seconds: float) -> str | None:
    task = asyncio.current_task()
    try:
        async with asyncio.timeout(seconds):
            return await password
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        # An awaitable inside the authenticator was cancelled, not the client.
        raise UsageError(
            "Cannot log on: the authenticator raised CancelledError. Let it return a password."
        ) from error
    except GeneratorExit as error:
        if not _is_running(task):
            raise  # The task was discarded with its loop.
        raise UsageError(
            "Cannot log on: the authenticator raised GeneratorExit. Let it return a password."
        ) from error


def _is_running(task: asyncio.Task[Any] | None) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False
