"""Base of the HA client drivers: performs the actions of the reconnect state machine.

`ReconnectMachine` decides the actions. A step that waits is yielded to the blocking or asyncio driver. This
module performs all other steps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack
from random import random
from typing import Any, NamedTuple, TypeAlias

from tickertape.base.errors import Disconnected, StoreError, TickertapeError, TimedOut
from tickertape.base.units import within
from tickertape.client.api.driver import ClientDriver, DriverSettings
from tickertape.client.api.streams import StreamBase
from tickertape.client.common.connection_state import ConnectionState
from tickertape.client.common.effects import ConnectionDown, Sink, State, Waiter
from tickertape.client.common.handlers import LOG, Handler
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import now
from tickertape.client.ha import reconnect as machine
from tickertape.client.ha.authenticator import PasswordGiven
from tickertape.client.ha.policies import (
    ApplicationPolicies,
    ServerDescription,
    as_failure,
    described_server,
    request_of,
)
from tickertape.client.ha.reconnect import Action, Event, ReconnectMachine, ReconnectStep
from tickertape.client.ha.subscription_manager import StoredSubscription
from tickertape.client.limits import connect_attempt_seconds_default
from tickertape.client.protocol.core import ClientProtocol
from tickertape.client.subscriptions.receiver import StreamReceiver
from tickertape.wire.commands import LoggedOn


class Hangup(NamedTuple):
    """The step that closes the connection of an earlier attempt."""

    why: Disconnected


class GetPassword(NamedTuple):
    """The step that checks or awaits the password from the authenticator."""

    given: PasswordGiven


class LogOn(NamedTuple):
    """The step that connects and logs on. Its answer is the `LoggedOn`."""


class Place(NamedTuple):
    """The step that restores a subscription of the subscription manager. Its answer is the stream."""

    request: SubscribeRequest
    handler: Handler


class PlaceAgain(NamedTuple):
    """The step that resubscribes the subscriptions that survived their connection."""


Step: TypeAlias = Hangup | GetPassword | LogOn | Place | PlaceAgain
Steps: TypeAlias = Generator[Step, Any, None]


class HADriver(ClientDriver):
    """Base of the drivers of both HA clients."""

    _managing: AbstractContextManager[object]
    """Held during calls of the subscription manager."""

    def __init__(self, core: ClientProtocol, settings: DriverSettings, policies: ApplicationPolicies) -> None:
        self._policies = policies
        self._machine = ReconnectMachine()
        self._own = ExitStack()
        """Stores that the client opened and closes itself."""
        self._restored = False
        self._restoring = False
        self._server = ServerDescription()
        self._connection_number = 1
        """Number of the connection of the last attempt."""
        self._failed: machine.ReportFailure | None = None
        """Last failed attempt, until it is logged."""
        self._dialling = False
        """An attempt is connecting its socket, which cannot be interrupted."""
        self._connect_waiters: dict[Waiter, int] = {}
        """Callers in `connect_and_logon`, with the number of the start that each waits for."""
        super().__init__(core, settings)

    def own(self, stores: ExitStack) -> None:
        """Close `stores` when the client closes."""
        self._own = stores

    def _close_own(self) -> None:
        """Close the stores that the client opened. Never raises."""
        try:
            self._own.close()
        except StoreError as error:
            self.handlers.report(error)

    # -- implemented by both drivers --------------------------------------------------------------------

    @abstractmethod
    def feed(self, event: Event) -> None:
        """Pass `event` to the state machine and trigger its actions."""

    @abstractmethod
    def _end_connection(self, error: Disconnected) -> None:
        """End the connection, if any."""

    @abstractmethod
    def _tell_state(self, state: ConnectionState) -> None:
        """Call the connection-state listeners, in order."""

    @abstractmethod
    def _wake_callers(self) -> None:
        """Wake calls that wait for a connection."""

    # -- calls ------------------------------------------------------------------------------------------

    @property
    def _heartbeat_is_fixed(self) -> bool:
        return self._machine.trying

    def reconnects(self, seconds: float | None) -> bool:  # noqa: ARG002 - overrides
        """See `ClientDriver.reconnects`."""
        return self._machine.trying

    @property
    def _attempt_seconds(self) -> float:
        return connect_attempt_seconds_default if self.timeout is None else self.timeout

    def _must_wait(self) -> bool:
        """Return whether a call has to wait for a reconnect."""
        return self._machine.trying and not self._machine.ready

    def _flushes_again(self) -> bool:
        """Return whether a flush continues after a lost connection: with a publish store and a reconnect."""
        return self.publishing.store is not None and self._machine.trying

    def _drops_kept(self, command: str, sub_ids: tuple[str, ...]) -> bool:
        """Return whether the command ends only subscriptions that wait for a resubscribe.

        Such a command needs no server.
        """
        if command != "unsubscribe" or self._machine.ready or not sub_ids:
            return False
        kept = self.subscriptions.kept()
        return all(sub_id in kept for sub_id in sub_ids)

    def _not_in_time(self, seconds: float | None, what: str = "") -> TimedOut:
        """Return the error of a wait for a connection. `what` is the purpose, such as " for subscribe s"."""
        last = self._machine.last_error
        more = "Wait longer." if last is None else f"Last attempt: {last}"
        return TimedOut(f"Cannot connect{what}: no connection {within(seconds)}. {more}")

    def _settle_waiters(self, begun: int, outcome: TickertapeError | None) -> bool:
        """Settle callers that wait for the start `begun` or an earlier one. Returns whether any waited."""
        with self.lock:
            waiters = [waiter for waiter, number in self._connect_waiters.items() if number <= begun]
            for waiter in waiters:
                del self._connect_waiters[waiter]
        self._wake_callers()
        self._wake_publishers()
        for waiter in waiters:
            waiter.settle(outcome)
        return bool(waiters)

    # -- subscriptions ----------------------------------------------------------------------------------

    def _subscription_ended(self, sink: Sink, reason: str) -> None:
        if isinstance(sink, StreamReceiver) and sink.request.handled:
            # Another subscription with this id may run: the replaced one or the replacement.
            with self._managing:
                sub_id = sink.request.context.sub_id
                if reason != "closed" and not self.subscriptions.handled(sub_id):
                    self._policies.unsubscribed(sub_id)

    def _remember(self, stored: StoredSubscription, stream: StreamBase) -> None:
        with self._managing:
            if stream.end_reason in (None, "closed"):  # Otherwise it ended, and the end was reported.
                self._policies.subscribed(stored)

    # -- state machine ----------------------------------------------------------------------------------

    def _take_in(self, event: Event) -> None:
        """Pass `event` to the state machine and inform the protocol of a start or stop of connecting."""
        trying, attempt = self._machine.trying, self._machine.attempt
        self._machine.receive(event, now())
        self._note_attempt(attempt)
        if self._machine.trying and not trying:
            self.logon.begin()
        elif trying and self._machine.stopped is not None:
            self.logon.stop(self._machine.stopped)

    def _wake_machine(self) -> None:
        """Wake the state machine at its deadline."""
        attempt = self._machine.attempt
        self._machine.wake(now())
        self._note_attempt(attempt)

    def _note_attempt(self, before: int) -> None:
        if self._machine.attempt != before:
            self._connection_number = self.core.connections + 1

    def _concerns_machine(self, lost: ConnectionDown) -> bool:
        """Return whether the lost connection belongs to the current attempt, not to an earlier one."""
        return lost.connection >= self._connection_number

    # -- actions ----------------------------------------------------------------------------------------

    def _steps(self, action: Action) -> Steps:
        """Perform an action, yielding the steps that wait."""
        if isinstance(action, machine.Connect):
            self.feed((yield from self._attempt(action)))
        elif isinstance(action, machine.Resubscribe):
            self.feed((yield from self._resubscribe(action.attempt)))
        else:
            self._act(action)

    def _act(self, action: Action) -> None:
        """Perform an action without waits."""
        policies = self._policies
        if isinstance(action, machine.ResetDelay):
            policies.refresh()
        elif isinstance(action, machine.AskChooser):
            self.feed(policies.choose())
        elif isinstance(action, machine.AskDelay):
            delay = policies.delay(action.uri, now().mono, random())
            self._log_attempt(action.uri, delay.seconds)
            self.feed(delay)
        elif isinstance(action, machine.ReportSuccess):
            policies.succeeded(action.uri, self._server)
        elif isinstance(action, machine.ReportFailure):
            self._failed = action
            policies.failed(action.error, action.uri)
        elif isinstance(action, machine.ResumePublishing):
            with self.lock:
                self.core.resume_publishing(now())
            self.drive()
        elif isinstance(action, machine.Disconnect):
            self._end_connection(action.error)
        elif isinstance(action, State):
            self._tell_state(action.state)
        elif isinstance(action, machine.Established):
            self._settle_waiters(self._machine.begun, None)
        elif isinstance(action, machine.Stopped):
            told = self._settle_waiters(action.begun, action.error)
            if not (told or action.known):
                self.handlers.report(action.error)

    def _log_attempt(self, following: str, seconds: float | None) -> None:
        """Log the attempt that failed, and the delay before the next one, to the server `following`."""
        failed, self._failed = self._failed, None
        if failed is not None:
            plan = "Giving up." if seconds is None else f"Next attempt in {seconds:.3g} s at {following}."
            error, uri = failed
            text = "Client %r could not connect to %s. %s Cause: %s"
            LOG.warning(text, self.core.name, uri, plan, error)

    def _attempt(self, action: machine.Connect) -> Generator[Step, Any, Event]:
        try:
            yield Hangup(
                Disconnected("Cannot continue: the connection was replaced by a new one. Connect again.")
            )
            self._address, user, given = self._policies.begin_attempt(action.uri)
            password = yield GetPassword(given)
            with self.lock:
                if self._machine.step is not ReconnectStep.CONNECTING:
                    return machine.AttemptFailed(
                        action.attempt,
                        Disconnected("Cannot connect: the attempt was cancelled. Connect again."),
                    )
                self.logon.set_credentials(user, password)
                self._dialling = True
            self._policies.uses(user, password)
            answer: LoggedOn = yield LogOn()
            self._server = described_server(answer)
        except Exception as error:  # noqa: BLE001 - an authenticator or a resolver may raise any exception
            return machine.AttemptFailed(action.attempt, as_failure(error, action.uri))
        finally:
            self._dialling = False
        return machine.LogonSucceeded(action.attempt)

    def _resubscribe(self, attempt: int) -> Generator[Step, Any, Event]:
        try:
            if not self._restored:
                yield from self._restore()
                self._restored = True
            yield PlaceAgain()
        except TickertapeError as error:
            return machine.Resubscribed(attempt, error)
        return machine.Resubscribed(attempt)

    def _restore(self) -> Steps:
        """Restore the subscriptions of the subscription manager that do not run yet."""
        self._restoring = True
        try:
            for stored, handler in self._policies.to_restore():
                if stored.sub_id in self.subscriptions:
                    continue
                try:
                    request = request_of(stored, self.subscriptions.store)
                    stream = yield Place(request, handler)
                except (Disconnected, TimedOut):
                    raise
                except TickertapeError as error:
                    self.handlers.report(error)
                else:
                    self._remember(stored, stream)
        finally:
            self._restoring = False
