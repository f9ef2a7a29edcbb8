"""Table guard of the blocking client: the receive thread applies messages, and other threads read."""

from __future__ import annotations

import time
from collections.abc import Callable

from tickertape.base.errors import TimedOut
from tickertape.client.api.table_guard import SendQuery, TableGuard, TableSteps, WaitUntil
from tickertape.client.blocking.driver import ThreadDriver
from tickertape.client.blocking.receivers import ThreadGuard
from tickertape.client.blocking.waiting import perform
from tickertape.client.common.waiting import remaining


class ThreadTableGuard(ThreadGuard, TableGuard[None]):
    """Guard of a table of a `Client` or `HAClient`."""

    opens_at_once = True

    def __init__(self, driver: ThreadDriver) -> None:
        self._driver = driver
        self.make_lock()

    def perform(
        self, steps: TableSteps, seconds: float | None, late: Callable[[float | None], TimedOut]
    ) -> None:
        """Perform the steps of a call on this thread."""
        deadline = None if seconds is None else time.monotonic() + seconds

        def take(step: SendQuery | WaitUntil) -> None:
            if isinstance(step, SendQuery):
                self._driver.call(step.begin, remaining(deadline), "the query of a table")
                return
            self._driver.check_may_wait("a table")
            if not self.locked(self.wait_until, step.condition, remaining(deadline)):
                raise late(seconds)

        perform(steps, take)
