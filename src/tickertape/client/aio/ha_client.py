"""Asyncio HA client: the public class `tickertape.AsyncHAClient`."""

from __future__ import annotations

from typing import Self

from tickertape.client.aio.client import AsyncClient
from tickertape.client.aio.ha_driver import AsyncioHADriver
from tickertape.client.api.ha_frontend import HAFrontend
from tickertape.client.common.waiting import DEFAULT, Timeout


class AsyncHAClient(HAFrontend, AsyncClient):
    """An asyncio client that reconnects automatically, to the same or the next server of a list.

    It has the parameters and the behaviour of `HAClient`, with a reconnect task instead of a thread. Server
    choosers, delay strategies and subscription managers run on the event loop and must not block. An
    `Authenticator` may have coroutine functions as `authenticate` and `retry`.

    `async with` connects the client, and closes it at the end of the block. The client belongs to the event
    loop on which it connected. After that loop has ended, `connect_and_logon` can connect on another loop.

    Args:
        name: The client name. All other parameters: see `HAClient`.

    Raises:
        BadName: The client name is invalid.
        BadOption: Another parameter is invalid.
        UsageError: `publish_store` or `bookmark_store` is not a store.
        StoreOwnerMismatch: A store belongs to another client name.
        StoreError: A store failed.
        Closed: A store is closed.

    Example:
        >>> async with tt.AsyncHAClient("risk", servers=[uri], heartbeat="5s") as client:
        ...     sequence = await client.publish("orders", {"id": 1})
        ...     await client.publish_flush()
    """

    _driver: AsyncioHADriver
    _driver_type = AsyncioHADriver

    async def connect_and_logon(self, timeout: Timeout = None) -> None:
        """Connect to one of the servers, and reconnect automatically until `close`.

        See `HAClient.connect_and_logon`.

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
            UsageError: The call is in the reconnect task, for example in an authenticator. Or the client is
                connected on another event loop, which is still running.

        Example:
            >>> client = tt.AsyncHAClient("risk", servers=[uri])
            >>> await client.connect_and_logon(timeout="30s")
            >>> client.connected
            True
        """
        await self._driver.connect(self._driver.seconds(timeout))

    async def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """Connect as `connect_and_logon` does, by default within the timeout of the client.

        Args:
            timeout: Longest wait in seconds or text. None: no timeout. Default: the timeout of the client.

        All errors: see `connect_and_logon`.

        Example:
            >>> client = tt.AsyncHAClient("risk", servers=[uri])
            >>> await client.connect()
        """
        await self._driver.connect(self._driver.seconds(timeout))

    async def disconnect(self, *, timeout: Timeout = DEFAULT) -> None:
        """Close the client: another name of `close`.

        Args:
            timeout: Longest wait, as in `close`. Default: the timeout of the client.

        Raises:
            BadOption: The timeout is invalid. The client stays open.

        Example:
            >>> await client.disconnect()
        """
        await self.close(timeout=timeout)

    async def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """Wait until all published messages are persisted. See `HAClient.publish_flush`.

        With a publish store, the wait continues through lost connections.

        Args:
            timeout: Longest wait in seconds or text. None: no timeout. Default: the timeout of the client.
            level: `"persisted"` (default) or `"processed"`, as in `Client.publish_flush`.

        Raises:
            Disconnected: The client has stopped connecting. Or the connection was lost, and the client has no
                publish store.

        All other errors: see `Client.publish_flush`.

        Example:
            >>> sequence = await client.publish("orders", {"id": 1})
            >>> await client.publish_flush(timeout=10)
            >>> client.unpersisted_count()
            0
        """
        await self._driver.flush(timeout, level)

    async def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send all published messages, wait until the server has received them, and disconnect permanently.

        If the client has no connection at the call, it sends nothing: a publish store on disk keeps the
        messages for the next process. A cancelled `close` closes the client too. Errors during the close go
        to the exception listener, not to the caller. In a forked child the call does nothing.

        Args:
            timeout: Longest wait in seconds or text. `close` cancels handlers that run longer. None: no
                timeout. Default: the timeout of the client.

        Raises:
            BadOption: The timeout is invalid. The client stays open.

        Example:
            >>> sequence = await client.publish("orders", {"id": 1})
            >>> await client.close()
            >>> client.connected
            False
        """
        await self._driver.close(timeout)

    async def __aenter__(self) -> Self:
        try:
            await self.connect_and_logon()
        except BaseException:
            await self.close()
            raise
        return self
