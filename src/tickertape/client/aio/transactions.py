"""Owns transactions as an application uses them on an event loop; see `committing.py`.

Must never tell of a commit before the server did.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Lock
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self

from tickertape.base.errors import Disconnected, TickertapeError
from tickertape.batch import MessageBatch
from tickertape.client.aio.driver import AsyncioDriver
from tickertape.client.common.waiting import DEFAULT, Timeout, no_answer, remaining
from tickertape.client.limits import block_abort_seconds_max
from tickertape.client.protocol.transactions import (
    CommittedTransaction,
    ConnectionPin,
    Make,
    TransactionBuffer,
    asking,
    before_retry,
    onward,
    refused_for_good,
)
from tickertape.wire.commands import Committed


@asynccontextmanager
async def _alone(lock: Lock, seconds: float | None) -> AsyncIterator[None]:
    """Hold the lock; raises `TimedOut` when another task holds it for longer."""
    try:
        async with asyncio.timeout(seconds):
            await lock.acquire()
    except TimeoutError:
        raise no_answer("a transaction", seconds) from None
    try:
        yield
    finally:
        lock.release()


class AsyncClientTransaction(TransactionBuffer):
    """As `ClientTransaction`, on an event loop: an `async with` block, and `commit` is awaited."""

    _front: AsyncTransactionCalls
    _one_call: Lock
    """Held by the task that commits or aborts it."""

    async def commit(self, *, timeout: Timeout = DEFAULT) -> CommittedTransaction:
        """As `ClientTransaction.commit`, with tasks instead of threads."""
        return await self._front._commit_gathered(self, timeout)

    async def abort(self, *, timeout: Timeout = DEFAULT) -> None:
        """As `ClientTransaction.abort`."""
        await self._front._abort_gathered(self, timeout)

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
            await self.abort(timeout=block_abort_seconds_max)


class AsyncTransactionCalls(AsyncioDriver):
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
        made._front, made._one_call = self, Lock()
        return made

    async def _commit_gathered(
        self, gathered: AsyncClientTransaction, timeout: Timeout
    ) -> CommittedTransaction:
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        async with _alone(gathered._one_call, seconds):
            return gathered.result or await self._commit_alone(gathered, seconds, deadline)

    async def _abort_gathered(self, gathered: AsyncClientTransaction, timeout: Timeout) -> None:
        seconds = self._seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        async with _alone(gathered._one_call, seconds):
            make = gathered.aborting()
            if make is not None:
                with suppress(TickertapeError):  # it is over in any case
                    await self._ask(make, None, remaining(deadline))

    async def _commit_alone(
        self, gathered: TransactionBuffer, seconds: float | None, deadline: float | None
    ) -> CommittedTransaction:
        while True:
            steps, same = gathered.committing(), ConnectionPin()
            answer: object = None
            try:
                while True:
                    make, batch = onward(steps, answer)
                    try:
                        answer = await self._ask(make, batch, remaining(deadline), same)
                    except TickertapeError as error:
                        answer = error
            except StopIteration as done:
                committed: Committed = done.value
                return gathered.committed(committed)
            except Disconnected as lost:
                if refused_for_good(lost) or not self._reconnects(seconds):
                    raise
                # The loss itself may not be told yet: who asked again at once would keep it from being told.
                await asyncio.sleep(before_retry(deadline, seconds, lost))

    async def _ask(
        self, make: Make, batch: MessageBatch | None, timeout: Timeout, same: ConnectionPin | None = None
    ) -> object:
        """Ask the server something, and wait for its answer; over the `same` connection as before."""
        return await self._call(asking(self._core, make, batch, same), timeout, "a transaction")
