"""Waits for an answer while a handler blocks the receiver."""

from __future__ import annotations

import asyncio
import time

import pytest

import tickertape as tt
from tickertape.client.aio.waiting import AsyncioWaiter
from tickertape.client.blocking.waiting import ThreadWaiter
from tickertape.client.common.waiting import LOOKS

SECONDS = 0.05


def test_wait_idle_does_not_count_time_while_the_receiver_is_busy() -> None:
    busy = iter([True] * 3 * LOOKS)
    call = ThreadWaiter()
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return next(busy, False)

    with pytest.raises(tt.TimedOut, match=r"Cannot complete resubscribing: no answer within 0\.05 s"):
        call.wait_idle(SECONDS, "resubscribing", look)
    assert looks == 4 * LOOKS


def test_wait_idle_returns_the_answer_or_raises_the_error() -> None:
    call, failed = ThreadWaiter(), ThreadWaiter()
    call.settle("done")
    failed.settle(tt.Disconnected("lost"))
    assert call.wait_idle(SECONDS, "a call", lambda: True) == "done"
    with pytest.raises(tt.Disconnected, match="lost"):
        failed.wait_idle(SECONDS, "a call", lambda: True)


def test_async_wait_idle_does_not_count_time_of_a_blocked_loop() -> None:
    async def main() -> None:
        call = AsyncioWaiter()
        loop = asyncio.get_running_loop()
        loop.call_soon(time.sleep, 2 * SECONDS)
        loop.call_later(2.2 * SECONDS, call.settle, "done")
        assert await call.wait_idle(SECONDS, "resubscribing") == "done"
        call = AsyncioWaiter()
        with pytest.raises(tt.TimedOut, match=r"Cannot complete resubscribing: no answer within 0\.05 s"):
            await call.wait_idle(SECONDS, "resubscribing")

    asyncio.run(main())
