"""HA client driver: turns the reconnect machine's actions into steps that each front performs.

`ReconnectMachine` decides what is done. A step that waits is yielded to the front; everything else is done
here.
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
from tickertape.client.common.client_log import LOG
from tickertape.client.common.connection_state import ConnectionState
from tickertape.client.common.effects import ConnectionDown, End, SinkEffect, State, Waiter
from tickertape.client.common.handlers import Handler
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.waiting import now
from tickertape.client.ha import reconnect as machine
from tickertape.client.ha.authenticator import PasswordGiven
from tickertape.client.ha.policies import ApplicationPolicies, as_failure, request_of
from tickertape.client.ha.reconnect import Action, Event, ReconnectMachine, ReconnectStep
from tickertape.client.ha.subscription_manager import StoredSubscription
from tickertape.client.limits import connect_attempt_seconds_default
from tickertape.client.protocol.core import ClientProtocol
from tickertape.wire.commands import LoggedOn


class Hangup(NamedTuple):
    """End the connection that an earlier attempt left."""

    why: Disconnected


class GetPassword(NamedTuple):
    """Make a password of what an authenticator gave."""

    given: PasswordGiven


class LogOn(NamedTuple):
    """Connect and log on; the answer is the `LoggedOn`."""


class Place(NamedTuple):
    """Place a subscription that the subscription manager remembers; the answer is its stream."""

    request: SubscribeRequest
    handler: Handler


class PlaceAgain(NamedTuple):
    """Place the subscriptions again that outlived their connection."""


Step: TypeAlias = Hangup | GetPassword | LogOn | Place | PlaceAgain
Steps: TypeAlias = Generator[Step, Any, None]


class HADriver(ClientDriver):
    """Base of the drivers of both HA clients."""

    _managing: AbstractContextManager[object]
    """Held while the subscription manager is told of a subscription, or that it has ended."""

    def __init__(self, core: ClientProtocol, settings: DriverSettings, policies: ApplicationPolicies) -> None:
        self._policies = policies
        self._machine = ReconnectMachine()
        self._own = ExitStack()
        """Stores that were made for this client, and end with it."""
        self._restored = False
        self._restoring = False
        self._instance = ""
        self._connection_number = 1
        """The number of the connection that the last attempt makes, or has made."""
        self._failed: machine.ReportFailure | None = None
        """The attempt that failed last, until it is logged."""
        self._dialling = False
        """An attempt connects, which nothing can cut short."""
        self._connect_waiters: dict[Waiter, int] = {}
        """Callers in `connect_and_logon`, and the start of the machine that each waits for."""
        super().__init__(core, settings)

    def own(self, stores: ExitStack) -> None:
        """Close these stores with the client."""
        self._own = stores

    def _close_own(self) -> None:
        """Close the stores that were made for this client. Never raises."""
        try:
            self._own.close()
        except StoreError as error:
            self.handlers.tell(error)

    # -- what the fronts do -----------------------------------------------------------------------------

    @abstractmethod
    def feed(self, event: Event) -> None:
        """Give `event` to the machine, and have its actions performed."""

    @abstractmethod
    def _end_connection(self, error: Disconnected) -> None:
        """End the connection, if there is one."""

    @abstractmethod
    def _tell_state(self, state: ConnectionState) -> None:
        """Call the connection-state listeners, in order."""

    @abstractmethod
    def _wake_callers(self) -> None:
        """Let calls that wait for a connection look again."""

    # -- calls ------------------------------------------------------------------------------------------

    @property
    def _heartbeat_is_fixed(self) -> bool:
        return self._machine.trying

    def reconnects(self, seconds: float | None) -> bool:  # noqa: ARG002 - it never stops without saying so
        """See `ClientDriver.reconnects`."""
        return self._machine.trying

    @property
    def _attempt_seconds(self) -> float:
        return connect_attempt_seconds_default if self.timeout is None else self.timeout

    def _must_wait(self) -> bool:
        """Whether a call waits for a connection that is being made."""
        return self._machine.trying and not self._machine.ready

    def _flushes_again(self) -> bool:
        """Whether a flush goes on after a lost connection: the store has everything, and it comes back."""
        return self.publishing.store is not None and self._machine.trying

    def _drops_kept(self, command: str, sub_ids: tuple[str, ...]) -> bool:
        """Whether the command ends subscriptions that only wait to be placed again: no server is needed."""
        if command != "unsubscribe" or self._machine.ready or not sub_ids:
            return False
        kept = self.subscriptions.kept()
        return all(sub_id in kept for sub_id in sub_ids)

    def _not_in_time(self, seconds: float | None, what: str = "") -> TimedOut:
        """Make the error that there was no connection; `what` says what for."""
        last = self._machine.last_error
        why = "" if last is None else f"; the last attempt: {last}"
        return TimedOut(f"no connection{what} {within(seconds)}{why}")

    def _settle_waiters(self, begun: int, outcome: TickertapeError | None) -> bool:
        """Give `outcome` to callers that wait for that start or an earlier one; whether there was one."""
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

    def _inform_sink(self, effect: SinkEffect) -> None:
        super()._inform_sink(effect)
        if isinstance(effect, End) and isinstance(effect.sink, StreamBase) and effect.sink.request.handled:
            # Another one of its id may go on, which it was to replace, or which replaced it.
            with self._managing:
                sub_id = effect.sink.sub_id
                if effect.reason != "closed" and not self.subscriptions.handled(sub_id):
                    self._policies.unsubscribed(sub_id)

    def _remember(self, stored: StoredSubscription, stream: StreamBase) -> None:
        with self._managing:
            if stream.end_reason in (None, "closed"):  # else it is over, or replaced, and that was reported
                self._policies.subscribed(stored)

    # -- the machine ------------------------------------------------------------------------------------

    def _take_in(self, event: Event) -> None:
        """Give `event` to the machine, and tell the protocol whether it goes on connecting."""
        trying, attempt = self._machine.trying, self._machine.attempt
        self._machine.receive(event, now())
        self._note_attempt(attempt)
        if self._machine.trying and not trying:
            self.logon.begin()
        elif trying and self._machine.stopped is not None:
            self.logon.stop(self._machine.stopped)

    def _wake_machine(self) -> None:
        """The machine wanted to be woken by now."""
        attempt = self._machine.attempt
        self._machine.wake(now())
        self._note_attempt(attempt)

    def _note_attempt(self, before: int) -> None:
        if self._machine.attempt != before:
            self._connection_number = self.core.connections + 1

    def _concerns_machine(self, lost: ConnectionDown) -> bool:
        """Whether that connection is not what an earlier attempt left."""
        return lost.connection >= self._connection_number

    # -- actions ----------------------------------------------------------------------------------------

    def _steps(self, action: Action) -> Steps:
        """Perform an action; the steps of it that wait are yielded."""
        if isinstance(action, machine.Connect):
            self.feed((yield from self._attempt(action)))
        elif isinstance(action, machine.Resubscribe):
            self.feed((yield from self._resubscribe(action.attempt)))
        else:
            self._act(action)

    def _act(self, action: Action) -> None:
        """Perform an action of which nothing waits."""
        policies = self._policies
        if isinstance(action, machine.ResetDelay):
            policies.refresh()
        elif isinstance(action, machine.AskChooser):
            self.feed(policies.choose())
        elif isinstance(action, machine.AskDelay):
            delay = policies.delay(action.uri, now().mono, random())
            self._log_attempt(delay.seconds)
            self.feed(delay)
        elif isinstance(action, machine.ReportSuccess):
            policies.succeeded(action.uri, self._instance)
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
                self.handlers.tell(action.error)

    def _log_attempt(self, seconds: float | None) -> None:
        """Log the attempt that failed, and the delay before the next one."""
        failed, self._failed = self._failed, None
        if failed is not None:
            following = "Giving up." if seconds is None else f"Next attempt in {seconds:.3g} s."
            error, uri = failed
            text = "Client %r could not connect to %s. %s Cause: %s"
            LOG.warning(text, self.core.name, uri, following, error)

    def _attempt(self, action: machine.Connect) -> Generator[Step, Any, Event]:
        try:
            yield Hangup(Disconnected("another connection is made"))
            self._address, user, given = self._policies.begin_attempt(action.uri)
            password = yield GetPassword(given)
            with self.lock:
                if self._machine.step is not ReconnectStep.CONNECTING:
                    return machine.AttemptFailed(action.attempt, Disconnected("it is not wanted any more"))
                self.logon.set_credentials(user, password)
                self._dialling = True
            self._policies.uses(user, password)
            answer: LoggedOn = yield LogOn()
            self._instance = answer.instance
        except Exception as error:  # noqa: BLE001 - an authenticator and a resolver may raise anything
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
        """Place what the subscription manager remembers, where it is not there already."""
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
                    self.handlers.tell(error)
                else:
                    self._remember(stored, stream)
        finally:
            self._restoring = False
