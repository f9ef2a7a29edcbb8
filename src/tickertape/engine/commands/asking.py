"""Owns carrying out the commands that have an id and an answer, but for those of transactions.

Must never let a refusal disturb anything else: it is the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tickertape.base.errors import NotReady, TickertapeError
from tickertape.base.interfaces import Now
from tickertape.engine.commands.subscribe import SubscribeHandler
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sessions.session import Session
from tickertape.wire.commands import Pause, Resolve, Resume, Subscribe, Unsubscribe

Request: TypeAlias = Subscribe | Unsubscribe | Pause | Resume | Resolve


class SubscriptionChanges:
    """Answers requests. `draining()` says whether a clean stop has begun."""

    def __init__(self, subscribing: SubscribeHandler, answers: Outbox, draining: Callable[[], bool]) -> None:
        self._subscribing = subscribing
        self._answers = answers
        self._draining = draining

    def answer(self, session: Session, command: Request, now: Now) -> None:
        """Do what a command asks."""
        try:
            if isinstance(command, Subscribe):
                self._check_not_stopping()
                self._subscribing.subscribe(session, command, now)
            elif isinstance(command, Unsubscribe):
                self._subscribing.unsubscribe(session, command)
            elif isinstance(command, Pause):
                self._subscribing.pause(session, command, now)
            elif isinstance(command, Resume):
                self._subscribing.resume(session, command, now)
            else:
                self._check_not_stopping()
                self._subscribing.resolve(session, command, now)
        except TickertapeError as error:
            self._answers.refuse_command(session.conn, command.id, error)

    def _check_not_stopping(self) -> None:
        if self._draining():
            raise NotReady("the server is stopping: subscribe again after reconnecting")
