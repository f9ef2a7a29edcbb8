"""Questions to an event loop from another one: shared, seldom, fresh, and bounded in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tickertape.server.admin import loop_query as asking
from tickertape.server.admin.loop_query import LoopQuery, ServerStuckError


@pytest.fixture
def server() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Look:
    """Counts how often it was looked, and on which thread."""

    def __init__(self) -> None:
        self.looks = 0
        self.threads: set[int] = set()

    def __call__(self) -> int:
        self.looks += 1
        self.threads.add(threading.get_ident())
        return self.looks


def test_many_share_one_look_on_the_loop_of_the_server(
    server: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Look()
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noting(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noting)

    async def ask() -> list[int]:
        ask_it = LoopQuery(server, look, 3600)
        first = await asyncio.gather(*(ask_it() for _ in range(100)))
        return [*set(first), *set(await asyncio.gather(*(ask_it() for _ in range(100))))]

    assert asyncio.run(ask()) == [1, 2]
    first, second = waits
    assert first < 0 < second <= 3600, "the next look waits for the rest of the interval"
    assert threading.get_ident() not in look.threads


def test_an_answer_is_never_older_than_its_question(server: asyncio.AbstractEventLoop) -> None:
    asked = 0

    async def ask() -> None:
        nonlocal asked
        state = LoopQuery(server, lambda: asked, 0.001)
        for _ in range(20):
            asked += 1
            assert await state() == asked

    asyncio.run(ask())


def test_a_defect_is_raised_where_it_was_asked(server: asyncio.AbstractEventLoop) -> None:
    def broken() -> int:
        raise ZeroDivisionError

    async def ask() -> int:
        return await LoopQuery(server, broken, 0)()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(ask())


def test_a_stuck_loop_is_noticed(server: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "admin_answer_seconds_max", 0.02)
    free = threading.Event()
    server.call_soon_threadsafe(free.wait)

    async def ask() -> None:
        with pytest.raises(ServerStuckError, match=r"did not answer within 0\.02 s"):
            await LoopQuery(server, Look(), 0)()
        free.set()

    asyncio.run(ask())


def test_a_stuck_loop_is_left_one_look_however_many_waves_ask(
    server: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "admin_answer_seconds_max", 0.01)
    free = threading.Event()
    server.call_soon_threadsafe(free.wait)
    look = Look()

    async def ask() -> int:
        question = LoopQuery(server, look, 0)
        for _ in range(5):
            with pytest.raises(ServerStuckError):
                await question()
        free.set()
        monkeypatch.setattr(asking, "admin_answer_seconds_max", 10)
        assert await question() in (1, 2), "the one that waited, or a new one behind it"
        return await question()

    assert asyncio.run(ask()) in (2, 3)


def test_a_loop_that_has_ended_is_noticed() -> None:
    ended = asyncio.new_event_loop()
    ended.close()

    async def ask() -> None:
        with pytest.raises(ServerStuckError, match="has ended"):
            await LoopQuery(ended, Look(), 0)()

    asyncio.run(ask())
