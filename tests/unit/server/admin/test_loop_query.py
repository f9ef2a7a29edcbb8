"""Queries of one event loop from another: shared, rate-limited, fresh and bounded in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tickertape.base.histogram import Histogram
from tickertape.server.admin import loop_query as asking
from tickertape.server.admin.loop_query import InSteps, LoopQuery, ServerStuckError


@pytest.fixture
def server() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield an event loop on a separate thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class CountingCall:
    """A call that counts itself and records its threads."""

    def __init__(self) -> None:
        self.calls = 0
        self.threads: set[int] = set()

    def __call__(self) -> InSteps[int]:
        yield
        self.calls += 1
        self.threads.add(threading.get_ident())
        return self.calls


def test_concurrent_queries_share_one_call_on_the_server_loop(
    server: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = CountingCall()
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noting(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noting)

    async def ask() -> list[int]:
        query = LoopQuery(server, call, 3600, Histogram())
        first = await asyncio.gather(*(query() for _ in range(100)))
        return [*set(first), *set(await asyncio.gather(*(query() for _ in range(100))))]

    assert asyncio.run(ask()) == [1, 2]
    first, second = waits
    assert first < 0 < second <= 3600, "the next call waits for the rest of the interval"
    assert threading.get_ident() not in call.threads


def test_query_result_is_never_older_than_the_query(server: asyncio.AbstractEventLoop) -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked

        def read() -> InSteps[int]:
            yield
            return asked

        state = LoopQuery(server, read, 0.001, Histogram())
        for _ in range(20):
            asked += 1
            assert await state() == asked

    asyncio.run(ask())


def test_exception_on_the_server_loop_is_raised_in_the_caller(server: asyncio.AbstractEventLoop) -> None:
    def broken() -> InSteps[int]:
        yield
        raise ZeroDivisionError

    async def ask() -> int:
        return await LoopQuery(server, broken, 0, Histogram())()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(ask())


def test_query_to_a_stuck_loop_raises_server_stuck_error(
    server: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "admin_answer_seconds_max", 0.02)
    free = threading.Event()
    server.call_soon_threadsafe(free.wait)

    async def ask() -> None:
        with pytest.raises(ServerStuckError, match=r"did not answer within 0\.02 s"):
            await LoopQuery(server, CountingCall(), 0, Histogram())()
        free.set()

    asyncio.run(ask())


def test_repeated_queries_leave_one_call_pending_on_a_stuck_loop(
    server: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "admin_answer_seconds_max", 0.01)
    free = threading.Event()
    server.call_soon_threadsafe(free.wait)
    call = CountingCall()

    async def ask() -> int:
        question = LoopQuery(server, call, 0, Histogram())
        for _ in range(5):
            with pytest.raises(ServerStuckError):
                await question()
        free.set()
        monkeypatch.setattr(asking, "admin_answer_seconds_max", 10)
        assert await question() in (1, 2), "the pending call, or a new one behind it"
        return await question()

    assert asyncio.run(ask()) in (2, 3)


def test_query_to_a_closed_loop_raises_server_stuck_error() -> None:
    ended = asyncio.new_event_loop()
    ended.close()

    async def ask() -> None:
        with pytest.raises(ServerStuckError, match="has ended"):
            await LoopQuery(ended, CountingCall(), 0, Histogram())()

    asyncio.run(ask())


def test_server_handles_other_inputs_between_the_steps_of_a_query(server: asyncio.AbstractEventLoop) -> None:
    order: list[str] = []
    steps = Histogram()

    def query() -> InSteps[None]:
        for number in range(3):
            order.append(f"step {number}")
            server.call_soon(order.append, "input")
            yield

    async def ask() -> None:
        await LoopQuery(server, query, 0, steps)()

    asyncio.run(ask())
    assert order == ["step 0", "input", "step 1", "input", "step 2", "input"]
    assert steps.count == 4, "the last step returns the result"
