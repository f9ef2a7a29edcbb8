"""Public calls of both clients that do not wait: names, listeners, stores and heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tickertape.base.text_format import near_name
from tickertape.base.version import __version__
from tickertape.client.api.driver import ClientDriver, DriverSettings
from tickertape.client.bookmark_store.protocol import BookmarkStore, bind, check_store, refuse_own_client
from tickertape.client.common.address import parse_uri
from tickertape.client.common.connection_state import StateListener
from tickertape.client.common.credentials import credentials_of, password_of
from tickertape.client.common.handlers import ExceptionListener, Handler, HandlerRunner
from tickertape.client.limits import client_timeout_seconds
from tickertape.client.protocol.core import ClientProtocol
from tickertape.client.protocol.heartbeat import Interval
from tickertape.client.publish_store.protocol import PublishStore
from tickertape.security.tls_options import TLS
from tickertape.wire.commands import LoggedOn

DisconnectHandler = Callable[[Any], object]
SOFTWARE: Final = f"tickertape-python {__version__}"


class StrictAttributes:
    """Base of clients. A subclass of the application may have attributes of its own, except misspelt ones."""

    def __setattr__(self, name: str, value: object) -> None:
        kind = type(self)
        if not (name.startswith("_") or hasattr(kind, name)):
            near = near_name(name, [one for one in dir(kind) if is_settable(kind, one)], likeness=0.8)
            if near or kind.__module__.startswith("tickertape."):
                hint = f" Did you mean {near!r}?" if near else " Use a documented attribute."
                raise AttributeError(f"Cannot set {name!r}: {kind.__name__} has no such attribute.{hint}")
        super().__setattr__(name, value)


def is_settable(kind: type, name: str) -> bool:
    """Whether objects of `kind` have a public property that can be set."""
    found = getattr(kind, name, None)
    return not name.startswith("_") and isinstance(found, property) and found.fset is not None


class ClientFrontend(StrictAttributes):
    """Base of all clients: the calls that do not wait. The driver of the client does the work."""

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
        """Logon answer of the server. None while disconnected.

        Its attributes include `instance` (name of the server), `journal` (id of its log), `software`
        (version), `publisher` (publisher id of this client) and `message_bytes_max`.

        Example:
            >>> client.server.instance
            'tickertape'
        """
        return self._driver.logon.logged_on

    @property
    def connected(self) -> bool:
        """Whether the client is logged on. A lost connection is noticed with a delay: see `set_heartbeat`.

        Example:
            >>> client.connected
            True
        """
        return self._driver.logon.connected

    def set_heartbeat(self, interval: Interval | None, idle: Interval | None = None) -> None:
        """Enable heartbeats, which detect and end a dead connection.

        Both sides send at least one frame per interval, on this connection and on later ones. The server
        closes the connection after two intervals without data from this client. The client closes it, with
        the reason `HeartbeatMissed`, after the time `idle` without data from the server. Data counts as
        soon as it arrives, so a slow handler does not end the connection.

        Args:
            interval: Seconds or text (`"5s"`), 0.1 to 3,600 seconds. None: no heartbeats (the default of a
                client).
            idle: Seconds or text, longer than `interval`. None (default): twice the interval.

        Raises:
            BadOption: An interval is invalid.
            UsageError: An HA client is connected or connecting. Call this before `connect_and_logon`, or pass
                `heartbeat` to the class.
            Forked: The process is a forked child.

        Example:
            >>> client.set_heartbeat("5s")
        """
        self._driver.set_heartbeat(interval, idle)

    def set_ack_conflation(self, interval: float | str | None) -> None:
        """Request at most one publish acknowledgement per interval, from the next logon on.

        Fewer acknowledgements reduce the cost for a publisher of large batches (`publish_batch`). They do not
        help `publish`. Without an interval, `publish` collects messages into larger frames while the client
        waits for an acknowledgement. With an interval, the client sends messages in small frames, as soon as
        earlier frames are written. A publish store keeps messages for up to one interval longer. The server
        acknowledges earlier if the store is full or `publish_flush` waits.

        Args:
            interval: Seconds or text (`"100ms"`), 1 ms to one day. None: one acknowledgement per group commit
                of the server (the default of a client).

        Raises:
            BadOption: The interval is invalid.

        Example:
            >>> client.set_ack_conflation("100ms")
        """
        self._driver.logon.set_ack_conflation(interval)

    def set_exception_listener(self, listener: ExceptionListener | None) -> None:
        """Set the listener for exceptions of handlers, and for other errors that no call can raise.

        Args:
            listener: Called as `listener(exception)` on the thread (or event loop) where the error occurred.
                It must not block. None: log the exceptions with the logger `tickertape.client` (the default
                of a client).

        Example:
            >>> errors = []
            >>> client.set_exception_listener(errors.append)
        """
        self._driver.handlers.set_listener(listener)

    def set_duplicate_message_handler(self, handler: Handler | None) -> None:
        """Set the handler for messages that duplicate detection drops.

        Duplicates are redelivered messages of bookmark subscriptions, for example after a reconnect. With a
        bookmark store, the client drops messages that the application has discarded (`Message.discard`), and
        messages that it has already delivered on the same connection. Without a bookmark store, an HA
        client drops messages that it has already delivered.

        Args:
            handler: Called as `handler(message)`, like other handlers. Its exceptions go to the exception
                listener. None: drop duplicates silently (the default of a client).

        Example:
            >>> duplicates = []
            >>> client.set_duplicate_message_handler(duplicates.append)
        """
        self._driver.set_duplicate_handler(handler)

    def add_connection_state_listener(self, listener: StateListener) -> None:
        """Add a listener for changes of the connection state.

        Args:
            listener: Called as `listener(state)` with each `ConnectionState`, in order. After a lost
                connection, it is called before the disconnect handler. It runs on the thread (or event loop)
                that detects the change, must not block, and its exceptions go to the exception listener. A
                listener that is added twice is called once per change.

        Raises:
            UsageError: `listener` is not callable.

        Example:
            >>> states = []
            >>> client.add_connection_state_listener(states.append)
            >>> client.close()
            >>> tt.ConnectionState.SHUTDOWN in states
            True
        """
        self._driver.add_state_listener(listener)

    def remove_connection_state_listener(self, listener: StateListener) -> None:
        """Remove a connection-state listener. Does nothing for an unknown listener.

        Args:
            listener: The listener that `add_connection_state_listener` added.

        Example:
            >>> states = []
            >>> client.add_connection_state_listener(states.append)
            >>> client.remove_connection_state_listener(states.append)
            >>> client.close()
            >>> states
            []
        """
        self._driver.remove_state_listener(listener)

    @property
    def ack_level(self) -> str | None:
        """Weakest durability of the messages that the last `publish_flush` waited for.

        `"replicated(N)"`: on the disk of the server and of N synchronous destinations. `"local"`: on the disk
        of the server. `"written"`: not synced to a disk here or there. None before the first flush with a
        message.

        Example:
            >>> sequence = client.publish("orders", {"id": 1})
            >>> client.publish_flush()
            >>> client.ack_level
            'local'
        """
        return self._driver.core.ack_level

    def unpersisted_count(self) -> int:
        """Return the number of messages in the publish store that are not known to be persisted.

        Returns:
            The number, or 0 without a publish store.

        Raises:
            Forked: The process is a forked child.

        Example:
            >>> client.set_publish_store(tt.MemoryPublishStore())
            >>> sequence = client.publish("orders", {"id": 1})
            >>> client.publish_flush()
            >>> client.unpersisted_count()
            0
        """
        return self._driver.unpersisted_count()

    def set_publish_store(self, store: PublishStore | None) -> None:
        """Replace the publish store.

        Args:
            store: The new store. None: no store.

        Raises:
            UsageError: The current store still holds messages, or `store` is not a publish store.
            StoreOwnerMismatch: The store belongs to another client name.
            StoreError: The store failed.
            Closed: The store is closed.
            BadCommand: The server has no sequence numbers left for this client name.
            Forked: The process is a forked child.

        Example:
            >>> client.set_publish_store(tt.MemoryPublishStore())
            >>> sequence = client.publish("orders", {"id": 1})
            >>> client.publish_flush()
        """
        self._driver.set_publish_store(store)

    @property
    def bookmark_store(self) -> BookmarkStore | None:
        """The bookmark store of the client, or None."""
        return self._driver.subscriptions.store

    def set_bookmark_store(self, store: BookmarkStore | None) -> None:
        """Replace the bookmark store.

        Args:
            store: The new store. None: no store.

        Raises:
            UsageError: A bookmark subscription runs, `store` is not a bookmark store, or its recovery point
                adapter uses this client.
            StoreOwnerMismatch: The store belongs to another client name.
            StoreError: The store failed.
            Closed: The store is closed.
            Forked: The process is a forked child.

        Example:
            >>> client.set_bookmark_store(tt.MemoryBookmarkStore())
            >>> stream = client.bookmark_subscribe("orders", tt.MOST_RECENT, sub_id="risk")
        """
        self._driver.check_not_forked()
        if store is not None:
            check_store(store)
            refuse_own_client(store, self)
            bind(store, self.name)
        self._driver.set_bookmark_store(store)
