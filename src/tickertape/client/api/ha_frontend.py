"""Base of both HA clients: their parameters, and the constructors with stores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self

from tickertape.client.api.driver import DriverSettings
from tickertape.client.api.frontend import SOFTWARE, ClientFrontend
from tickertape.client.api.ha_driver import HADriver
from tickertape.client.bookmark_store import BookmarkStore, LoggedBookmarkStore, MemoryBookmarkStore
from tickertape.client.common.address import NO_ADDRESS
from tickertape.client.common.credentials import credentials_of, password_of
from tickertape.client.common.handlers import HandlerRunner
from tickertape.client.common.waiting import now
from tickertape.client.ha.delay_strategy import DelayStrategy, delay_strategy
from tickertape.client.ha.policies import ApplicationPolicies, chooser_of
from tickertape.client.ha.server_chooser import ServerChooser
from tickertape.client.ha.subscription_manager import SubscriptionManager
from tickertape.client.limits import client_timeout_seconds
from tickertape.client.protocol.core import ClientProtocol
from tickertape.client.publish_store import FilePublishStore, MemoryPublishStore, PublishStore
from tickertape.security.tls_options import TLS


class HAFrontend(ClientFrontend):
    """Base of `HAClient` and `AsyncHAClient`: the parts that do not wait."""

    _driver: HADriver

    def __init__(
        self,
        name: str,
        servers: str | Sequence[str] | None = None,
        *,
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
        credentials = credentials_of(tls, token)
        core, handlers = ClientProtocol(name, software=SOFTWARE, reconnects=True), HandlerRunner()
        policies = ApplicationPolicies(
            name,
            chooser,
            delays,
            subscription_manager,
            user=user,
            password=password_of(password, token),
            credentials=credentials,
            handlers=handlers,
        )
        settings = DriverSettings(handlers, NO_ADDRESS, credentials, timeout)
        self._drive_with(self._driver_type(core, settings, policies), store, bookmark_store)
        if heartbeat is not None:
            core.set_heartbeat(heartbeat, None, now())

    @classmethod
    def memory_backed(cls, name: str, **options: Any) -> Self:
        """Create a client with stores in memory, which survive a lost connection but not the end of the
        process.

        Args:
            name: The client name.
            options: All other parameters of the class except the two stores, such as `servers`.

        Raises:
            BadName: The client name is invalid.
            BadOption: Another parameter is invalid.

        Example:
            >>> with tt.HAClient.memory_backed("risk", servers=uri) as client:
            ...     sequence = client.publish("orders", {"id": 1})
            ...     client.publish_flush()
        """
        return cls(name, publish_store="memory", bookmark_store=MemoryBookmarkStore(), **options)

    @classmethod
    def file_backed(
        cls, name: str, *, publish_path: str | Path, bookmark_path: str | Path, **options: Any
    ) -> Self:
        """Create a client whose stores are on disk, and so survive the end of the process.

        The stores are a `FilePublishStore` and a `LoggedBookmarkStore`. `close` of the client closes them.

        Args:
            name: The client name.
            publish_path: Directory of the publish store.
            bookmark_path: File of the bookmark store.
            options: All other parameters of the class except the two stores, such as `servers`.

        Raises:
            StoreLocked: Another process or store uses one of the paths.
            StoreOwnerMismatch: A store belongs to another client name.
            StoreError: Another error of a store, such as `StoreFailed` or `StoreCorrupt`.
            BadName: The client name is invalid.
            BadOption: Another parameter is invalid.

        Example:
            >>> client = tt.HAClient.file_backed(
            ...     "risk", publish_path="publishes", bookmark_path="bookmarks", servers=uri
            ... )
            >>> sequence = client.publish("orders", {"id": 1})  # stored before the client connects
            >>> client.connect_and_logon(timeout=5)
            >>> client.publish_flush()
            >>> client.close()
        """
        with ExitStack() as opened:
            publish_store = FilePublishStore(publish_path)
            opened.callback(publish_store.close)
            bookmark_store = LoggedBookmarkStore(bookmark_path)
            opened.callback(bookmark_store.close)
            client = cls(name, publish_store=publish_store, bookmark_store=bookmark_store, **options)
            client._driver.own(opened.pop_all())
        return client
