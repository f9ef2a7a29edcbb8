"""Killed processes of a simulation: another process does not wake them."""

from __future__ import annotations

import asyncio

from tests.world.process import Process
from tests.world.world import World


def test_killed_process_is_not_woken_by_events_of_other_processes() -> None:
    world = World(1, servers=0)
    done: list[str] = []

    async def life() -> None:
        bell = asyncio.Event()

        async def wait(name: str) -> None:
            await bell.wait()
            done.append(name)

        killed, alive = Process("killed", world.loop), Process("alive", world.loop)
        killed.spawn(wait("killed"))  # type: ignore[unused-awaitable]
        task = alive.spawn(wait("alive"))
        await asyncio.sleep(1)
        killed.kill()
        world.dead.append(killed)
        bell.set()
        await task
        await asyncio.sleep(1)

    with world.living():
        world.run(life())
    assert done == ["alive"]
