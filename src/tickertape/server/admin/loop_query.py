"""Loop query: questions from another thread to the server's event loop, answered once for all askers.

Invariants:
- The event loop is asked at most once in an interval, however many ask.
- No answer is awaited longer than `admin_answer_seconds_max`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from tickertape.server.limits import admin_answer_seconds_max

T = TypeVar("T")


class ServerStuckError(Exception):
    """The server's event loop did not answer in time, or is gone."""


class LoopQuery(Generic[T]):
    """Results of `query`, called on the event loop of the server, for coroutines of another loop.

    `interval`: seconds between two calls. Askers in between share the next one, so that an answer is never
    older than its question."""

    def __init__(self, server: asyncio.AbstractEventLoop, query: Callable[[], T], interval: float) -> None:
        self._server = server
        self._query = query
        self._interval = interval
        self._next: asyncio.Task[T] | None = None
        self._answer: Future[T] = Future()
        """The result that `_next` awaits: pending until the server calls `query`."""
        self._asked_at = float("-inf")

    async def __call__(self) -> T:
        """Return a result of `query` from now on. Raises `ServerStuckError`."""
        if self._next is None or self._next.done() or self._answer.running() or self._answer.done():
            # One that the server has not begun to look at is shared, however long it takes: while the server
            # is stuck no more than one waits for it.
            self._answer = Future()
            self._next = asyncio.get_running_loop().create_task(self._ask(self._answer))
        try:
            return await asyncio.wait_for(asyncio.shield(self._next), admin_answer_seconds_max)
        except TimeoutError:
            raise ServerStuckError(
                f"the event loop has not answered for {admin_answer_seconds_max:g} seconds"
            ) from None

    async def _ask(self, answer: Future[T]) -> T:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._asked_at + self._interval - loop.time())
        self._asked_at = loop.time()

        def query() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self._query())
                except Exception as error:  # noqa: BLE001 -- it is raised where the question was asked
                    answer.set_exception(error)

        try:
            self._server.call_soon_threadsafe(query)
        except RuntimeError:
            raise ServerStuckError("the event loop has ended") from None
        return await asyncio.wrap_future(answer)
