"""Reconnect machine: decides the next step while an HA client gets and keeps its connection.

The order is: choose a server, wait, connect and log on, report, resume publishing, resubscribe; and again
from the start when the connection is lost. The machine is pure: its driver performs `effects` one after the
other and hands in the outcome of each. An outcome that is too late, because the client was closed or the
connection lost meanwhile, is ignored.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tickertape.base.errors import (
    Closed,
    Disconnected,
    NameInUse,
    StoreError,
    TickertapeError,
    TopicNotRecorded,
)
from tickertape.base.interfaces import Now
from tickertape.client.common.connection_state import ConnectionState
from tickertape.client.common.effects import State
from tickertape.client.limits import (
    connection_settled_seconds,
    name_settled_seconds,
    reconnect_seconds_min,
    servers_hurried_max,
)

# -- what happened ------------------------------------------------------------------------------------


class Start(NamedTuple):
    """The application wants a connection. Nothing happens when there is one, or one is being made."""


class ServerChosen(NamedTuple):
    """The chooser's answer: where to connect, or why nowhere."""

    uri: str | None
    error: str = ""


class DelayChosen(NamedTuple):
    """The delay strategy's answer: seconds to wait, or None and why it gives up."""

    seconds: float | None
    error: str = ""


class LogonSucceeded(NamedTuple):
    """The attempt succeeded: the server has accepted the logon."""

    attempt: int


class AttemptFailed(NamedTuple):
    """The attempt failed; there is no connection."""

    attempt: int
    error: TickertapeError


class Resubscribed(NamedTuple):
    """The server has answered for every subscription; or it has not, and `error` says why."""

    attempt: int
    error: TickertapeError | None = None


class ConnectionLost(NamedTuple):
    """The connection that was logged on is lost."""

    error: TickertapeError


class Cancelled(NamedTuple):
    """The callers that wait for the first connection since `Start` gave up: stop, unless it exists."""

    error: TickertapeError


class CloseRequested(NamedTuple):
    """The application closed the client."""


class DriverFailed(NamedTuple):
    """The driver cannot go on, for a reason that should not be."""

    error: TickertapeError


Event = (
    Start
    | ServerChosen
    | DelayChosen
    | LogonSucceeded
    | AttemptFailed
    | Resubscribed
    | ConnectionLost
    | Cancelled
    | CloseRequested
    | DriverFailed
)

# -- what is to be done -------------------------------------------------------------------------------


class ResetDelay(NamedTuple):
    """Let the delay strategy begin afresh."""


class AskChooser(NamedTuple):
    """Ask for a URI and an authenticator; answered by `ServerChosen`."""


class AskDelay(NamedTuple):
    """Ask the delay strategy; answered by `DelayChosen`."""

    uri: str


class Connect(NamedTuple):
    """Connect and log on; answered by `LogonSucceeded` or `AttemptFailed`."""

    attempt: int
    uri: str


class ReportSuccess(NamedTuple):
    """Report success to the chooser, and reset the delay strategy."""

    uri: str


class ReportFailure(NamedTuple):
    """Report failure to the chooser."""

    error: TickertapeError
    uri: str


class ResumePublishing(NamedTuple):
    """Let the client machine take in the last persisted sequence, discard and republish."""


class Resubscribe(NamedTuple):
    """Bring subscriptions back, in the order in which they were placed; answered by `Resubscribed`."""

    attempt: int


class Disconnect(NamedTuple):
    """End the connection that there is."""

    error: Disconnected


class Established(NamedTuple):
    """Everything may be called: let those go on who wait for that."""


class Stopped(NamedTuple):
    """No further attempt: raise `error` for those who wait, else tell the exception listener, unless it is
    `known`; and let calls fail with it from now on."""

    error: TickertapeError
    known: bool
    begun: int
    """The `Start` that comes to its end with it."""


Action = (
    ResetDelay
    | AskChooser
    | AskDelay
    | Connect
    | ReportSuccess
    | ReportFailure
    | ResumePublishing
    | Resubscribe
    | Disconnect
    | State
    | Established
    | Stopped
)


