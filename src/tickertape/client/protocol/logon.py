"""Logon state: credentials and options of the next logon, its answer, and why calls are refused.

Publishing raises the same errors about a lost connection.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tickertape.base.errors import (
    BadCommand,
    BadOption,
    BadVersion,
    Closed,
    Disconnected,
    NameInUse,
    TickertapeError,
)
from tickertape.base.limits import conflation_seconds_max, conflation_seconds_min
from tickertape.base.units import parse_interval
from tickertape.client.limits import credentials_bytes_max
from tickertape.client.publishing.publisher import Publisher
from tickertape.client.publishing.store_checks import check_sequences_left
from tickertape.wire.commands import LoggedOn, Logon


class Advice(NamedTuple):
    """The advice in errors: before the first connection, and after the loss of one."""

    before: str = "call connect() first"
    after: str = "call connect() again"


HA_ADVICE: Final = Advice("call connect_and_logon() first", "the client connects again")


class LogonState:
    """The standing of one client machine.

    `name` is the client name, which was checked, `software` what the server is told about the program.
    """

    def __init__(self, name: str, software: str, publishing: Publisher, advice: Advice) -> None:
        self.command = Logon(name=name, software=software)
        """First command on the next connection."""
        self._publishing = publishing
        self._advice = advice
        self.accepted: LoggedOn | None = None
        """The server's answer to the logon of this connection."""
        self.logged_on: LoggedOn | None = None
        """The same, as soon as everything may be called."""
        self.closed = False
        """Whether the application closed the client."""
        self.displaced: TickertapeError | None = None
        """Why the last connection ended, when another one took over the client name."""
        self.ending: TickertapeError | None = None
        """Why this connection is over, though its loss was not told yet."""
        self.loss: Disconnected | None = None
        """The error that calls raise since the last connection ended. None before the first end."""
        self.ack_conflation = 0.0
        """Seconds between two persisted acknowledgements, for the next logon; 0: one with each commit."""
        self._stopped: Disconnected | None = None

    @property
    def connected(self) -> bool:
        """Whether everything may be called, as far as it is known."""
        return self.logged_on is not None and self.ending is None

    def set_ack_conflation(self, interval: float | str | None) -> None:
        """Ask for it with the next logon. Raises `BadOption`."""
        seconds = 0.0 if interval is None else parse_interval(interval)
        if seconds and not conflation_seconds_min <= seconds <= conflation_seconds_max:
            raise BadOption(
                f"Cannot use an ack_conflation of {interval!r}: it is {conflation_seconds_min:g} to "
                f"{conflation_seconds_max:,.0f} seconds."
            )
        self.ack_conflation = seconds

    @property
    def options(self) -> str:
        """The options of the next logon."""
        return f"ack_conflation={round(self.ack_conflation * 1000)}ms" if self.ack_conflation else ""

    def set_credentials(self, user: str | None, password: str | None) -> None:
        """Use these with the next logon. Raises `BadOption` for other types, and when they are too long."""
        size = 0
        for what, text in (("user", user), ("password", password)):
            if text is None:
                continue
            if not isinstance(text, str):
                raise BadOption(f"{what} is text, not {type(text).__name__}")
            encoded = text.encode(errors="surrogatepass")
            if encoded.decode(errors="ignore") != text:  # an exception of the codec would have the password
                raise BadOption(f"the {what} cannot be sent, it is no Unicode text")
            size += len(encoded)
        if size > credentials_bytes_max:
            raise BadOption(
                f"user and password have {size} bytes, at most {credentials_bytes_max} can be sent"
            )
        self.command = Logon(
            name=self.command.name, software=self.command.software, user=user, password=password
        )

    def check_ready(self) -> LoggedOn:
        """Return the answer to the logon. Raises `Closed` or `Disconnected` unless all may be called."""
        if self.closed:
            raise Closed("the client was closed")
        if self.logged_on is None:
            if self.loss is not None:
                raise self.loss.with_traceback(None)  # else it grows with each call
            raise Disconnected(f"not connected: {self._advice.before}")
        if self.ending is not None:
            ended = self.ending
            raise ended.with_traceback(None) if isinstance(ended, Disconnected) else _ended(ended)
        return self.logged_on

    def accept(self, answer: LoggedOn) -> None:
        """The server has accepted the logon. Raises `BadCommand` when it says so twice, and for a last
        persisted sequence that leaves none to a publish store; `BadVersion` for a version that was not
        offered."""
        if self.accepted is not None:
            raise BadCommand("the server answered the logon twice")
        if answer.version not in self.command.versions:
            offered = ", ".join(map(str, self.command.versions))
            raise BadVersion(
                f"Cannot log on: the server chose version {answer.version} of the protocol, this client "
                f"speaks {offered}. Update the older side."
            )
        if self._publishing.store is not None:
            check_sequences_left(self.command.name, answer.last_persisted)
        self._publishing.server_topics.update(answer.recorded, answer.validated, answer.message_bytes_max)
        self.accepted = answer

    def ready(self, answer: LoggedOn) -> None:
        """From here on everything may be called."""
        self.logged_on = answer
        self.displaced = None

    def end(self, error: TickertapeError) -> None:
        """Refuse calls from now on: this connection is over because of `error`."""
        self.ending = error

    def forked(self) -> None:
        """Forget the logon: this is a forked child, and the connection is its parent's."""
        self.logged_on = None

    def close(self) -> None:
        """The application has closed the client."""
        self.closed = True

    def lost(self, error: TickertapeError) -> tuple[TickertapeError, str, TickertapeError]:
        """The connection is gone, because of `error`: the cause that counts, which is the publish store's
        error when that failed, what streams say as their reason, and what calls that wait raise."""
        if self.accepted is not None and isinstance(error, NameInUse):
            self.displaced = error
        self.logged_on = self.accepted = self.ending = None
        refusal = Closed("the client was closed") if self.closed else Disconnected("the connection was lost")
        error = self._publishing.lost(refusal) or error
        if self.closed:
            return error, "closed", refusal
        ended = error if isinstance(error, Disconnected) else _ended(error)
        loss = Disconnected(f"{ended}; {self._advice.after}")
        loss.__cause__ = error
        self._refuse(self._stopped or loss)
        return error, error.code, ended

    def stop(self, error: TickertapeError) -> None:
        """Give up connecting: every call raises, publishes into a store too, from now on, or from the end
        of the connection on.
        """
        stopped = Disconnected(str(error) if isinstance(error, Disconnected) else f"given up: {error}")
        stopped.__cause__ = error
        self._stopped = stopped
        if self.logged_on is None:
            self._refuse(stopped)

    def begin(self) -> None:
        """The driver connects (again): publishes go into the store meanwhile."""
        self._stopped = None
        if self.logged_on is None:
            self._refuse(Disconnected(f"there is no connection yet; {self._advice.after}"))

    def _refuse(self, loss: Disconnected) -> None:
        self.loss = loss
        self._publishing.lost(loss, storing=self._stopped is None)


def _ended(error: TickertapeError) -> Disconnected:
    lost = Disconnected(f"the connection was ended ({error.code}): {error}")
    lost.__cause__ = error
    return lost
