"""Owns what is said to connections beside deliveries: answers and refusals.

Must never decide what the answer is.
"""

from __future__ import annotations

from tickertape.base.errors import BookmarkExpired, TickertapeError
from tickertape.engine.effects import Effect, Refused, Send, SubscriptionEnded
from tickertape.engine.statistics import Statistics
from tickertape.wire.commands import Ack, Command, Ended
from tickertape.wire.frames import encode_frame


class Answers:
    """Appends what is said to the effects it is given."""

    def __init__(self, effects: list[Effect], statistics: Statistics) -> None:
        self._effects = effects
        self._statistics = statistics

    def send(self, conn: int, command: Command) -> None:
        """Say something to a connection."""
        self._effects.append(Send(conn, encode_frame(command)))

    def refuse(self, conn: int, answer: Command, error: TickertapeError) -> None:
        """Say `answer`, which tells of `error`: it is counted, and told to the log."""
        self._statistics.refuse(error)
        self.send(conn, answer)
        self._effects.append(Refused(conn, error))

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
