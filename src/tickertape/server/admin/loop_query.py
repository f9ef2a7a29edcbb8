"""Loop query: runs a query in steps on the event loop of the server, for callers on another loop.

Invariants:
- The query runs at most once per interval, for any number of callers.
- The server handles other inputs between two steps of the query.
- A caller waits at most `admin_answer_seconds_max`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from tickertape.base.histogram import Histogram
from tickertape.server.limits import admin_answer_seconds_max

T = TypeVar("T")

InSteps: TypeAlias = Generator[None, None, T]
"""A query that returns its result, and yields where its work may be interrupted."""


class ServerStuckError(Exception):
    """The server's event loop did not answer in time, or has ended."""


class LoopQuery(Generic[T]):
    """Results of `query`, run on the event loop of the server, for coroutines of another loop.

    `interval`: seconds between two runs of `query`. Callers in between share the next run, so a result is
    never older than the request for it. The duration of each step is added to `steps`."""

    def __init__(
        self,
        server: asyncio.AbstractEventLoop,
        query: Callable[[], InSteps[T]],
        interval: float,
        steps: Histogram,
    ) -> None:
        self._server = server
        self._query = query
        self._interval = interval
        self._steps = steps
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

        def begin() -> None:
            if answer.set_running_or_notify_cancel():
                self._step(self._query(), answer)

        try:
            self._server.call_soon_threadsafe(begin)
        except RuntimeError:
            raise ServerStuckError("the event loop has ended") from None
        return await asyncio.wrap_future(answer)

    def _step(self, query: InSteps[T], answer: Future[T]) -> None:
        """Run the next step of a query, on the event loop of the server."""
        began = time.monotonic()
        go_on: Callable[[], object]
        try:
            next(query)
        except StopIteration as done:
            go_on = partial(answer.set_result, done.value)
        except Exception as error:  # noqa: BLE001 -- the waiting coroutine raises it
            go_on = partial(answer.set_exception, error)
        else:
            go_on = partial(self._server.call_soon, self._step, query, answer)
        self._steps.add(time.monotonic() - began)
        go_on()
