"""Waiting for an answer that stands behind what a handler takes its time for."""

from __future__ import annotations

import asyncio
import time

import pytest

import tickertape as tt
from tickertape.client.aio.waiting import AsyncioWaiter
from tickertape.client.blocking.waiting import ThreadWaiter
from tickertape.client.common.waiting import LOOKS

SECONDS = 0.05


def test_time_in_which_somebody_is_busy_does_not_count() -> None:
    busy = iter([True] * 3 * LOOKS)
    call = ThreadWaiter()
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return next(busy, False)

    with pytest.raises(tt.TimedOut, match=r"did not answer resubscribing within 0\.05 s"):
        call.wait_idle(SECONDS, "resubscribing", look)
    assert looks == 4 * LOOKS


def test_an_answer_ends_the_waiting_and_an_error_is_raised() -> None:
    call, failed = ThreadWaiter(), ThreadWaiter()
    call.settle("done")
    failed.settle(tt.Disconnected("lost"))
    assert call.wait_idle(SECONDS, "a call", lambda: True) == "done"
    with pytest.raises(tt.Disconnected, match="lost"):
        failed.wait_idle(SECONDS, "a call", lambda: True)


def test_a_handler_that_keeps_the_loop_does_not_use_up_the_time() -> None:
    async def main() -> None:
        call = AsyncioWaiter()
        loop = asyncio.get_running_loop()
        loop.call_soon(time.sleep, 2 * SECONDS)
        loop.call_later(2.2 * SECONDS, call.settle, "done")
        assert await call.wait_idle(SECONDS, "resubscribing") == "done"
        call = AsyncioWaiter()
        with pytest.raises(tt.TimedOut, match=r"did not answer resubscribing within 0\.05 s"):
            await call.wait_idle(SECONDS, "resubscribing")

    asyncio.run(main())
