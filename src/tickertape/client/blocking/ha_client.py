"""Blocking HA client: the public class `tickertape.HAClient`."""

from __future__ import annotations

from typing import Self

from tickertape.client.api.ha_frontend import HAFrontend
from tickertape.client.blocking.client import Client
from tickertape.client.blocking.ha_driver import HAThreadDriver
from tickertape.client.common.waiting import DEFAULT, Timeout


class HAClient(HAFrontend, Client):
    """A blocking client that reconnects automatically, to the same or the next server of a list.

    `connect_and_logon` (or `with`) opens the first connection. After each lost connection, a reconnect thread
    asks the server chooser for a server, waits as the delay strategy requests, connects and logs on. Then the
    client sends the stored messages that the server does not have. Finally it resubscribes the subscriptions
    with handlers, in subscribe order.

    Streams without a handler end with their connection. While the client is disconnected, `publish` puts
    messages into the publish store. It raises `Disconnected` if the client has no store, or if the topic is
    known to be non-persistent. Other calls wait for the connection, within their timeout. A call that waits
    for an answer when the connection is lost raises `Disconnected`. Three calls continue on the next
    connection
    instead: `commit` of a transaction and, with a publish store, `publish_flush` and `sow_delete`.

    If another connection takes over the client name, the client reconnects once. After a second takeover
    within 10 minutes it gives up: otherwise the two clients would disconnect each other for ever.

    Args:
        name: The client name, as in `Client`.
        servers: One or more addresses, in order of preference. Give either `servers` or `server_chooser`.
        server_chooser: Selects the server of each attempt (`ServerChooser`).
        user: User of the logon, as in `Client`.
        password: Password of the logon. An authenticator of the server chooser may return another one.
        token: Access token, as in `Client`.
        tls: Certificates for `tls://` addresses, as in `Client`.
        publish_store: A publish store, or `"memory"` (default) for a `MemoryPublishStore`. None: after a lost
            connection the outcome of messages in flight is unknown, and `publish` fails while disconnected.
        bookmark_store: Records which messages the application discarded (has processed). None (default):
            delivered messages count as processed.
        reconnect_delay: Fixed wait between attempts, in seconds or text, or a `DelayStrategy`. None
            (default): an `ExponentialDelayStrategy` that never gives up.
        heartbeat: Heartbeat interval in seconds or text. None (default): no heartbeats. See `set_heartbeat`.
        subscription_manager: Stores the subscriptions with handlers (`SubscriptionManager`). None (default):
            in memory.
        timeout: Default timeout of all calls except `connect_and_logon`, as in `Client`, and the timeout of
            one connection attempt. Default 10 seconds.

    Raises:
        BadName: The client name is invalid.
        BadOption: Another parameter is invalid.
        UsageError: `publish_store` or `bookmark_store` is not a store.
        StoreOwnerMismatch: A store belongs to another client name.
        StoreError: A store failed.
        Closed: A store is closed.

    Example:
        >>> with tt.HAClient("risk", servers=[uri], heartbeat="5s") as client:
        ...     sequence = client.publish("orders", {"id": 1})
        ...     client.publish_flush()
    """

    _driver: HAThreadDriver
    _driver_type = HAThreadDriver

    def connect_and_logon(self, timeout: Timeout = None) -> None:
        """Connect to one of the servers, and reconnect automatically until `close`.

        The call returns after the logon, the resend of stored messages and the resubscribes. If the client
        has already done all three, it returns immediately. After a refused logon the client tries again, as
        after a failed connection.

        After an error the call can be repeated. After `Disconnected`, `NameInUse` or `StoreError` the client
        has stopped connecting. After `TimedOut` the client continues to connect if it was connected before,
        or if another call waits for the connection.

        Args:
            timeout: Longest wait in seconds or text (`"30s"`). None (default): until the server chooser has
                no server, or the delay strategy gives up.

        Raises:
            Disconnected: The server chooser or the delay strategy gave up. The text has the last error.
            TimedOut: Not connected within `timeout`.
            NameInUse: Other connections took over the client name twice within 10 minutes.
            StoreError: The publish store failed, which ends the attempts.
            BadOption: The timeout is invalid.
            Closed: The client is closed.
            UsageError: The call is on the receive thread or the reconnect thread, for example in a handler.

        Example:
            >>> client = tt.HAClient("risk", servers=[uri])
            >>> client.connect_and_logon(timeout="30s")
            >>> client.connected
            True
        """
        self._driver.connect(self._driver.seconds(timeout))

    def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """Connect as `connect_and_logon` does, by default within the timeout of the client.

        Args:
            timeout: Longest wait in seconds or text. None: no timeout. Default: the timeout of the client.

        All errors: see `connect_and_logon`.

        Example:
            >>> client = tt.HAClient("risk", servers=[uri])
            >>> client.connect()
        """
        self._driver.connect(self._driver.seconds(timeout))

    def disconnect(self, *, timeout: Timeout = DEFAULT) -> None:
        """Close the client: another name of `close`.

        Args:
            timeout: Longest wait, as in `close`. Default: the timeout of the client.

        Raises:
            BadOption: The timeout is invalid. The client stays open.

        Example:
            >>> client.disconnect()
        """
        self.close(timeout=timeout)

    def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """Wait until all published messages are persisted.

        With a publish store, the wait continues through lost connections: the client reconnects and resends
        the stored messages.

        Args:
            timeout: Longest wait in seconds or text. None: no timeout. Default: the timeout of the client.
            level: `"persisted"` (default) or `"processed"`, as in `Client.publish_flush`.

        Raises:
            Disconnected: The client has stopped connecting. Or the connection was lost, and the client has no
                publish store.

        All other errors: see `Client.publish_flush`.

        Example:
            >>> sequence = client.publish("orders", {"id": 1})
            >>> client.publish_flush(timeout=10)
            >>> client.unpersisted_count()
            0
        """
        self._driver.flush(timeout, level)

    def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send all published messages, wait until the server has received them, and disconnect permanently.

        If the client has no connection at the call, it sends nothing: a publish store on disk keeps the
        messages for the next process. Errors during the close go to the exception listener, not to the
        caller. On the receive thread (in a handler) the call does not wait. In a forked child it does
        nothing.

        Args:
            timeout: Longest wait in seconds or text. After this time the call returns, even if a handler is
                still running. None: no timeout. Default: the timeout of the client.

        Raises:
            BadOption: The timeout is invalid. The client stays open.

        Example:
            >>> sequence = client.publish("orders", {"id": 1})
            >>> client.close()
            >>> client.connected
            False
        """
        self._driver.close(timeout)

    def __enter__(self) -> Self:
        try:
            self.connect_and_logon()
        except BaseException:
            self.close()
            raise
        return self
