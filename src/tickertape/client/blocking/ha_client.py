"""Blocking HA client: the calls of `tickertape.HAClient`."""

from __future__ import annotations

from typing import Self

from tickertape.client.api.ha_frontend import HAFrontend
from tickertape.client.blocking.client import Client
from tickertape.client.blocking.ha_driver import HAThreadDriver
from tickertape.client.common.waiting import DEFAULT, Timeout


class HAClient(HAFrontend, Client):
    """A `Client` that gets itself a connection to one of several servers, and another one when it is lost.

    `servers`: one address or several, in the order of preference, or `server_chooser`: an object that says
    where to connect (`ServerChooser`). `user`, `password`, `token`, `tls`: as in `Client`; an authenticator
    of the chooser may give another password. `publish_store`: `"memory"` (default), a store, or None: what is
    in flight when a connection is lost has an unknown outcome then, and nothing can be published while there
    is none.
    `bookmark_store`: for those who discard messages; None (default): what a handler was given is done with.
    `reconnect_delay`: seconds or text for the same wait each time, a `DelayStrategy`, or None (default) for
    an `ExponentialDelayStrategy` that never gives up. `heartbeat`: seconds or text; see `set_heartbeat`.
    `subscription_manager`: remembers the subscriptions of handlers (`SubscriptionManager`; by default in
    memory). `timeout`: as in `Client`, and for one attempt.

    `connect_and_logon` (or `with`) makes the first connection. From then on, whenever the connection is lost,
    a thread of its own connects again: it asks the chooser, waits as the delay strategy says, connects, logs
    on, reports to the chooser, sends again what the publish store holds and the server lacks, and places the
    subscriptions that have handlers again, in their order. Streams that are read end with their connection.
    What is published meanwhile goes into the store; calls that need a server wait for it, as long as their
    timeout. A call that was sent when the connection was lost raises `Disconnected`.

    A client whose name another connection takes over comes back once, and gives up when that happens again:
    the two would throw each other out for ever. Raises `BadName`, `BadOption`, `StoreError`.
    """

    _driver: HAThreadDriver
    _driver_type = HAThreadDriver

    def connect_and_logon(self, timeout: Timeout = None) -> None:
        """Connect to one of the servers, and keep a connection from then on, until `close`.

        It returns when everything may be called; at once when that is so. `timeout` in seconds or text; None
        (default) = try until the chooser has no server or the delay strategy gives up, which raises
        `Disconnected`; the client is as before the call then, and the same holds for `TimedOut`. Raises
        `Closed`, and `NameInUse` when another connection took over the client name twice.
        """
        self._driver.connect(self._driver.seconds(timeout))

    def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """As `connect_and_logon`, by default for as long as the client's own timeout says."""
        self._driver.connect(self._driver.seconds(timeout))

    def disconnect(self, *, timeout: Timeout = DEFAULT) -> None:
        """The reference's name for `close`."""
        self.close(timeout=timeout)

    def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """As that of `Client`. With a publish store it goes on through lost connections, as long as `timeout`
        (None = until the client stops): the store has everything, and the client connects again."""
        self._driver.flush(timeout, level)

    def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send what was published, wait until the server has it, and disconnect for good.

        While there is no connection nothing is sent: a publish store on disk keeps it for the next process.
        `timeout` bounds the waiting, in seconds: a handler that still runs then ends by itself. Never raises:
        what went wrong is told to the exception listener. In a forked child nothing happens.
        """
        self._driver.close(timeout)

    def __enter__(self) -> Self:
        try:
            self.connect_and_logon()
        except BaseException:
            self.close()
            raise
        return self
