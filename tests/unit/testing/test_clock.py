"""Virtual clock and virtual event loop: time moves only on request."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tickertape.client.common import waiting
from tickertape.client.ha.delay_strategy import ExponentialDelayStrategy
from tickertape.testing import Standstill, VirtualClock, VirtualLoop


def test_virtual_clock_advance_moves_both_clocks_and_jump_moves_only_wall_clock() -> None:
    clock = VirtualClock()
    before = clock.now()
    clock.advance(1.5)
    clock.jump(-3600)
    after = clock.now()
    assert after.mono - before.mono == pytest.approx(1.5)
    assert after.wall - before.wall == 1_500_000 - 3_600_000_000
    with pytest.raises(ValueError, match="time does not run backwards"):
        clock.advance(-1)


def test_virtual_clock_while_installed_replaces_time_in_the_product_only() -> None:
    clock = VirtualClock()
    with clock.installed():
        assert waiting.now() == clock.now()
        clock.advance(1000.0)
        assert waiting.now() == clock.now()
        vars(waiting)["time"].sleep(2.0)
        assert waiting.now() == clock.now()
    assert vars(waiting)["time"] is time


def test_virtual_loop_runs_timers_in_order_without_waiting() -> None:
    loop = VirtualLoop()

    async def scenario() -> list[str]:
        seen: list[str] = []
        loop.call_later(3600, seen.append, "an hour")
        loop.call_later(60, seen.append, "a minute")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7200):
                await asyncio.Event().wait()
        return seen

    start = loop.time()
    assert loop.run_until_complete(scenario()) == ["a minute", "an hour"]
    assert loop.time() - start == pytest.approx(7200)
    loop.close()


def test_virtual_loop_without_timers_raises_standstill() -> None:
    loop = VirtualLoop()
    waiter = loop.create_task(asyncio.Event().wait())
    with pytest.raises(Standstill, match="no timer is set"):
        loop.run_until_complete(waiter)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiter)
    loop.close()


def test_delay_strategy_on_virtual_clock_gives_up_after_hours() -> None:
    clock = VirtualClock()
    strategy = ExponentialDelayStrategy(1.0, 2.0, 300.0, 0.0, give_up_after=7200.0)
    began = clock.mono
    while (delay := strategy.next_delay("tcp://a:1", clock.mono, 0.5)) is not None:
        clock.advance(delay)
    assert 6900 <= clock.mono - began <= 7500


def test_virtual_loop_rejects_calls_that_need_a_thread() -> None:
    loop = VirtualLoop()

    async def scenario() -> None:
        async with asyncio.timeout(3600):
            await asyncio.to_thread(time.sleep, 0.05)

    with pytest.raises(NotImplementedError, match=r"nothing in a thread.* run ahead .*Call the function"):
        loop.run_until_complete(scenario())
    assert loop.time() == VirtualClock().mono
    with pytest.raises(NotImplementedError, match="nothing in a thread"):
        loop.run_until_complete(loop.getaddrinfo("localhost", 1))
    loop.close()


def test_virtual_loop_rejects_sockets_and_processes_and_names_alternatives() -> None:
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


def test_virtual_loop_subclass_can_provide_connections() -> None:
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
