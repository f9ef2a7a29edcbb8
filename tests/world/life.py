"""Owns whole lives: a world with its applications and faults, from the first start to the judgement.

Must never decide what is right: `judge.py` does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, NamedTuple

from tests.simulation.journal_world import read_log
from tests.world import judge
from tests.world.apps import JOBS, TOPICS, WORK, App, Publisher, Reader, Worker
from tests.world.faults import FAULTS, Faults
from tests.world.judge import Logged
from tests.world.servers import SimServer
from tests.world.world import World

QUEUE: Final = f"""
[[queue]]
name = "{WORK}"
underlying = "{JOBS}"
lease_period = "5s"
max_per_subscription_backlog = 20
"""
PATIENCE: Final = 300.0
"""Virtual seconds in which everything must come to its end once nothing goes wrong any more."""


class Shape(NamedTuple):
    """How large a world is."""

    publishers: int = 1
    messages: int = 20
    readers: int = 1
    readings: int = 1
    workers: int = 0
    faults: int = 2
    kinds: tuple[str, ...] = FAULTS


SMALL: Final = Shape()
"""One server, one publisher and one reader."""
LARGE: Final = Shape(publishers=2, messages=30, readers=2, readings=2, workers=2, faults=6)
"""Clients of each kind, and a queue."""


class Life:
    """One world, lived to its end. `trace` says what happened, for equal seeds the same."""

    def __init__(self, seed: int, shape: Shape, counts: Counter[str]) -> None:
        self.world = World(seed, config=QUEUE if shape.workers else "", counts=counts)
        self.shape = shape
        self.server: SimServer = self.world.servers[0]
        uris = [self.server.uri]
        topics = (*TOPICS, JOBS) if shape.workers else TOPICS
        self.publishers = [
            Publisher(self.world, uris, f"p{n}", shape.messages, topics) for n in range(shape.publishers)
        ]
        self.readers = [Reader(self.world, uris, f"r{n}", shape.readings) for n in range(shape.readers)]
        self.workers = [Worker(self.world, uris, f"w{n}", every=n == 0) for n in range(shape.workers)]
        self.refused: BaseException | None = None
        """Why the server could not be started."""
        self.faults = Faults(self.world, each_seconds=0.1, kinds=shape.kinds)

    @property
    def apps(self) -> list[App]:
        return [*self.publishers, *self.readers, *self.workers]

    def live(self) -> str:
        """Live it; returns the trace. Raises `AssertionError` for what must not be."""
        with self.world.living():
            try:
                self.world.run(self._live())
            except RuntimeError:
                if self.refused is None:
                    raise
                raise AssertionError(f"a start was refused: {self.refused}") from self.refused
        return self.world.trace()

    async def _live(self) -> None:
        world = self.world
        self.server.start()
        for app in self.apps:
            app.start()
        minding = world.loop.create_task(self.faults.mind())
        minding.add_done_callback(self._minder_ended)
        await self.faults.run(self.shape.faults)
        self.faults.heal()
        async with asyncio.timeout(PATIENCE):
            await self._finish(self.publishers)
            for reader in self.readers:
                reader.enough = True
            await self._finish(self.readers)
            if self.workers:
                await self._until_worked_off()
        while not self.server.up:
            await asyncio.sleep(0.1)
        minding.cancel()
        self._judge()

    def _minder_ended(self, minding: asyncio.Task[None]) -> None:
        """A start that is refused is the end of this world: nothing here damages what is on a disk."""
        if not minding.cancelled() and (error := minding.exception()) is not None:
            self.world.loop.stop()
            self.refused = error

    async def _finish(self, apps: list[Publisher] | list[Reader] | list[Worker]) -> None:
        for app in apps:
            assert app.finished is not None
            await app.finished

    async def _until_worked_off(self) -> None:
        jobs = {kept.body for p in self.publishers for kept in p.sent if kept.topic == JOBS}
        jobs |= {
            kept.body for p in self.publishers for t in p.transactions for kept in t if kept.topic == JOBS
        }
        while not jobs <= {body for worker in self.workers for body in worker.settled}:
            await asyncio.sleep(1.0)
        for worker in self.workers:
            worker.enough = True
        await self._finish(self.workers)

    def _judge(self) -> None:
        server = self.server
        assert server.instance is not None
        log = [
            Logged(batch.topic(i), bytes(batch.body(i)))
            for _, batch in read_log(server.instance.broker.journal, server.disk)
            for i in range(batch.count)
            if not batch.topic(i).startswith("$")
        ]
        for logged in log:
            self.world.note(logged)
        judge.everything_once(self.publishers, log)
        judge.promised(self.publishers, log)
        judge.readings(self.readers, log)
        judge.work(self.workers, [logged for logged in log if logged.topic == JOBS])
        self.world.counts["messages"] += len(log)
        self.world.counts["worlds"] += 1


def live(seed: int, shape: Shape, counts: Counter[str]) -> str:
    """One life; its trace."""
    try:
        return Life(seed, shape, counts).live()
    except BaseException as error:
        error.add_note(f"world {seed} of {shape}")
        raise
