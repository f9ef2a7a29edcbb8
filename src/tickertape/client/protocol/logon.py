"""Logon state: credentials and options of the next logon, its answer, and the errors of refused calls.

Publishing raises the same errors after a lost connection.
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
from tickertape.base.text_format import wrong_type
from tickertape.base.units import parse_interval
from tickertape.client.limits import credentials_bytes_max
from tickertape.client.publishing.publisher import Publisher
from tickertape.client.publishing.store_checks import check_sequences_left
from tickertape.wire.commands import LoggedOn, Logon


class Advice(NamedTuple):
    """Advice in errors, before the first connection and after a lost one."""

    before: str = "Call connect() first."
    after: str = "Call connect() again."


HA_ADVICE: Final = Advice("Call connect_and_logon() first.", "The client reconnects automatically.")


class LogonState:
    """Logon state of one client.

    `name` is the validated client name. `software` describes this program to the server.
    """

    def __init__(self, name: str, software: str, publishing: Publisher, advice: Advice) -> None:
        self.command = Logon(name=name, software=software)
        """First command of the next connection."""
        self._publishing = publishing
        self._advice = advice
        self.accepted: LoggedOn | None = None
        """Answer of the server to the logon of this connection."""
        self.logged_on: LoggedOn | None = None
        """The same answer, once all calls are possible."""
        self.closed = False
        """Whether the application closed the client."""
        self.displaced: TickertapeError | None = None
        """Error of the last connection, if another connection took over the client name."""
        self.ending: TickertapeError | None = None
        """Error of this connection, if it has ended but its loss is not processed yet."""
        self.loss: Disconnected | None = None
        """Error that calls raise since the last connection ended. None before the first end."""
        self.ack_conflation = 0.0
        """Seconds between two persisted acknowledgements for the next logon. 0: one per commit."""
        self._stopped: Disconnected | None = None

    @property
    def connected(self) -> bool:
        """Whether all calls are possible, according to the present state."""
        return self.logged_on is not None and self.ending is None

    def set_ack_conflation(self, interval: float | str | None) -> None:
        """Set the acknowledgement conflation of the next logon. Raises `BadOption`."""
        seconds = 0.0 if interval is None else parse_interval(interval)
        if seconds and not conflation_seconds_min <= seconds <= conflation_seconds_max:
            raise BadOption(
                f"Invalid ack_conflation {interval!r}. "
                f"Use {conflation_seconds_min:g} to {conflation_seconds_max:,.0f} seconds."
            )
        self.ack_conflation = seconds

    @property
    def options(self) -> str:
        """Options of the next logon."""
        return f"ack_conflation={round(self.ack_conflation * 1000)}ms" if self.ack_conflation else ""

    def set_credentials(self, user: str | None, password: str | None) -> None:
        """Set the credentials of the next logon. Raises `BadOption` for other types and long texts."""
        size = 0
        for what, text in (("user", user), ("password", password)):
            if text is None:
                continue
            if not isinstance(text, str):
                raise BadOption(wrong_type(what, text, "str"))
            encoded = text.encode(errors="surrogatepass")
            if encoded.decode(errors="ignore") != text:  # an exception of the codec would show the password
                raise BadOption(f"Invalid {what}: it is not valid Unicode. Use valid Unicode text.")
            size += len(encoded)
        if size > credentials_bytes_max:
            raise BadOption(
                f"User and password of {size} bytes are too long. Use at most {credentials_bytes_max} bytes."
            )
        self.command = Logon(
            name=self.command.name, software=self.command.software, user=user, password=password
        )

    @property
    def not_connected(self) -> str:
        """First words of the error of a call without a connection."""
        return f"Cannot use client {self.command.name!r}: it is not connected"

    def closed_error(self) -> Closed:
        """Return the error of a call on the closed client."""
        return Closed(f"Cannot use client {self.command.name!r}: it is closed. Create a new client.")

    def check_ready(self) -> LoggedOn:
        """Return the answer to the logon. Raises `Closed` or `Disconnected` unless calls are possible."""
        if self.closed:
            raise self.closed_error()
        if self.logged_on is None:
            if self.loss is not None:
                raise self.loss.with_traceback(None)  # otherwise the traceback grows with each call
            raise Disconnected(f"{self.not_connected}. {self._advice.before}")
        if self.ending is not None:
            ended = self.ending
            raise ended.with_traceback(None) if isinstance(ended, Disconnected) else _ended(ended)
        return self.logged_on

    def accept(self, answer: LoggedOn) -> None:
        """Record the server's answer to the logon.

        Raises `BadCommand` for a second answer, and for a last persisted sequence that leaves no sequence
        numbers to a publish store. Raises `BadVersion` for a version that was not offered.
        """
        if self.accepted is not None:
            raise BadCommand("Unexpected second answer to the logon. Update the server.")
        if answer.version not in self.command.versions:
            offered = ", ".join(map(str, self.command.versions))
            raise BadVersion(
                f"Cannot log on: the server chose protocol version {answer.version}, and this client "
                f"supports {offered}. Update the older side."
            )
        if self._publishing.store is not None:
            check_sequences_left(self.command.name, answer.last_persisted)
        topics = self._publishing.server_topics
        topics.update(answer.recorded, answer.validated, answer.message_bytes_max)
        topics.queues = None if answer.queues is None else frozenset(answer.queues)
        self.accepted = answer

    def ready(self, answer: LoggedOn) -> None:
        """Allow all calls from now on."""
        self.logged_on = answer
        self.displaced = None

    def end(self, error: TickertapeError) -> None:
        """Refuse calls from now on, because `error` ended this connection."""
        self.ending = error

    def forked(self) -> None:
        """Forget the logon in a forked child, because the connection belongs to the parent."""
        self.logged_on = None

    def close(self) -> None:
        """Record that the application closed the client."""
        self.closed = True

    def lost(self, error: TickertapeError) -> tuple[TickertapeError, str, TickertapeError]:
        """Process the loss of the connection because of `error`.

        Return the actual cause (an error of the publish store takes precedence), the end reason of streams,
        and the error of pending calls.
        """
        if self.accepted is not None and isinstance(error, NameInUse):
            self.displaced = error
        self.logged_on = self.accepted = self.ending = None
        refusal = (
            self.closed_error()
            if self.closed
            else Disconnected(f"{self.not_connected}. {self._advice.after}")
        )
        error = self._publishing.lost(refusal) or error
        if self.closed:
            return error, "closed", refusal
        ended = error if isinstance(error, Disconnected) else _ended(error)
        advice = "" if isinstance(error, NameInUse) else f" {self._advice.after}"  # its error has the cure
        text = str(ended).removesuffix(" Connect again.").rstrip(".")
        loss = Disconnected(f"{text}.{advice}")
        loss.__cause__ = error
        self._refuse(self._stopped or loss)
        return error, error.code, ended

    def stop(self, error: TickertapeError) -> None:
        """Stop connecting. Every call raises, also publishes into a store.

        This applies at once, or from the end of the present connection.
        """
        why = f"Cannot use client {self.command.name!r}: it stopped connecting. {error}"
        stopped = Disconnected(str(error) if isinstance(error, Disconnected) else why)
        stopped.__cause__ = error
        self._stopped = stopped
        if self.logged_on is None:
            self._refuse(stopped)

    def begin(self) -> None:
        """Record that the driver connects. Meanwhile publishes go into the publish store."""
        self._stopped = None
        if self.logged_on is None:
            self._refuse(Disconnected(f"{self.not_connected} yet. {self._advice.after}"))

    def _refuse(self, loss: Disconnected) -> None:
        self.loss = loss
        self._publishing.lost(loss, storing=self._stopped is None)


def _ended(error: TickertapeError) -> Disconnected:
    lost = Disconnected(f"Cannot continue: the connection was closed ({error.code}). {error}")
    lost.__cause__ = error
    return lost
