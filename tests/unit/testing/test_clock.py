"""Time that moves only when a test says so."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tickertape.client.common import waiting
from tickertape.client.ha.delay_strategy import ExponentialDelayStrategy
from tickertape.testing import Standstill, VirtualClock, VirtualLoop


def test_both_clocks_move_together_and_the_wall_may_jump() -> None:
    clock = VirtualClock()
    before = clock.now()
    clock.advance(1.5)
    clock.jump(-3600)
    after = clock.now()
    assert after.mono - before.mono == pytest.approx(1.5)
    assert after.wall - before.wall == 1_500_000 - 3_600_000_000
    with pytest.raises(ValueError, match="time does not run backwards"):
        clock.advance(-1)


def test_while_it_is_installed_the_product_reads_it_and_nobody_else() -> None:
    clock = VirtualClock()
    with clock.installed():
        assert waiting.now() == clock.now()
        clock.advance(1000.0)
        assert waiting.now() == clock.now()
        vars(waiting)["time"].sleep(2.0)
        assert waiting.now() == clock.now()
    assert vars(waiting)["time"] is time


def test_a_loop_waits_for_nothing() -> None:
    loop = VirtualLoop()

    async def life() -> list[str]:
        seen: list[str] = []
        loop.call_later(3600, seen.append, "an hour")
        loop.call_later(60, seen.append, "a minute")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7200):
                await asyncio.Event().wait()
        return seen

    start = loop.time()
    assert loop.run_until_complete(life()) == ["a minute", "an hour"]
    assert loop.time() - start == pytest.approx(7200)
    loop.close()


def test_who_waits_for_ever_is_told() -> None:
    loop = VirtualLoop()
    waiter = loop.create_task(asyncio.Event().wait())
    with pytest.raises(Standstill, match="no timer is set"):
        loop.run_until_complete(waiter)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiter)
    loop.close()


def test_a_strategy_of_delays_may_be_tried_for_hours() -> None:
    clock = VirtualClock()
    strategy = ExponentialDelayStrategy(1.0, 2.0, 300.0, 0.0, give_up_after=7200.0)
    began = clock.mono
    while (delay := strategy.next_delay("tcp://a:1", clock.mono, 0.5)) is not None:
        clock.advance(delay)
    assert 6900 <= clock.mono - began <= 7500


def test_a_loop_refuses_threads_as_its_time_would_run_ahead_of_them() -> None:
    loop = VirtualLoop()

    async def life() -> None:
        async with asyncio.timeout(3600):
            await asyncio.to_thread(time.sleep, 0.05)

    with pytest.raises(NotImplementedError, match=r"nothing in a thread.* run ahead .*Call the function"):
        loop.run_until_complete(life())
    assert loop.time() == VirtualClock().mono
    with pytest.raises(NotImplementedError, match="nothing in a thread"):
        loop.run_until_complete(loop.getaddrinfo("localhost", 1))
    loop.close()


def test_a_loop_says_what_to_take_for_sockets_and_processes() -> None:
    loop = VirtualLoop()
    with pytest.raises(NotImplementedError, match=r"no create_connection: .* Derive .* running_server"):
        loop.run_until_complete(asyncio.open_connection("127.0.0.1", 1))
    with pytest.raises(NotImplementedError, match="no create_connection"):
        loop.run_until_complete(asyncio.open_connection("localhost", 1))
    with pytest.raises(NotImplementedError, match="no create_server"):
        loop.run_until_complete(asyncio.start_server(print, "127.0.0.1", 0))
    with pytest.raises(NotImplementedError, match="no subprocess_exec"):
        loop.run_until_complete(asyncio.create_subprocess_exec("true"))
    with pytest.raises(NotImplementedError, match="no add_reader"):
        loop.add_reader(0, print)
    loop.close()


def test_who_derives_a_loop_brings_connections_of_its_own() -> None:
    class Nowhere(asyncio.Transport):
        def is_closing(self) -> bool:
            return True

    class Linked(VirtualLoop):
        async def create_connection(self, protocol_factory: Any, host: Any = None, *_: Any, **__: Any) -> Any:
            return Nowhere(), protocol_factory()

    loop = Linked()
    reader, _ = loop.run_until_complete(asyncio.open_connection("anywhere", 1))
    assert isinstance(reader, asyncio.StreamReader)
    loop.close()
