"""Transaction of the asyncio client."""

from __future__ import annotations

import asyncio
import time
from asyncio import Lock
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self

from tickertape.base.errors import TickertapeError
from tickertape.client.aio.waiting import perform
from tickertape.client.api.transactions import CommitStep, TransactionBase
from tickertape.client.common.waiting import DEFAULT, Timeout, no_answer, remaining
from tickertape.client.limits import block_abort_seconds_max
from tickertape.client.protocol.transactions import CommittedTransaction


class AsyncClientTransaction(TransactionBase):
    """Messages that become visible atomically. `AsyncClient.transaction` creates it.

    The end of its `async with` block commits it, and an exception in the block aborts it (see
    `ClientTransaction`). `publish` is not a coroutine function: call it without `await`.

    Example:
        >>> async with client.transaction() as transaction:
        ...     transaction.publish("orders", {"id": 1})
        ...     transaction.publish("payments", {"order": 1})
        >>> transaction.result.repeated
        False
    """

    _lock_type = Lock

    async def commit(self, *, timeout: Timeout = DEFAULT) -> CommittedTransaction:
        """Publish the messages atomically and wait until they are persisted.

        Several tasks may call it: one commits, and the others wait for its result. Results, errors and
        unknown outcomes: see `ClientTransaction.commit`.

        Args:
            timeout: Longest wait in seconds or text (`"30s"`). None: as long as the connection lasts.
                Default: the timeout of the client.

        Returns:
            The result, with `name`, `message_count`, `bookmark` (of the last message), and `repeated`: True
            if an earlier commit had this name, so that this one published nothing.

        Raises:
            TimedOut: No answer within `timeout`. The outcome may be unknown.
            Disconnected: The connection was lost. The outcome may be unknown.

        Example:
            >>> transaction = client.transaction("transfer-17")
            >>> transaction.publish("orders", {"id": 1})
            >>> (await transaction.commit(timeout="30s")).repeated
            False
        """
        seconds = self._driver.seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        async with self._alone(seconds):
            return self.result or await self._commit_alone(seconds, deadline)

    async def abort(self, *, timeout: Timeout = DEFAULT) -> None:
        """Drop the messages of the transaction. See `ClientTransaction.abort`.

        Args:
            timeout: Longest wait in seconds or text. None: as long as the connection lasts. Default: the
                timeout of the client.

        Raises:
            UsageError: The transaction was committed, or the outcome of its commit is unknown.
            TimedOut: Another task is committing this transaction, and the commit did not end within
                `timeout`.
            BadOption: The timeout is invalid.

        Example:
            >>> transaction = client.transaction()
            >>> transaction.publish("orders", {"id": 1})
            >>> await transaction.abort()
            >>> transaction.aborted
            True
        """
        seconds = self._driver.seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        async with self._alone(seconds):
            make = self._buffer.aborting()
            if make is not None:
                with suppress(TickertapeError):  # The transaction has ended in any case.
                    await self._driver.ask(make, None, remaining(deadline))

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

    @asynccontextmanager
    async def _alone(self, seconds: float | None) -> AsyncIterator[None]:
        """Hold the lock. Raises `TimedOut` if another task holds it for longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._one_call.acquire()
        except TimeoutError:
            raise no_answer("a transaction", seconds) from None
        try:
            yield
        finally:
            self._one_call.release()

    async def _commit_alone(self, seconds: float | None, deadline: float | None) -> CommittedTransaction:
        async def take(step: CommitStep) -> object:
            if isinstance(step, float):
                await asyncio.sleep(step)
                return None
            return await self._driver.ask(*step, remaining(deadline), self._pin)

        return await perform(self._commit_steps(seconds, deadline), take)
