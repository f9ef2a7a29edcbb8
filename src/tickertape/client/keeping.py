"""Owns what both HA clients do the same way: what they are made of, and taking an event into the session and
the client machine together.

Must never wait, and never call the application's objects: the clients do, each in its own way.
"""

from __future__ import annotations

from random import random

from tickertape.base.errors import TimedOut
from tickertape.base.limits import connect_attempt_seconds_default
from tickertape.base.units import within
from tickertape.client.choosers import ServerChooser
from tickertape.client.core import ClientCore
from tickertape.client.counsel import Counsel
from tickertape.client.delays import DelayStrategy
from tickertape.client.effects import Down
from tickertape.client.handlers import Handlers
from tickertape.client.link import NOWHERE, Address
from tickertape.client.session import Happened, Session
from tickertape.client.subscription_manager import SubscriptionManager
from tickertape.client.waiting import now


class Keeping:
    """The half of an HA client that is neither blocking nor awaited."""

    _core: ClientCore
    _handlers: Handlers
    _timeout: float | None

    def _set_up(
        self,
        chooser: ServerChooser,
        delays: DelayStrategy,
        manager: SubscriptionManager | None,
        user: str | None,
        password: str | None,
    ) -> None:
        core = self._core
        core.step_by_step = core.keep_subscriptions = True
        core.standing.advice_first = "call connect_and_logon() first"
        core.standing.advice = "the client connects again"
        self._counsel = Counsel(
            core.name,
            chooser,
            delays,
            manager,
            user=user,
            password=password,
            chance=random,
            tell=self._handlers.tell,
        )
        self._session = Session()
        self._restored = False
        self._instance = ""
        self._connection = 1
        """The number of the connection that the last attempt makes, or has made."""

    @property
    def _heartbeat_is_fixed(self) -> bool:
        return self._session.trying

    def _first_address(self, uri: str) -> Address:  # noqa: ARG002 - the chooser says where
        return NOWHERE

    def _reconnects(self, seconds: float | None) -> bool:  # noqa: ARG002 - it never stops without saying so
        return self._session.trying

    def _drops_kept(self, command: str, sub_ids: tuple[str, ...]) -> bool:
        """Whether the command ends subscriptions that only wait to be placed again: no server is needed."""
        if command != "unsubscribe" or self._session.ready or not sub_ids:
            return False
        kept = self._core.subscriptions.kept()
        return all(sub_id in kept for sub_id in sub_ids)

    @property
    def _attempt_seconds(self) -> float:
        return connect_attempt_seconds_default if self._timeout is None else self._timeout

    def _take_in(self, happened: Happened) -> None:
        """Tell the session, and the client machine whether anybody connects."""
        session, standing = self._session, self._core.standing
        trying, attempt = session.trying, session.attempt
        session.receive(happened, now())
        self._note_attempt(attempt)
        if session.trying and not trying:
            standing.begin()
        elif trying and session.stopped is not None:
            standing.stop(session.stopped)

    def _wake_session(self) -> None:
        """The session wanted to be woken by now."""
        attempt = self._session.attempt
        self._session.wake(now())
        self._note_attempt(attempt)

    def _note_attempt(self, before: int) -> None:
        if self._session.attempt != before:
            self._connection = self._core.connections + 1

    def _concerns_session(self, lost: Down) -> bool:
        """Whether that connection is not what an earlier attempt left."""
        return lost.connection >= self._connection

    def _not_in_time(self, seconds: float | None, what: str = "") -> TimedOut:
        """The error that there was no connection; `what` says what for."""
        last = self._session.last_error
        why = "" if last is None else f"; the last attempt: {last}"
        return TimedOut(f"no connection{what} {within(seconds)}{why}")
