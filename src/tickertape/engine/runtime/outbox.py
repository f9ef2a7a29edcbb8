"""Owns what is said to connections beside deliveries: answers and refusals.

Must never decide what the answer is.
"""

from __future__ import annotations

from collections.abc import Iterable

from tickertape.base.errors import BookmarkExpired, TickertapeError
from tickertape.engine.runtime.ack_conflation import AckConflation
from tickertape.engine.runtime.effects import Effect, LogonRefused, Send, SubscriptionEnded
from tickertape.engine.runtime.statistics import Statistics
from tickertape.engine.sessions.session import Session
from tickertape.wire.commands import Ack, Command, Ended, Goodbye, Persisted
from tickertape.wire.frames import encode_frame


class Outbox:
    """Appends what is said to the effects it is given."""

    def __init__(self, effects: list[Effect], statistics: Statistics) -> None:
        self._effects = effects
        self._statistics = statistics
        self.conflation = AckConflation(self._put)
        """Which acknowledgements are held back."""

    def send(self, conn: int, command: Command) -> None:
        """Say something to a connection. An acknowledgement that is held back goes before the answer of a
        command, which a client may take for its sign, and before a goodbye."""
        if type(command) is Ack or type(command) is Goodbye:
            self.conflation.release(conn)
        self._put(conn, command)

    def due(self, answers: Iterable[tuple[Session, Command]], mono: float) -> None:
        """Say what became due with a commit, and what was held back until now."""
        for session, command in answers:
            if isinstance(command, Persisted):
                self.conflation.persisted(session, command, mono)
            else:
                self.send(session.conn, command)
        self.conflation.wake(mono)

    def _put(self, conn: int, command: Command) -> None:
        self._effects.append(Send(conn, encode_frame(command)))

    def refuse(self, conn: int, answer: Command, error: TickertapeError) -> None:
        """Say `answer`, which tells of `error`: it is counted, and told to the log."""
        self._statistics.refuse(error)
        self.send(conn, answer)
        self._effects.append(LogonRefused(conn, error))

    def end_subscription(self, conn: int, sub_id: str, topic: str, error: TickertapeError) -> None:
        """A subscription ends with `error`: its client is told, it is counted, and told to the log."""
        self._statistics.end_subscription(error)
        self.send(conn, Ended(sub_id=sub_id, code=error.code, text=str(error)))
        self._effects.append(SubscriptionEnded(conn, sub_id, topic, error))

    def refuse_command(self, conn: int, command_id: int, error: TickertapeError) -> None:
        """The outcome of a command with an id is `error`."""
        available = error.available if isinstance(error, BookmarkExpired) else ""
        answer = Ack(id=command_id, code=error.code, text=str(error), available=available)
        self.refuse(conn, answer, error)
