"""Loop query: calls a function on the server's event loop from another loop, shared by all callers.

Invariants:
- The function runs at most once per interval, for any number of callers.
- A caller waits at most `admin_answer_seconds_max`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from tickertape.server.limits import admin_answer_seconds_max

T = TypeVar("T")


class ServerStuckError(Exception):
    """The server's event loop did not answer in time, or has ended."""


class LoopQuery(Generic[T]):
    """Results of `query`, called on the event loop of the server, for coroutines of another loop.

    `interval`: seconds between two calls of `query`. Callers in between share the next call, so a result is
    never older than the request for it."""

    def __init__(self, server: asyncio.AbstractEventLoop, query: Callable[[], T], interval: float) -> None:
        self._server = server
        self._query = query
        self._interval = interval
        self._next: asyncio.Task[T] | None = None
        self._answer: Future[T] = Future()
        """The result that `_next` awaits: pending until the server calls `query`."""
        self._asked_at = float("-inf")

    async def __call__(self) -> T:
        """Return a result of `query` computed after this call. Raises `ServerStuckError`."""
        if self._next is None or self._next.done() or self._answer.running() or self._answer.done():
            # Callers share a request that the server has not started, so a stuck server has one request
            # pending.
            self._answer = Future()
            self._next = asyncio.get_running_loop().create_task(self._ask(self._answer))
        try:
            return await asyncio.wait_for(asyncio.shield(self._next), admin_answer_seconds_max)
        except TimeoutError:
            raise ServerStuckError(
                f"the event loop did not answer within {admin_answer_seconds_max:g} s"
            ) from None

    async def _ask(self, answer: Future[T]) -> T:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._asked_at + self._interval - loop.time())
        self._asked_at = loop.time()

        def query() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self._query())
                except Exception as error:  # noqa: BLE001 -- the waiting coroutine raises it
                    answer.set_exception(error)

        try:
            self._server.call_soon_threadsafe(query)
        except RuntimeError:
            raise ServerStuckError("the event loop has ended") from None
        return await asyncio.wrap_future(answer)
