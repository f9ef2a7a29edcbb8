"""A second Ctrl-C at any bytecode in `AsyncClient.publish`, which ends the event loop.

After a reconnect sequences, store and wire are consistent.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.helpers.interrupts import interrupted_at
from tests.helpers.threads import in_a_thread_of_its_own
from tests.helpers.tiers import parts
from tests.unit.client.blocking.test_interrupted_publish import SCENES, Harness, check
from tests.unit.client.peer import START
from tickertape.base.errors import Disconnected
from tickertape.base.interfaces import Buffer
from tickertape.client.aio.client import AsyncClient
from tickertape.client.aio.connection import AsyncioConnection
from tickertape.client.aio.waiting import AsyncioWaiter
from tickertape.client.protocol.core import ClientProtocol, ConnectionOpened


class AsyncHarness(Harness):
    """A `Harness` with an asyncio client."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        super().__init__()

    def make(self) -> None:
        self.target = AsyncClient("pricing-1", "tcp://127.0.0.1:1", publish_store=self.store)
        self.target._driver._loop = self.runner.get_loop()

    def open(self) -> None:
        async def start() -> None:
            self.target._driver.core.receive(ConnectionOpened(AsyncioWaiter()), START)

        self.target._driver.connection = cast(AsyncioConnection, self)
        self.runner.run(start())
        self.drive()

    def drive(self) -> None:
        self.target._driver.drive()

    def detach(self) -> None:
        """Do nothing, as in a forked child. Other tests may fork before garbage collection."""

    def core(self) -> ClientProtocol:
        return self.target._driver.core

    def call(self, topic: str, data: object, **extra: Any) -> int | None:
        return self.runner.run(self.target.publish(topic, data, **extra))

    def lose_if_ended(self) -> None:
        if self.link.hung_up:
            self.target._driver.lost(cast(AsyncioConnection, self), Disconnected("the event loop ended"))
            self.connect()

    # -- connection interface ---

    congested = False

    def send(self, buffers: list[Buffer]) -> None:
        self.link.add(buffers)
        self.link.push()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # between call and await
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("part", parts(3))
@in_a_thread_of_its_own
def test_async_publish_interrupted_at_any_bytecode_loses_and_repeats_no_sequence(
    scene: str, part: int
) -> None:
    prepare, act = SCENES[scene]
    step, hit = part, True
    with asyncio.Runner() as runner:
        while hit:
            harness = AsyncHarness(runner)
            prepare(harness)
            hit = interrupted_at(step, lambda: act(harness))  # noqa: B023 - called here
            if hit:
                harness.link.hung_up = True
                harness.lose_if_ended()
            try:
                check(harness, int(hit))
            except BaseException as error:
                error.add_note(f"step {step}")
                raise
            step += 3
    assert step > 40
