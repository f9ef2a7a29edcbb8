"""Table guard of the asyncio client: the event loop applies messages, and its tasks read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from typing import Any

from tickertape.base.errors import TimedOut
from tickertape.client.aio.driver import AsyncioDriver
from tickertape.client.aio.waiting import Notifier, perform, remaining
from tickertape.client.api.table_guard import SendQuery, T, TableGuard, TableSteps, WaitUntil


class AsyncioTableGuard(TableGuard[Coroutine[Any, Any, None]]):
    """Guard of a table of an `AsyncClient` or `AsyncHAClient`."""

    opens_at_once = False

    def __init__(self, driver: AsyncioDriver) -> None:
        self._driver = driver
        self._changed = Notifier()
        self.lock = nullcontext()

    async def perform(
        self, steps: TableSteps, seconds: float | None, late: Callable[[float | None], TimedOut]
    ) -> None:
        """Perform the steps of a call in this task."""
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds

        async def take(step: SendQuery | WaitUntil) -> None:
            self._driver.check_not_forked()
            if isinstance(step, SendQuery):
                await self._driver.call(step.begin, remaining(deadline), "the query of a table")
            elif not await self._changed.wait_for(step.condition, remaining(deadline)):
                raise late(seconds)

        await perform(steps, take)

    def locked(self, step: Callable[[], T]) -> T:
        """Run a step. Raises `Forked`."""
        self._driver.check_not_forked()
        return step()

    def wake(self) -> None:
        """Wake all waiting tasks."""
        self._changed.wake()

    def refuse(self) -> None:
        """Do nothing: the driver refuses every call in a forked child."""
