"""Work in a thread of an asyncio client: result, error and cancellation."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tickertape.client.aio.waiting import in_thread


def test_result_and_error_of_the_work_reach_the_caller() -> None:
    async def main() -> None:
        assert await in_thread(threading.current_thread, int) is not threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 // 0, int)

    asyncio.run(main())


def test_cancellation_interrupts_the_work_and_waits_for_the_end() -> None:
    started, interrupted, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert interrupted.wait(30)
        ended.set()
        raise ValueError("interrupted")  # retrieved, so asyncio does not log it

    async def main() -> None:
        task = asyncio.ensure_future(in_thread(work, interrupted.set))
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())


def test_second_cancellation_does_not_end_the_wait() -> None:
    started, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert go_on.wait(30)
        ended.set()

    async def main() -> None:
        task = asyncio.ensure_future(in_thread(work, int))
        await asyncio.to_thread(started.wait)
        for _ in range(2):
            task.cancel()
            await asyncio.wait((task,), timeout=0.01)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())
