"""Table guard: the lock of a table, and the waits of its calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from tickertape.base.errors import TimedOut
from tickertape.client.common.effects import Waiter

T = TypeVar("T")
Done = TypeVar("Done")
"""None, or an awaitable of None: the calls of tables that wait."""


class SendQuery(NamedTuple):
    """Send a query with `begin`, and wait until the server accepts it."""

    begin: Callable[[Waiter], None]


class WaitUntil(NamedTuple):
    """Wait until a condition is true."""

    condition: Callable[[], bool]


TableSteps: TypeAlias = Generator[SendQuery | WaitUntil, object, None]
"""The steps of one call of a table."""


class TableGuard(ABC, Generic[Done]):
    """Base of the guards of both clients."""

    lock: AbstractContextManager[object]
    """Held while the records change. The asyncio guard uses a null context."""
    opens_at_once: bool
    """Whether the constructor of the table waits for the records."""

    @abstractmethod
    def perform(
        self, steps: TableSteps, seconds: float | None, late: Callable[[float | None], TimedOut]
    ) -> Done:
        """Perform the steps of a call. After `seconds` it raises `late(seconds)`."""

    @abstractmethod
    def locked(self, step: Callable[[], T]) -> T:
        """Run a step under the lock on behalf of the application. Raises `Forked`."""

    @abstractmethod
    def wake(self) -> None:
        """Wake all waiting callers."""

    @abstractmethod
    def refuse(self) -> None:
        """Refuse every call from now on: this process is a forked child."""
