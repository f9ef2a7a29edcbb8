"""Owns working off a queue in a world: what was taken of it and how it was settled.

Must never settle what it did not get.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import tickertape as tt
from tests.world.apps import RETRIES, App, Seen
from tests.world.choices import CONSUME, FILTER, Options

if TYPE_CHECKING:
    from tests.world.world import World

WORK: Final = "work"


class Worker(App):
    """Takes messages of a queue and settles them; `every`: any of them."""

    def __init__(self, world: World, uris: list[str], name: str, *, every: bool) -> None:
        super().__init__(world, name, uris)
        self._fixed = {"filter": "none"} if every else {}
        self.got: list[Seen] = []
        self.settled: list[bytes] = []
        """Bodies it acknowledged, in order; of the first `sure` it was told that the server has that."""
        self.sure = 0
        self.perhaps: set[bytes] = set()
        """Acknowledged by a process that ended before it was told that the server has that."""
        self._options = self.chooser.draw(CONSUME, **self._fixed)
        self.enough = False

    def forget(self) -> None:
        self.perhaps.update(self.settled[self.sure :])
        del self.settled[self.sure :]

    async def run(self) -> None:
        async with self.client() as client:
            while not self.enough:
                await self._work(client, self._options)
            while not await self._flush(client):
                await self.again()
        self.chooser.done(self._options)

    async def _work(self, client: tt.AsyncHAClient, options: Options) -> None:
        try:
            stream = await client.subscribe(
                WORK,
                sub_id="w",
                max_backlog=int(options["backlog"]),
                filter=FILTER if options["filter"] == "field" else None,
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    async for message in stream:
                        await self._settle(client, message, options)
            await self._flush(client)
            await stream.close()
        except RETRIES:
            self.world.counts["worker interrupted"] += 1
        await self.again()

    async def _settle(self, client: tt.AsyncHAClient, message: tt.Message, options: Options) -> None:
        seen = Seen(message.topic, bytes(message.data), str(message.bookmark))
        self.got.append(seen)
        if options["extends"] == "sometimes" and self.rng.random() < 0.3:
            message.extend(20.0)
            self.world.counts["leases extended"] += 1
        if options["gives back"] == "sometimes" and self.rng.random() < 0.2:
            message.cancel()
            self.world.counts["given back"] += 1
            return
        if options["gives back"] == "expires" and self.rng.random() < 0.1:
            message.expire()
            self.world.counts["expired by a worker"] += 1
        else:
            message.ack()
        self.settled.append(seen.body)
        if options["settles"] == "one by one":
            await self._flush(client)

    async def _flush(self, client: tt.AsyncHAClient) -> bool:
        upto = len(self.settled)
        try:
            await client.publish_flush()
        except RETRIES:
            return False
        self.sure = max(self.sure, upto)
        return True
