"""Waits on an event loop: for the outcome of a call, for the steps of a call, and for a change.

Every wait can be cancelled. An outcome after the cancellation is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, suppress
from typing import TypeVar

from tickertape.base.errors import TickertapeError
from tickertape.client.common.waiting import LOOKS, no_answer
from tickertape.client.limits import sql_interrupt_seconds
from tickertape.client.protocol.transactions import onward

Step = TypeVar("Step")
Outcome = TypeVar("Outcome")


class AsyncioWaiter:
    """The outcome of one call."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def settle(self, outcome: object) -> None:
        """Set the outcome. The outcome of a cancelled call is dropped."""
        if not (self._future.done() or self._future.get_loop().is_closed()):
            self._future.set_result(outcome)

    async def wait(self, seconds: float | None, what: str, whole: float | None = None) -> object:
        """Wait for the outcome and return it, or raise it if it is an error.

        Raises `TimedOut` after `seconds`. `whole`: the full timeout for the error text, if `seconds` is only
        the rest of it.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._future
        except TimeoutError:
            raise no_answer(what, seconds if whole is None else whole) from None
        return self._taken()

    async def wait_idle(self, seconds: float, what: str) -> object:
        """Wait as `wait` does, but do not count time in which a handler blocks the loop."""
        for _ in range(LOOKS):
            await asyncio.wait((self._future,), timeout=seconds / LOOKS)
            if self._future.done():
                return self._taken()
        raise no_answer(what, seconds)

    def _taken(self) -> object:
        outcome = self._future.result()
        if isinstance(outcome, TickertapeError):
            raise outcome
        return outcome


def remaining(deadline: float | None) -> float | None:
    """Return the seconds until `deadline` (time of the running loop), or None without a deadline."""
    return None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())


class Notifier:
    """A condition variable for tasks of one event loop."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """Wake all waiting callers."""
        for future in self._futures:
            # A closed loop may have left futures without a waiting caller.
            if not (future.done() or future.get_loop().is_closed()):
                future.set_result(None)

    async def wait_for(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until `condition()` is true. Returns False after `seconds`."""
        if seconds is None:
            while not condition():
                await self.wait()
            return True
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self.wait()
        except TimeoutError:
            return condition()
        return True

    async def wait(self) -> None:
        """Wait for one change."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.add(future)
        try:
            await future
        finally:
            self._futures.discard(future)


async def perform(
    steps: Generator[Step, object, Outcome], take: Callable[[Step], Awaitable[object]]
) -> Outcome:
    """Perform each step with `take`, send its answer or error to the generator, and return the outcome."""
    answer: object = None
    try:
        with closing(steps):
            while True:
                try:
                    step = onward(steps, answer)
                except StopIteration as done:
                    outcome: Outcome = done.value
                    return outcome
                try:
                    answer = await take(step)
                except Exception as error:  # noqa: BLE001 - the generator handles it
                    answer = error
    finally:
        del answer  # Its traceback references this frame.


async def in_thread(work: Callable[[], Outcome], interrupt: Callable[[], object]) -> Outcome:
    """Return the result of `work` in a thread. A cancelled caller interrupts it, and waits for its end, also
    if it is cancelled again."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            interrupt()  # has no effect before the start of `work`, so it is repeated
            with suppress(asyncio.CancelledError):
                await asyncio.wait((running,), timeout=sql_interrupt_seconds)
        if not running.cancelled():
            running.exception()  # otherwise asyncio logs it
        raise
