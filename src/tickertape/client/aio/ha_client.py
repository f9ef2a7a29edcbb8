"""Asyncio HA client: the calls of `tickertape.AsyncHAClient`."""

from __future__ import annotations

from typing import Self

from tickertape.client.aio.client import AsyncClient
from tickertape.client.aio.ha_driver import AsyncioHADriver
from tickertape.client.api.ha_frontend import HAFrontend
from tickertape.client.common.waiting import DEFAULT, Timeout


class AsyncHAClient(HAFrontend, AsyncClient):
    """An `AsyncClient` that gets itself a connection to one of several servers, and another when it is lost.

    The parameters, and what it does, are those of `HAClient`, in a task of its own. What the chooser, the
    delay strategy and the subscription manager do must not wait; the methods of an authenticator that give a
    password may be coroutine functions. `async with` connects, and closes at the end. It belongs to the event
    loop on which it connected; when that has ended, `connect_and_logon` begins anew on another one.

    Raises `BadName`, `BadOption`, `StoreError`.
    """

    _driver: AsyncioHADriver
    _driver_type = AsyncioHADriver

    async def connect_and_logon(self, timeout: Timeout = None) -> None:
        """Connect to one of the servers, and keep a connection from then on, until `close`.

        It returns when everything may be called; at once when that is so. `timeout` in seconds or text; None
        (default) = try until the chooser has no server or the delay strategy gives up, which raises
        `Disconnected`; the client is as before the call then, and the same holds for `TimedOut`. Raises
        `Closed`, and `NameInUse` when another connection took over the client name twice.
        """
        await self._driver.connect(self._driver.seconds(timeout))

    async def connect(self, *, timeout: Timeout = DEFAULT) -> None:
        """As `connect_and_logon`, by default for as long as the client's own timeout says."""
        await self._driver.connect(self._driver.seconds(timeout))

    async def disconnect(self, *, timeout: Timeout = DEFAULT) -> None:
        """The reference's name for `close`."""
        await self.close(timeout=timeout)

    async def publish_flush(self, timeout: Timeout = DEFAULT, level: str = "persisted") -> None:
        """As that of `AsyncClient`. With a publish store it goes on through lost connections, as long as
        `timeout` (None = until the client stops): the store has everything, and the client connects again."""
        await self._driver.flush(timeout, level)

    async def close(self, *, timeout: Timeout = DEFAULT) -> None:
        """Send what was published, wait until the server has it, and disconnect for good.

        While there is no connection nothing is sent: a publish store on disk keeps it for the next process.
        `timeout` bounds the waiting, in seconds or text; handlers that still run then are cancelled. Never
        raises but when it is cancelled, and then it is closed all the same: what went wrong is told to the
        exception listener. In a forked child nothing happens.
        """
        await self._driver.close(timeout)

    async def __aenter__(self) -> Self:
        try:
            await self.connect_and_logon()
        except BaseException:
            await self.close()
            raise
        return self
