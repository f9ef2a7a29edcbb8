"""Owns the asyncio HA client: one task that carries out its session, and calls that wait for a connection.

Must never decide what comes next (`session.py`). Everything happens on one event loop, so nothing needs a
lock; whoever waits may be cancelled and leaves the client as it was.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any, Self

from tickertape.base.errors import (
    Closed,
    Disconnected,
    TickertapeError,
    TimedOut,
    UsageError,
)
from tickertape.client.aio.client import AsyncClient
from tickertape.client.aio.streams import AsyncHandledStream, AsyncMessageStream
from tickertape.client.aio.waiting import AsyncioWaiter, Notifier, remaining
from tickertape.client.api.ha_frontend import Consulting, HAFrontend
from tickertape.client.bookmark_store import BookmarkStore
from tickertape.client.common.effects import ConnectionDown, End, SinkEffect, State
from tickertape.client.common.handlers import Handler
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import DEFAULT, Timeout, now
from tickertape.client.ha import reconnect as machine
from tickertape.client.ha.policies import as_failure, request_of, stored_of
from tickertape.client.ha.reconnect import Action, ReconnectStep
from tickertape.client.ha.subscription_manager import StoredSubscription
from tickertape.client.publish_store import PublishStore


class AsyncHAClient(HAFrontend, AsyncClient):
    """An `AsyncClient` that gets itself a connection to one of several servers, and another when it is lost.

    The parameters, and what it does, are those of `HAClient`, in a task of its own. What the chooser, the
    delay strategy and the subscription manager do must not wait; the methods of an authenticator that give a
    password may be coroutine functions. `async with` connects, and closes at the end. It belongs to the event
    loop on which it connected; when that has ended, `connect_and_logon` begins anew on another one.

    Raises `BadName`, `BadOption`, `StoreError`.
    """

    def _make_front(
        self,
        name: str,
        publish_store: PublishStore | None,
        bookmark_store: BookmarkStore | None,
        timeout: float | str | None,
    ) -> None:
        AsyncClient.__init__(
            self,
            name,
            "",
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            timeout=timeout,
        )
        self._home: asyncio.AbstractEventLoop | None = None
        """The loop on which it was told to connect."""
        self._keeper: asyncio.Task[None] | None = None
        self._beginners: dict[AsyncioWaiter, int] = {}
        """Who waits in `connect_and_logon`, and for which beginning of the session."""
        self._changed = Notifier()
        """The session has something to do, or has come where calls may be made, or nowhere."""

    # -- connection -------------------------------------------------------------------------------------

    async def connect_and_logon(self, timeout: Timeout = None) -> None:
        """Connect to one of the servers, and keep a connection from then on, until `close`.

        It returns when everything may be called; at once when that is so. `timeout` in seconds or text; None
        (default) = try until the chooser has no server or the delay strategy gives up, which raises
        `Disconnected`; the client is as before the call then, and the same holds for `TimedOut`. Raises
        `Closed`, and `NameInUse` when another connection took over the client name twice.
        """
        seconds = self._seconds(timeout)
        self._check_not_forked()
        self._not_in_keeper("connect_and_logon")
        if self._core.closed:
            raise Closed("the client was closed")
        self._move_to_loop()
        if self._session.ready:
            return
        call = AsyncioWaiter()
        self._feed(machine.Start())
        self._beginners[call] = self._session.begun
        try:
            await call.wait(seconds, "connect_and_logon")
        except TimedOut:
            late = self._not_in_time(seconds)
            self._abandon_beginning(call, late)
            raise late from None
        except asyncio.CancelledError:
            self._abandon_beginning(call, Disconnected("connecting was cancelled"))
            raise

    async def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """As `connect_and_logon`, by default for as long as the client's own timeout says."""
        await self.connect_and_logon(self._seconds(timeout))

    async def disconnect(self, *, timeout: Timeout = DEFAULT) -> None:
        """The reference's name for `close`."""
        await self.close(timeout=timeout)

    async def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """As that of `AsyncClient`. With a publish store it goes on through lost connections, as long as
        `timeout` (None = until the client stops): the store has everything, and the client connects again."""
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        while True:
            try:
                await super().publish_flush(remaining(deadline), level)
            except Disconnected:
                if self._publishing.store is None or not self._session.trying:
                    raise
                await self._until_lost(deadline)
            else:
                return

    async def _until_lost(self, deadline: float | None) -> None:
        """Wait while a connection is over whose loss was not told yet."""
        link = self._link
        if link is not None and self._core.ending is not None:
            await link.changed.wait_for(lambda: link.gone, remaining(deadline))

    async def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send what was published, wait until the server has it, and disconnect for good.

        While there is no connection nothing is sent: a publish store on disk keeps it for the next process.
        `timeout` bounds the waiting, in seconds or text; handlers that still run then are cancelled. Never
        raises but when it is cancelled, and then it is closed all the same: what went wrong is told to the
        exception listener. In a forked child nothing happens.
        """
        if self._core.closed or self._forked:
            return
        loop, seconds = asyncio.get_running_loop(), self._seconds(timeout)
        deadline = None if seconds is None else loop.time() + seconds
        self._take_in(machine.CloseRequested())
        keeper = self._end_keeper()
        self._carry_at_once()
        try:
            await super().close(timeout=seconds)
            if keeper is not None and keeper.get_loop() is loop:
                await asyncio.wait((keeper,), timeout=remaining(deadline))
        finally:
            self._close_own()

    async def __aenter__(self) -> Self:
        try:
            await self.connect_and_logon()
        except BaseException:
            await self.close()
            raise
        return self

    # -- inside: the callers ----------------------------------------------------------------------------

    def _abandon_beginning(self, call: AsyncioWaiter, error: TickertapeError) -> None:
        """Nobody waits for `call` any more, because of `error`."""
        self._beginners.pop(call, None)
        if self._beginners:
            return
        self._take_in(machine.Cancelled(error))
        if not self._session.trying:
            self._end_keeper()
            if self._link is not None:
                self._link.discard(Disconnected(str(error)))
            self._carry_at_once()

    def _end_keeper(self) -> asyncio.Task[None] | None:
        """Cancel the task that connects, and return it, unless it is the one that asks for it."""
        keeper, self._keeper = self._keeper, None
        if keeper is None or keeper is asyncio.current_task() or keeper.get_loop().is_closed():
            return None
        keeper.cancel()
        return keeper

    def _move_to_loop(self) -> None:
        """Begin anew when the event loop of the connection has ended."""
        running = asyncio.get_running_loop()
        before = self._home if self._link is None else self._loop
        if before is None or before is running:
            self._home = running
            return
        if before.is_running():
            raise UsageError("this client is connected on another event loop: use it there")
        self._keeper = None
        self._beginners.clear()
        ended = Disconnected("the event loop of the connection ended")
        if self._session.trying:
            self._take_in(machine.DriverFailed(ended))
            self._session.effects()
        if self._link is not None:
            self._link.discard(ended)
        self._home = running

    async def _until_ready(self, deadline: float | None, seconds: float | None, what: str) -> None:
        session = self._session
        while session.trying and not session.ready and self._keeper is not asyncio.current_task():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                raise self._not_in_time(seconds, f" for {what}") from None

    def _not_in_keeper(self, what: str) -> None:
        if self._keeper is not None and self._keeper is asyncio.current_task():
            raise UsageError(f"{what} would wait for the task that connects, which it was called in")

    async def _open(
        self,
        request: SubscribeRequest,
        timeout: Timeout,
        on_message: Handler | None,
        *,
        limited: bool = False,
    ) -> AsyncMessageStream:
        stream = await super()._open(request, timeout, on_message, limited=limited)
        if on_message is not None and not limited:
            self._remember(stored_of(request), stream)
        return stream

    async def _name(self, command: str, sub_ids: tuple[str, ...], timeout: Timeout) -> None:
        if self._drops_kept(command, sub_ids):
            self._core.unsubscribe(AsyncioWaiter(), sub_ids)
            self._drive()
        else:
            await super()._name(command, sub_ids, timeout)

    def _remember(self, stored: StoredSubscription, stream: AsyncMessageStream) -> None:
        if stream.end_reason in (None, "closed"):  # else it is over, or replaced, and that was told
            self._policies.subscribed(stored)

    def _tell_sink(self, effect: SinkEffect) -> None:
        super()._tell_sink(effect)
        if (
            isinstance(effect, End)
            and type(effect.sink) is AsyncHandledStream
            and self._is_over(effect.sink.sub_id, effect.reason)
        ):
            self._policies.unsubscribed(effect.sink.sub_id)

    def _down(self, lost: ConnectionDown) -> None:
        if self._concerns_session(lost):
            self._feed(machine.ConnectionLost(lost.error))
        super()._down(lost)

    # -- inside: the task that connects -----------------------------------------------------------------

    def _feed(self, happened: machine.Event) -> None:
        """Tell the session, and have it carried out."""
        self._take_in(happened)
        if self._keeper is None and self._session.trying:
            self._keeper = asyncio.get_running_loop().create_task(self._keep())
            self._keeper.add_done_callback(self._never_kept)
        self._changed.wake()

    def _never_kept(self, keeper: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step runs none of its code.
        if self._keeper is keeper:
            self._keeper = None
            if self._session.trying:
                self._keeper_was_cancelled()

    async def _keep(self) -> None:
        session, keeper = self._session, asyncio.current_task()
        try:
            while True:
                for effect in session.effects():
                    await self._carry(effect)
                if session.due:
                    continue
                if not session.trying:
                    break
                deadline = session.next_deadline()
                left = None if deadline is None else max(0.0, deadline - now().mono)
                await self._changed.wait_for(lambda: session.due, left)
                self._wake_session()
        except asyncio.CancelledError:
            if self._keeper is keeper and not session.ready:
                self._keeper_was_cancelled()
            raise
        except GeneratorExit:  # its loop was closed without ending it: nothing can be done there
            raise
        except BaseException as error:
            # Nothing should come here; if it does, nobody is left waiting.
            failure = Disconnected(f"the task that connects failed: {error!r}")
            self._take_in(machine.DriverFailed(failure))
            if self._link is not None:
                self._link.discard(failure)
            self._carry_at_once()
            raise
        finally:
            if self._keeper is keeper:
                self._keeper = None

    def _keeper_was_cancelled(self) -> None:
        """By somebody else, who may be about to end the loop: nothing is begun that takes time."""
        self._take_in(machine.DriverFailed(Disconnected("the task that connects was cancelled")))
        for effect in self._session.effects():
            if isinstance(effect, machine.Stopped):
                self._carry_now(effect)

    def _carry_at_once(self) -> None:
        """Carry out what is left when the session has stopped: none of that has to be awaited."""
        for effect in self._session.effects():
            self._carry_now(effect)

    async def _carry(self, effect: Action) -> None:
        if isinstance(effect, machine.Connect):
            self._feed(await self._attempt(effect))
        elif isinstance(effect, machine.Resubscribe):
            self._feed(await self._resubscribe(effect.attempt))
        else:
            self._carry_now(effect)

    def _carry_now(self, effect: Action) -> None:
        if isinstance(effect, Consulting):
            self._consult(effect)
        elif isinstance(effect, machine.ResumePublishing):
            self._core.resume_publishing(now())
            self._drive()
        elif isinstance(effect, machine.Disconnect):
            if self._link is not None:
                self._link.discard(effect.error)
        elif isinstance(effect, State):
            self._tell(effect.state)
        elif isinstance(effect, machine.Established):
            self._settle_beginners(self._session.begun, None)
        elif isinstance(effect, machine.Stopped):
            told = self._settle_beginners(effect.begun, effect.error)
            if not (told or effect.known):
                self._handlers.tell(effect.error)

    def _settle_beginners(self, begun: int, outcome: TickertapeError | None) -> bool:
        """Let those go on who wait for that beginning or an earlier one; whether there was one."""
        calls = [call for call, number in self._beginners.items() if number <= begun]
        for call in calls:
            del self._beginners[call]
            call.settle(outcome)
        self._changed.wake()
        self._room.wake()
        return bool(calls)

    async def _attempt(self, effect: machine.Connect) -> machine.Event:
        policies, seconds = self._policies, self._attempt_seconds
        try:
            if self._link is not None:
                self._link.discard(Disconnected("another connection is made"))
            self._address, user, password = policies.begin_attempt(effect.uri)
            if inspect.isawaitable(password):
                password = await _given(password, seconds)
            if self._session.step is not ReconnectStep.CONNECTING:
                return machine.AttemptFailed(effect.attempt, Disconnected("it is not wanted any more"))
            self._core.set_credentials(user, password)
            policies.uses(user, password)
            self._loop = asyncio.get_running_loop()
            self._instance = (await self._log_on(seconds)).instance
        except Exception as error:  # noqa: BLE001 - an authenticator and a resolver may raise anything
            return machine.AttemptFailed(effect.attempt, as_failure(error, effect.uri))
        return machine.LogonSucceeded(effect.attempt)

    async def _resubscribe(self, attempt: int) -> machine.Event:
        try:
            if not self._restored:
                await self._restore()
                self._restored = True
            call = AsyncioWaiter()
            self._core.resubscribe(call)
            self._drive()
            await call.wait_idle(self._attempt_seconds, "resubscribing")
        except TickertapeError as error:
            return machine.Resubscribed(attempt, error)
        return machine.Resubscribed(attempt)

    async def _restore(self) -> None:
        """Place what the subscription manager brings back, where it is not there already."""
        for stored, handler in self._policies.to_restore():
            if stored.sub_id in self._core.subscriptions:
                continue
            try:
                request = request_of(stored, self.bookmark_store)
                stream = await super()._open(request, self._attempt_seconds, handler)
            except (Disconnected, TimedOut):
                raise
            except TickertapeError as error:
                self._handlers.tell(error)
            else:
                self._remember(stored, stream)


async def _given(password: Awaitable[str | None], seconds: float) -> str | None:
    task = asyncio.current_task()
    try:
        async with asyncio.timeout(seconds):
            return await password
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        # What the authenticator waits for was cancelled, not the client.
        raise UsageError("the authenticator gave no password: what it waited for was cancelled") from error
    except GeneratorExit as error:
        if not _is_running(task):
            raise  # the task was thrown away with its loop
        raise UsageError("the authenticator gave no password: it raised GeneratorExit") from error


def _is_running(task: asyncio.Task[Any] | None) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False
