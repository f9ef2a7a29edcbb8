"""Owns what both HA clients do the same way: what they are made of, taking an event into the session and the
client machine together, and carrying out what the session wants to know from the application's objects.

Must never wait for a connection or an answer, nor know of threads, locks and event loops: the clients do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import random
from typing import Any, Literal, Self

from tickertape.base.errors import StoreError, TimedOut
from tickertape.base.units import within
from tickertape.client.bookmark_store import BookmarkStore, LoggedBookmarkStore, MemoryBookmarkStore
from tickertape.client.common.address import NO_ADDRESS, Address
from tickertape.client.common.credentials import Credentials, credentials_of, password_of
from tickertape.client.common.effects import ConnectionDown
from tickertape.client.common.handlers import HandlerRunner
from tickertape.client.common.waiting import now
from tickertape.client.ha.delay_strategy import DelayStrategy, delay_strategy
from tickertape.client.ha.policies import ApplicationPolicies, chooser_of
from tickertape.client.ha.reconnect import (
    AskChooser,
    AskDelay,
    Event,
    ReconnectMachine,
    ReportFailure,
    ReportSuccess,
    ResetDelay,
)
from tickertape.client.ha.server_chooser import ServerChooser
from tickertape.client.ha.subscription_manager import SubscriptionManager
from tickertape.client.limits import client_timeout_seconds, connect_attempt_seconds_default
from tickertape.client.protocol.core import ClientProtocol
from tickertape.client.publish_store import FilePublishStore, MemoryPublishStore, PublishStore
from tickertape.security.contexts import TLS

Consulting = ResetDelay | AskChooser | AskDelay | ReportSuccess | ReportFailure
"""What the session has told to the application's objects, or asked of them."""


class HAFrontend(ABC):
    """The half of an HA client that is neither blocking nor awaited."""

    _core: ClientProtocol
    _handlers: HandlerRunner
    _timeout: float | None
    _credentials: Credentials
    _reconnects_by_itself = True

    def __init__(
        self,
        name: str,
        *,
        servers: str | Sequence[str] | None = None,
        server_chooser: ServerChooser | None = None,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        tls: TLS | None = None,
        publish_store: PublishStore | Literal["memory"] | None = "memory",
        bookmark_store: BookmarkStore | None = None,
        reconnect_delay: float | str | DelayStrategy | None = None,
        heartbeat: float | str | None = None,
        subscription_manager: SubscriptionManager | None = None,
        timeout: float | str | None = client_timeout_seconds,
    ) -> None:
        chooser = chooser_of(servers, server_chooser)
        delays = delay_strategy(reconnect_delay)
        store = MemoryPublishStore() if publish_store == "memory" else publish_store
        credentials, password = credentials_of(tls, token), password_of(password, token)
        self._make_front(name, store, bookmark_store, timeout)
        self._credentials = credentials
        core = self._core
        self._policies = ApplicationPolicies(
            core.name,
            chooser,
            delays,
            subscription_manager,
            user=user,
            password=password,
            credentials=credentials,
            chance=random,
            tell=self._handlers.tell,
        )
        self._session = ReconnectMachine()
        self._restored = False
        self._instance = ""
        self._connection = 1
        """The number of the connection that the last attempt makes, or has made."""
        self._own = ExitStack()
        """Stores that were made for this client, and end with it."""
        if heartbeat is not None:
            core.set_heartbeat(heartbeat, None, now())

    @classmethod
    def memory_backed(cls, name: str, **options: Any) -> Self:
        """A client whose stores are in memory: they survive a lost connection. `options` as for the class."""
        return cls(name, publish_store="memory", bookmark_store=MemoryBookmarkStore(), **options)

    @classmethod
    def file_backed(
        cls, name: str, *, publish_path: str | Path, bookmark_path: str | Path, **options: Any
    ) -> Self:
        """A client whose stores are on disk: a `FilePublishStore` and a `LoggedBookmarkStore`, which survive
        the end of the process too. `close` closes them. `options` as for the class.

        Raises `StoreError` (`StoreLocked`, `StoreOfAnother`, ...) too.
        """
        with ExitStack() as opened:
            publish_store = FilePublishStore(publish_path)
            opened.callback(publish_store.close)
            bookmark_store = LoggedBookmarkStore(bookmark_path)
            opened.callback(bookmark_store.close)
            client = cls(name, publish_store=publish_store, bookmark_store=bookmark_store, **options)
            client._own = opened.pop_all()
        return client

    # -- what the clients do ----------------------------------------------------------------------------

    @abstractmethod
    def _make_front(
        self,
        name: str,
        publish_store: PublishStore | None,
        bookmark_store: BookmarkStore | None,
        timeout: float | str | None,
    ) -> None:
        """Make the client that the HA client is too, without a connection."""

    @abstractmethod
    def _feed(self, happened: Event) -> None:
        """Tell the session, and have it carried out."""

    # -- what they have in common -----------------------------------------------------------------------

    @property
    def _heartbeat_is_fixed(self) -> bool:
        return self._session.trying

    def _first_address(self, uri: str) -> Address:  # noqa: ARG002 - the chooser says where
        return NO_ADDRESS

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

    def _take_in(self, happened: Event) -> None:
        """Tell the session, and the client machine whether anybody connects."""
        session, core = self._session, self._core
        trying, attempt = session.trying, session.attempt
        session.receive(happened, now())
        self._note_attempt(attempt)
        if session.trying and not trying:
            core.connecting()
        elif trying and session.stopped is not None:
            core.stop(session.stopped)

    def _wake_session(self) -> None:
        """The session wanted to be woken by now."""
        attempt = self._session.attempt
        self._session.wake(now())
        self._note_attempt(attempt)

    def _note_attempt(self, before: int) -> None:
        if self._session.attempt != before:
            self._connection = self._core.connections + 1

    def _consult(self, effect: Consulting) -> None:
        policies = self._policies
        if isinstance(effect, ResetDelay):
            policies.refresh()
        elif isinstance(effect, AskChooser):
            self._feed(policies.choose())
        elif isinstance(effect, AskDelay):
            self._feed(policies.delay(effect.uri, now().mono))
        elif isinstance(effect, ReportSuccess):
            policies.succeeded(effect.uri, self._instance)
        else:
            policies.failed(effect.error, effect.uri)

    def _is_over(self, sub_id: str, reason: str) -> bool:
        """Whether the end of a stream with a handler is that of its subscription: another one of its id may
        go on, which it was to replace, or which replaced it. Closing the client is none."""
        return reason != "closed" and not self._core.subscriptions.handled(sub_id)

    def _close_own(self) -> None:
        """Close the stores that were made for this client. Never raises."""
        try:
            self._own.close()
        except StoreError as error:
            self._handlers.tell(error)

    def _concerns_session(self, lost: ConnectionDown) -> bool:
        """Whether that connection is not what an earlier attempt left."""
        return lost.connection >= self._connection

    def _not_in_time(self, seconds: float | None, what: str = "") -> TimedOut:
        """The error that there was no connection; `what` says what for."""
        last = self._session.last_error
        why = "" if last is None else f"; the last attempt: {last}"
        return TimedOut(f"no connection{what} {within(seconds)}{why}")