class ReconnectStep(enum.Enum):
    """Steps of the reconnect machine."""

    IDLE = "not connecting"
    CHOOSING = "asking the server chooser"
    DELAYING = "asking the delay strategy"
    WAITING = "waiting before the next attempt"
    CONNECTING = "connecting and logging on"
    RESUBSCRIBING = "resubscribing"
    READY = "connected"
    CLOSED = "closed"


class ReconnectMachine:
    """The machine of an HA client. Its verbs are those of every machine: `receive`, `effects`,
    `next_deadline`, `wake`."""

    def __init__(self) -> None:
        self.step = ReconnectStep.IDLE
        self.last_error: TickertapeError | None = None
        """Why the last attempt failed or the last connection ended; None after one that is ready."""
        self.stopped: TickertapeError | None = None
        """Why there is no further attempt since the last `Start`."""
        self.begun = 0
        """How often it was started."""
        self._effects: list[Action] = []
        self._until = 0.0
        self._uri = ""
        self.attempt = 0
        """The number of the last attempt."""
        self._untried = True
        """Whether nothing was tried since `Start`: then there is nothing to wait for."""
        self._tried: set[str] = set()
        """Addresses tried since `Start` or the last connection that was ready."""
        self._never_ready = True
        """Whether no connection was ready since `Start`."""
        self._dropped: TickertapeError | None = None
        """The connection was lost before its logon was told of."""
        self._reclaimed_name = False
        """Whether it connected again after another connection took over the client name."""
        self._ready_since = 0.0
        self._short_lived = False
        """Whether the last connection was lost as soon as it was there."""

    # -- the contract of a machine ----------------------------------------------------------------------

    def receive(self, happened: Event, now: Now) -> None:
        """Take in what happened. Never waits, never raises."""
        if isinstance(happened, Start):
            self._begin()
        elif isinstance(happened, ServerChosen):
            self._chosen(happened)
        elif isinstance(happened, DelayChosen):
            self._delayed(happened, now)
        elif isinstance(happened, LogonSucceeded):
            self._logged_on(happened.attempt)
        elif isinstance(happened, AttemptFailed):
            self._failed(happened)
        elif isinstance(happened, Resubscribed):
            self._resubscribed(happened, now)
        elif isinstance(happened, ConnectionLost):
            self._drop(happened.error, now)
        elif isinstance(happened, Cancelled):
            self._abandon(happened.error)
        elif isinstance(happened, DriverFailed):
            self._stop(happened.error)
        else:
            self.step = ReconnectStep.CLOSED
            self._effects[:] = [Stopped(Closed("the client was closed"), known=True, begun=self.begun)]

    def effects(self) -> list[Action]:
        """Return the pending effects, in order, and clear them."""
        taken = self._effects[:]
        self._effects.clear()
        return taken

    def next_deadline(self) -> float | None:
        """When `wake` wants to be called (monotonic seconds), or None."""
        return self._until if self.step is ReconnectStep.WAITING else None

    def wake(self, now: Now) -> None:
        """Do what is due."""
        if self.step is ReconnectStep.WAITING and now.mono >= self._until:
            self._connect()

    @property
    def due(self) -> bool:
        """Whether there is something to be done."""
        return bool(self._effects)

    @property
    def ready(self) -> bool:
        """Whether everything may be called."""
        return self.step is ReconnectStep.READY

    @property
    def trying(self) -> bool:
        """Whether there is a connection, or one is being made."""
        return self.step not in (ReconnectStep.IDLE, ReconnectStep.CLOSED)

    # -- inside -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.step is ReconnectStep.IDLE:
            self._untried = self._never_ready = True
            self._reclaimed_name = False
            self._tried.clear()
            self.stopped = None
            self.begun += 1
            self._effects.append(ResetDelay())
            self._choose()

    def _choose(self) -> None:
        self.step = ReconnectStep.CHOOSING
        self._effects.append(AskChooser())

    def _chosen(self, answer: ServerChosen) -> None:
        if self.step is not ReconnectStep.CHOOSING:
            return
        if not answer.uri:
            self._stop(self._giving_up(f"the server chooser has no server: {answer.error}"))
            return
        self._uri = answer.uri
        if self._untried:
            self._untried = False
            self._connect()
        else:
            self.step = ReconnectStep.DELAYING
            self._effects.append(AskDelay(answer.uri))

    def _delayed(self, answer: DelayChosen, now: Now) -> None:
        if self.step is not ReconnectStep.DELAYING:
            return
        if answer.seconds is None:
            self._stop(self._giving_up(answer.error or "the delay strategy gives up"))
            return
        again = self._uri in self._tried or len(self._tried) >= servers_hurried_max
        seconds = max(answer.seconds, reconnect_seconds_min) if self._short_lived or again else answer.seconds
        if seconds > 0:
            self.step = ReconnectStep.WAITING
            self._until = now.mono + seconds
        else:
            self._connect()

    def _connect(self) -> None:
        self.step = ReconnectStep.CONNECTING
        self.attempt += 1
        self._dropped = None
        self._short_lived = False
        if len(self._tried) < servers_hurried_max:
            self._tried.add(self._uri)
        self._effects.append(Connect(self.attempt, self._uri))

    def _failed(self, answer: AttemptFailed) -> None:
        if self.step is not ReconnectStep.CONNECTING or answer.attempt != self.attempt:
            return
        self.last_error = answer.error
        self._effects.append(ReportFailure(answer.error, self._uri))
        self._choose()

    def _logged_on(self, attempt: int) -> None:
        if self.step is not ReconnectStep.CONNECTING or attempt != self.attempt:
            self._effects.append(Disconnect(Disconnected("nobody waits for this connection any more")))
            return
        self._effects.append(ReportSuccess(self._uri))
        if self._dropped is not None:
            self._report_unfit(self._dropped)
            self._choose()
            return
        self.step = ReconnectStep.RESUBSCRIBING
        self._effects += (ResumePublishing(), Resubscribe(attempt))

    def _resubscribed(self, answer: Resubscribed, now: Now) -> None:
        if self.step is not ReconnectStep.RESUBSCRIBING or answer.attempt != self.attempt:
            return
        if answer.error is not None:
            # The loss comes as `ConnectionLost`, or has come: then this answer belonged to an earlier step.
            self._effects.append(Disconnect(Disconnected(f"resubscribing failed: {answer.error}")))
            return
        self.step = ReconnectStep.READY
        self.last_error = None
        self._never_ready = False
        self._tried.clear()
        self._ready_since = now.mono
        self._effects += (State(ConnectionState.RESUBSCRIBED), Established())

    def _drop(self, error: TickertapeError, now: Now) -> None:
        if self.step not in (ReconnectStep.CONNECTING, ReconnectStep.RESUBSCRIBING, ReconnectStep.READY):
            return
        self.last_error = error
        if isinstance(error, StoreError):  # of this process, which would meet it on every connection
            self._stop(error)
            return
        lasted = now.mono - self._ready_since if self.step is ReconnectStep.READY else 0.0
        self._short_lived = lasted < connection_settled_seconds
        if isinstance(error, NameInUse):
            if self._reclaimed_name and lasted < name_settled_seconds:
                self._stop(error)
                return
            self._reclaimed_name = True
        if self.step is ReconnectStep.CONNECTING:
            self._dropped = error
        else:
            self._report_unfit(error)
            self._choose()

    def _report_unfit(self, error: TickertapeError) -> None:
        # It accepts the logon, and will refuse the publish store again: another server has to be tried.
        if isinstance(error, TopicNotRecorded):
            self._effects.append(ReportFailure(error, self._uri))

    def _abandon(self, error: TickertapeError) -> None:
        if self.trying and self._never_ready:
            connected = self.step is ReconnectStep.RESUBSCRIBING
            self._stop(error, known=True)
            if connected:
                self._effects.append(Disconnect(Disconnected(str(error))))

    def _stop(self, error: TickertapeError, *, known: bool = False) -> None:
        self.step = ReconnectStep.IDLE
        self.stopped = error
        reports = [effect for effect in self._effects if isinstance(effect, ReportSuccess | ReportFailure)]
        stopped = Stopped(error, known, self.begun)
        self._effects[:] = [*reports, State(ConnectionState.DISCONNECTED), stopped]

    def _giving_up(self, why: str) -> Disconnected:
        last = "" if self.last_error is None else f"; the last attempt: {self.last_error}"
        error = Disconnected(f"{why}{last}; call connect_and_logon() to try again")
        error.__cause__ = self.last_error
        return error
