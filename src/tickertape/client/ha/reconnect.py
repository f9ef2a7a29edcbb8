"""Reconnect state machine: determines the next step to get and keep the connection of an HA client.

The order is: choose a server, wait, connect and log on, report, resume publishing, resubscribe. After a lost
connection it starts again. The machine is pure: its driver performs `effects` in order and passes the outcome
of each. It ignores outcomes that arrive after the client was closed or the connection was lost.
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

# -- events -------------------------------------------------------------------------------------------


class Start(NamedTuple):
    """Request for a connection by the application. Ignored if one exists or is in progress."""


class ServerChosen(NamedTuple):
    """Answer of the chooser: a server, or the reason for none."""

    uri: str | None
    error: str = ""


class DelayChosen(NamedTuple):
    """Answer of the delay strategy: seconds to wait, or None and the reason to give up."""

    seconds: float | None
    error: str = ""


class LogonSucceeded(NamedTuple):
    """Success of the attempt: the server accepted the logon."""

    attempt: int


class AttemptFailed(NamedTuple):
    """Failure of the attempt, without a connection."""

    attempt: int
    error: TickertapeError


class Resubscribed(NamedTuple):
    """Result of resubscribing: the server answered for every subscription, or `error` gives the cause."""

    attempt: int
    error: TickertapeError | None = None


class ConnectionLost(NamedTuple):
    """Loss of the logged-on connection."""

    error: TickertapeError


class Cancelled(NamedTuple):
    """All waiting callers gave up before the first connection since `Start`. Stop unless it exists."""

    error: TickertapeError


class CloseRequested(NamedTuple):
    """Close of the client by the application."""


class DriverFailed(NamedTuple):
    """Unexpected error that stops the driver."""

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

# -- actions ------------------------------------------------------------------------------------------


class ResetDelay(NamedTuple):
    """Reset the delay strategy."""


class AskChooser(NamedTuple):
    """Ask the chooser for a URI and an authenticator. Answered by `ServerChosen`."""


class AskDelay(NamedTuple):
    """Ask the delay strategy. Answered by `DelayChosen`."""

    uri: str


class Connect(NamedTuple):
    """Connect and log on. Answered by `LogonSucceeded` or `AttemptFailed`."""

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
    """Let the client process the last persisted sequence, discard persisted messages and resend others."""


class Resubscribe(NamedTuple):
    """Resubscribe in the original order. Answered by `Resubscribed`."""

    attempt: int


class Disconnect(NamedTuple):
    """Close the present connection."""

    error: Disconnected


class Established(NamedTuple):
    """Resume waiting callers, because all calls are possible."""


class Stopped(NamedTuple):
    """End of all attempts. Later calls fail with `error`.

    Raise `error` for waiting callers. Without any, report it to the exception listener unless it is `known`.
    """

    error: TickertapeError
    known: bool
    begun: int
    """Number of the `Start` that ends with it."""


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
    """State machine of an HA client."""

    def __init__(self) -> None:
        self.step = ReconnectStep.IDLE
        self.last_error: TickertapeError | None = None
        """Error of the last attempt or of the last connection. None after a ready connection."""
        self.stopped: TickertapeError | None = None
        """Error that ended all attempts since the last `Start`."""
        self.begun = 0
        """Number of starts."""
        self._effects: list[Action] = []
        self._until = 0.0
        self._uri = ""
        self.attempt = 0
        """Number of the last attempt."""
        self._untried = True
        """Whether no attempt was made since `Start`, so that the first one needs no wait."""
        self._tried: set[str] = set()
        """Addresses tried since `Start` or the last ready connection."""
        self._never_ready = True
        """Whether no connection was ready since `Start`."""
        self._dropped: TickertapeError | None = None
        """Loss of a connection before its logon was reported."""
        self._reclaimed_name = False
        """Whether it reconnected after another connection took over the client name."""
        self._ready_since = 0.0
        self._short_lived = False
        """Whether the last connection was lost soon after it was ready."""

    # -- interface of a state machine -------------------------------------------------------------------

    def receive(self, happened: Event, now: Now) -> None:
        """Process an event. Never blocks, never raises."""
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
            self._effects[:] = [
                Stopped(
                    Closed("Cannot use the client: it is closed. Create a new client."),
                    known=True,
                    begun=self.begun,
                )
            ]

    def effects(self) -> list[Action]:
        """Return the pending effects, in order, and clear them."""
        taken = self._effects[:]
        self._effects.clear()
        return taken

    def next_deadline(self) -> float | None:
        """Return when to call `wake` (monotonic seconds), or None."""
        return self._until if self.step is ReconnectStep.WAITING else None

    def wake(self, now: Now) -> None:
        """Perform due work."""
        if self.step is ReconnectStep.WAITING and now.mono >= self._until:
            self._connect()

    @property
    def due(self) -> bool:
        """Whether effects are pending."""
        return bool(self._effects)

    @property
    def ready(self) -> bool:
        """Whether all calls are possible."""
        return self.step is ReconnectStep.READY

    @property
    def trying(self) -> bool:
        """Whether a connection exists or is in progress."""
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
        if isinstance(answer.error, StoreError):  # an error of this process, not of the server
            self._stop(answer.error)
            return
        self._effects.append(ReportFailure(answer.error, self._uri))
        self._choose()

    def _logged_on(self, attempt: int) -> None:
        if self.step is not ReconnectStep.CONNECTING or attempt != self.attempt:
            self._effects.append(Disconnect(Disconnected("Cannot continue: no caller waits.")))
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
            # `ConnectionLost` reports the loss. If it arrived before, this answer belongs to an earlier step.
            self._effects.append(Disconnect(Disconnected(str(answer.error))))
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
        if isinstance(error, StoreError):  # an error of this process, which every connection would repeat
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
        # It accepts the logon but will refuse the publish store again, so another server must be tried.
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
        last = "" if self.last_error is None else f" Last attempt: {str(self.last_error).rstrip('.')}."
        error = Disconnected(
            f"Cannot connect: {why.rstrip('.')}.{last} Call connect_and_logon() to try again."
        )
        error.__cause__ = self.last_error
        return error
