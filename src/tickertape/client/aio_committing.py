"""Owns transactions as an application uses them on an event loop; see `committing.py`.

Must never tell of a commit before the server did.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from tickertape.base.errors import Disconnected, TickertapeError
from tickertape.batch import MessageBatch
from tickertape.client.loop_driver import LoopDriver
from tickertape.client.transaction import (
    CommittedTransaction,
    Gathering,
    Make,
    SameConnection,
    asking,
    before_retry,
    onward,
)
from tickertape.client.waiting import DEFAULT, Timeout, left
from tickertape.wire.commands import Committed


class AsyncClientTransaction(Gathering):
    """As `ClientTransaction`, on an event loop: an `async with` block, and `commit` is awaited."""

    _commit: Callable[[Gathering, Timeout], Awaitable[CommittedTransaction]]

    async def commit(self, *, timeout: Timeout = DEFAULT) -> CommittedTransaction:
        """As `ClientTransaction.commit`."""
        return await self._commit(self, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.result is not None or self.aborted:
            return
        if kind is None:
            await self.commit()
        elif not self.uncertain:
            self.abort()


class AsyncTransacting(LoopDriver):
    """The part of `AsyncClient` that commits transactions."""

    def transaction(
        self,
        name: str | None = None,
        *,
        publisher: str | None = None,
        space: str = "",
        bytes_max: int | str | None = None,
    ) -> AsyncClientTransaction:
        """As `Client.transaction`."""
        made = AsyncClientTransaction(self.name if publisher is None else publisher, name, space, bytes_max)
        made._commit = self._commit_gathered
        return made

    async def _commit_gathered(self, gathered: Gathering, timeout: Timeout) -> CommittedTransaction:
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            steps, same = gathered.committing(), SameConnection()
            answer: object = None
            try:
                while True:
                    make, batch = onward(steps, answer)
                    try:
                        answer = await self._ask(make, batch, left(deadline), same)
                    except TickertapeError as error:
                        answer = error
            except StopIteration as done:
                committed: Committed = done.value
                return gathered.committed(committed)
            except Disconnected as lost:
                if not self._reconnects(seconds):
                    raise
                # The loss itself may not be told yet: who asked again at once would keep it from being told.
                await asyncio.sleep(before_retry(deadline, seconds, lost))

    async def _ask(
        self, make: Make, batch: MessageBatch | None, timeout: Timeout, same: SameConnection | None = None
    ) -> object:
        """Ask the server something, and wait for its answer; over the `same` connection as before."""
        return await self._call(asking(self._core, make, batch, same), timeout, "a transaction")
