"""Driver of the blocking HA client: one thread performs the reconnect loop.

Invariant: that thread does not hold the lock of the client during calls of application objects, connection
attempts, or waits for a server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from threading import current_thread, get_ident
from typing import Any

from tickertape.base.errors import Disconnected, TickertapeError, TimedOut, UsageError
from tickertape.base.text_format import wrong_type
from tickertape.client.api.driver import DriverSettings
from tickertape.client.api.ha_driver import GetPassword, HADriver, Hangup, LogOn, Place, Step
from tickertape.client.blocking.connection import SocketConnection
from tickertape.client.blocking.driver import ThreadDriver
from tickertape.client.blocking.streams import MessageStream
from tickertape.client.blocking.waiting import ThreadWaiter, perform
from tickertape.client.common.connection_state import ConnectionState
from tickertape.client.common.effects import ConnectionDown, Effect
from tickertape.client.common.handlers import Handler
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import Timeout, remaining
from tickertape.client.ha import reconnect as machine
from tickertape.client.ha.policies import ApplicationPolicies, stored_of
from tickertape.client.ha.reconnect import Action
from tickertape.client.protocol.core import ClientProtocol
from tickertape.client.publishing.send_buffer import NO_OWNER


class HAThreadDriver(HADriver, ThreadDriver):
    """Driver of an `HAClient`: keeps it connected."""

    def __init__(self, core: ClientProtocol, settings: DriverSettings, policies: ApplicationPolicies) -> None:
        self._managing = threading.Lock()
        self._reconnecting: threading.Thread | None = None
        self._resubscribing: ThreadWaiter | None = None
        """The pending resubscribe call. None after the client is closed."""
        self._loss_told_on = NO_OWNER
        """The thread that reports a loss to the application."""
        super().__init__(core, settings, policies)
        self._changed = threading.Condition(self.lock)
        """Notified when the state machine has actions, becomes ready, or stops."""

    # -- calls ------------------------------------------------------------------------------------------

    def connect(self, timeout: Timeout) -> None:
        """See `HAClient.connect_and_logon`."""
        seconds = self.seconds(timeout)
        self.check_may_wait("connect_and_logon")
        call = ThreadWaiter()
        with self.lock:
            if self.logon.closed:
                raise self.closed_error()
            if self._machine.ready:
                return
            self.feed(machine.Start())
            self._connect_waiters[call] = self._machine.begun
        try:
            call.wait(seconds, "connect_and_logon")
        except BaseException as error:
            if call.settled:
                raise
            if not isinstance(error, TimedOut):
                self._stop_waiting(
                    call,
                    Disconnected("Cannot connect: the connection attempt was interrupted. Connect again."),
                )
                raise
            late = self._not_in_time(seconds)
            self._stop_waiting(call, late)
            raise late from None

    def flush(self, timeout: Timeout, level: str) -> None:
        """See `HAClient.publish_flush`."""
        seconds = self.seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                super().flush(remaining(deadline), level)
            except Disconnected:
                if not self._flushes_again():
                    raise
                self._wait_for_loss(remaining(deadline))
            else:
                return

    def close(self, timeout: Timeout) -> None:
        """See `HAClient.close`."""
        if not self.is_open:
            return
        seconds = self.seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        apart = not self._on_receive_thread()
        with self.lock:
            thread = self._reconnecting
            self.feed(machine.CloseRequested())
        super().close(seconds)
        if (resubscribing := self._resubscribing) is not None:
            # A handler may block the receive thread, and with it the answer of this call.
            resubscribing.settle(self.closed_error())
        # The thread may wait for a socket or an application object, which cannot be interrupted.
        if thread is not None and apart and not self._dialling:
            thread.join(remaining(deadline))
        self._close_own()

    def forked(self) -> None:
        """Refuse every call: a forked child has no reconnect thread."""
        super().forked()
        refusing: Any = self.lock
        self._changed = self._managing = refusing

    def open_stream(
        self, request: SubscribeRequest, timeout: Timeout, on_message: Handler | None
    ) -> MessageStream:
        """Send a subscribe. The subscription manager stores a subscription with a handler."""
        stream = super().open_stream(request, timeout, on_message)
        if on_message is not None and not request.limited:
            self._remember(stored_of(request), stream)
        return stream

    def name_subscriptions(self, what: str, sub_ids: tuple[str, ...], timeout: Timeout) -> None:
        """Send a command for existing subscriptions. An unsubscribe while they wait needs no server."""
        if self._drops_kept(what, sub_ids):
            self.send_only(self._naming(what, sub_ids))
        else:
            super().name_subscriptions(what, sub_ids, timeout)

    def _stop_waiting(self, call: ThreadWaiter, error: TickertapeError) -> None:
        """Cancel the wait of `call`. Without other callers, stop connecting with `error`."""
        with self.lock:
            self._connect_waiters.pop(call, None)
            if not self._connect_waiters:
                self.feed(machine.Cancelled(error))
            connection = None if self._machine.trying else self.connection
        if connection is not None:
            connection.hang_up(Disconnected(str(error)))

    def _until_ready(self, deadline: float | None, seconds: float | None, what: str) -> None:
        while self._must_wait() and self._reconnecting is not current_thread():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise self._not_in_time(seconds, f" for {what}")
            self._changed.wait(left)

    def _on_receive_thread(self) -> bool:
        # A wait on any of these threads would prevent the reconnect.
        return (
            self._reconnecting is current_thread()
            or self._loss_told_on == get_ident()
            or super()._on_receive_thread()
        )

    def check_may_wait(self, what: str) -> None:
        if self._reconnecting is current_thread():
            if self._restoring:
                return
            raise UsageError(
                f"Cannot wait for {what} on the reconnect thread. Make the call on another thread."
            )
        super().check_may_wait(what)

    def _begin_telling_loss(self, pending: Sequence[Effect]) -> None:
        # Before the loss is reported: calls in reaction to it then wait for the next connection.
        self._loss_told_on = get_ident()
        for effect in pending:
            if isinstance(effect, ConnectionDown) and self._concerns_machine(effect):
                self.feed(machine.ConnectionLost(effect.error))

    def _end_telling_loss(self) -> None:
        with self.lock:
            if self._loss_told_on == get_ident():
                self._loss_told_on = NO_OWNER
                self._changed.notify_all()

    def _connection_lost(self, lost: ConnectionDown) -> None:
        self._end_telling_loss()
        super()._connection_lost(lost)

    # -- reconnect thread -------------------------------------------------------------------------------

    def feed(self, happened: machine.Event) -> None:
        """Pass an event to the state machine, under the lock, and trigger its actions."""
        with self.lock:
            self._take_in(happened)
            if self._reconnecting is None and self._machine.trying:
                name = f"tickertape {self.core.name}"
                self._reconnecting = threading.Thread(target=self._keep, name=name, daemon=True)
                self._reconnecting.start()
            self._changed.notify_all()

    def _keep(self) -> None:
        try:
            while effects := self._next_effects():
                for effect in effects:
                    perform(self._steps(effect), self._take)
        except BaseException as error:
            # This should not happen. If it does, no caller waits for ever.
            failure = Disconnected(
                f"Cannot reconnect: the reconnect thread failed: {error!r}. Report the defect, and create "
                "a new client."
            )
            with self.lock:
                self._take_in(machine.DriverFailed(failure))
                self._reconnecting = None
                connection = self.connection
            if connection is not None:
                connection.hang_up(failure)
            for effect in self._machine.effects():
                self._act(effect)
            raise

    def _next_effects(self) -> Sequence[Action]:
        """Wait for the next actions and return them, or none when the state machine has stopped."""
        state = self._machine
        with self.lock:
            while True:
                # A loss must be reported to the sinks before messages of the next connection.
                while state.trying and self._loss_told_on != NO_OWNER:
                    self._changed.wait()
                effects = state.effects()
                if effects:
                    return effects
                if not state.trying:
                    self._reconnecting = None
                    return ()
                deadline = state.next_deadline()
                left = None if deadline is None else deadline - time.monotonic()
                if left is None or left > 0:
                    self._changed.wait(left)
                self._wake_machine()

    def _take(self, step: Step) -> object:
        """Perform one step, and return its answer."""
        connection, seconds = self.connection, self._attempt_seconds
        if isinstance(step, Hangup):
            if connection is not None:
                self._abandon(connection, step.why)
            return None
        if isinstance(step, GetPassword):
            given = step.given
            if not (given is None or isinstance(given, str)):
                raise UsageError(wrong_type("password from the authenticator", given, "str"))
            return given
        if isinstance(step, LogOn):
            return self._log_on(seconds)
        if isinstance(step, Place):
            return super().open_stream(step.request, seconds, step.handler)
        call = ThreadWaiter()
        with self.lock:
            self.core.resubscribe(call)
        self.drive()
        return self._answer(call, None, seconds, "resubscribing")

    def _end_connection(self, error: Disconnected) -> None:
        connection = self.connection
        if connection is not None:
            connection.hang_up(error)

    def _tell_state(self, state: ConnectionState) -> None:
        self._due_states.append(state)
        self._tell_states()

    def _wake_callers(self) -> None:
        with self.lock:
            self._changed.notify_all()

    def _dial(self, seconds: float | None) -> SocketConnection:
        try:
            return super()._dial(seconds)
        finally:
            self._dialling = False

    def _answer(self, call: ThreadWaiter, deadline: float | None, seconds: float | None, what: str) -> object:
        if self._reconnecting is not current_thread() or seconds is None:
            return super()._answer(call, deadline, seconds, what)
        # The receive thread runs handlers of restored subscriptions before it reads the next answer.
        with self.lock:
            connection = self.connection
            self._resubscribing = None if self.logon.closed else call
        try:
            if self._resubscribing is None:
                raise self.closed_error()
            return call.wait_idle(seconds, what, lambda: connection is not None and connection.busy)
        finally:
            self._resubscribing = None
