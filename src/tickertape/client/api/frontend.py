"""Public calls of both clients that do not wait: names, listeners, stores and heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tickertape.base.version import __version__
from tickertape.client.api.driver import ClientDriver, DriverSettings
from tickertape.client.api.strict import StrictAttributes
from tickertape.client.bookmark_store.protocol import BookmarkStore, bind, refuse_own_client
from tickertape.client.common.address import parse_uri
from tickertape.client.common.connection_state import StateListener
from tickertape.client.common.credentials import credentials_of, password_of
from tickertape.client.common.handlers import ExceptionListener, Handler, HandlerRunner
from tickertape.client.limits import client_timeout_seconds
from tickertape.client.protocol.core import ClientProtocol
from tickertape.client.protocol.heartbeat import Interval
from tickertape.client.publish_store.protocol import PublishStore
from tickertape.security.contexts import TLS
from tickertape.wire.commands import LoggedOn

DisconnectHandler = Callable[[Any], object]
SOFTWARE: Final = f"tickertape-python {__version__}"


class ClientFrontend(StrictAttributes):
    """The part of a client that neither waits nor sends. The driver of the client does the work."""

    _driver: ClientDriver
    _driver_type: type[Any]

    def __init__(
        self,
        name: str,
        uri: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        tls: TLS | None = None,
        publish_store: PublishStore | None = None,
        bookmark_store: BookmarkStore | None = None,
        timeout: float | str | None = client_timeout_seconds,
    ) -> None:
        credentials, password = credentials_of(tls, token), password_of(password, token)
        address = parse_uri(uri)
        credentials.check(address)
        core = ClientProtocol(
            name,
            user=user if user is not None else address.user,
            password=password if password is not None else address.password,
            software=SOFTWARE,
        )
        settings = DriverSettings(HandlerRunner(), address, credentials, timeout)
        self._drive_with(self._driver_type(core, settings), publish_store, bookmark_store)

    def _drive_with(
        self, driver: ClientDriver, publish_store: PublishStore | None, bookmark_store: BookmarkStore | None
    ) -> None:
        self._driver = driver
        self._publishing = driver.publishing
        if bookmark_store is not None:
            self.set_bookmark_store(bookmark_store)
        if publish_store is not None:
            driver.set_publish_store(publish_store)

    def __repr__(self) -> str:
        driver = getattr(self, "_driver", None)
        kind = type(self).__name__
        return f"<{kind}>" if driver is None else driver.shown(kind)

    @property
    def name(self) -> str:
        """The client name."""
        return self._driver.core.name

    @property
    def server(self) -> LoggedOn | None:
        """The server's answer to the logon (instance, journal, publisher, ...); None while disconnected."""
        return self._driver.logon.logged_on

    @property
    def connected(self) -> bool:
        """Whether the client is logged on, as far as it knows."""
        return self._driver.logon.connected

    def set_heartbeat(self, interval: Interval | None, idle: Interval | None = None) -> None:
        """Have both sides show that they live, so that a dead connection ends instead of standing still.

        From now on, also on later connections, each side says something every `interval` (seconds or text,
        0.1 to 3,600 seconds; None: no heartbeat, the default). The server ends the connection when nothing
        came from this client for two intervals; the client ends it, with `HeartbeatMissed` as the reason,
        when nothing came from the server for `idle` (seconds or text, above `interval`, default twice as
        much). What has arrived counts, read or not: a handler that takes long does not cost the connection.
        Raises `BadOption`, and `UsageError` on an HA client that is connected or connecting.
        """
        self._driver.set_heartbeat(interval, idle)

    def set_ack_conflation(self, interval: float | str | None) -> None:
        """Ask the server, with the next logon, for at most one persisted acknowledgement in each `interval`.

        `interval`: seconds or text (`"100ms"`), 1 ms to a day; None (default): one with every commit. Fewer
        acknowledgements cost a publisher of large batches less. Each `publish` is sent in a frame of its own,
        so use `publish_batch` for throughput. A publish store holds messages for up to an interval longer,
        unless it is full. `publish_flush` does not wait for the interval. Raises `BadOption`.
        """
        self._driver.logon.set_ack_conflation(interval)

    def set_exception_listener(self, listener: ExceptionListener | None) -> None:
        """Call `listener(exception)` for what handlers raise; None (default): log it."""
        self._driver.handlers.set_listener(listener)

    def set_duplicate_message_handler(self, handler: Handler | None) -> None:
        """Call `handler(message)` for each message that duplicate detection drops; None (default): for none.

        These are messages of bookmark subscriptions that arrive again, after a reconnection for instance, and
        were discarded before, or delivered where no bookmark store keeps account. They do not come out of the
        stream. The handler runs where other handlers run; its exceptions go to the exception listener.
        """
        self._driver.set_duplicate_handler(handler)

    def add_connection_state_listener(self, listener: StateListener) -> None:
        """Call `listener(state)` with each `ConnectionState` that the connection comes to, in order.

        It runs where other handlers run, before the disconnect handler, and must not wait. One that is added
        twice is called once. Raises `UsageError` for what cannot be called.
        """
        self._driver.add_state_listener(listener)

    def remove_connection_state_listener(self, listener: StateListener) -> None:
        """Call it no more; nothing happens when it is not called."""
        self._driver.remove_state_listener(listener)

    def unpersisted_count(self) -> int:
        """Messages of the publish store that are not known to be persisted; 0 without a store."""
        return self._driver.unpersisted_count()

    def set_publish_store(self, store: PublishStore | None) -> None:
        """Use `store` from now on. Raises `UsageError` while the present one still holds messages."""
        self._driver.set_publish_store(store)

    @property
    def bookmark_store(self) -> BookmarkStore | None:
        """The store that remembers bookmark subscriptions."""
        return self._driver.subscriptions.store

    def set_bookmark_store(self, store: BookmarkStore | None) -> None:
        """Use `store` from now on. Raises `UsageError` while a bookmark subscription runs, and for a store
        whose adapter works through this client; `StoreOfAnother` for a file with the positions of another
        client name."""
        self._driver.check_not_forked()
        if store is not None:
            refuse_own_client(store, self)
            bind(store, self.name)
        self._driver.set_bookmark_store(store)
