"""Time that moves only when a test says so."""

from __future__ import annotations

import asyncio
import time

import pytest

from tickertape.client import waiting
from tickertape.client.delays import ExponentialDelayStrategy
from tickertape.testing import Standstill, VirtualClock, VirtualLoop


def test_both_clocks_move_together_and_the_wall_may_jump() -> None:
    clock = VirtualClock()
    before = clock.now()
    clock.advance(1.5)
    clock.jump(-3600)
    after = clock.now()
    assert after.mono - before.mono == pytest.approx(1.5)
    assert after.wall - before.wall == 1_500_000 - 3_600_000_000
    with pytest.raises(ValueError, match="time does not go back"):
        clock.advance(-1)


def test_while_it_is_installed_the_product_reads_it_and_nobody_else() -> None:
    clock = VirtualClock()
    with clock.installed():
        assert waiting.now() == clock.now()
        clock.advance(1000.0)
        assert waiting.now() == clock.now()
        assert abs(time.monotonic() - clock.mono) > 1e-3
        vars(waiting)["time"].sleep(2.0)
        assert waiting.now() == clock.now()
    assert abs(waiting.now().mono - time.monotonic()) < 60


def test_a_loop_waits_for_nothing() -> None:
    loop = VirtualLoop()
    began = time.monotonic()

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
    assert time.monotonic() - began < 30
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
