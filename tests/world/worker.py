"""Worker of a simulation: takes messages of a queue, records their holders and settles them.

Must never settle a message that it did not receive.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

import tickertape as tt
from tests.world.apps import RETRIES, App, Labels, Seen
from tests.world.choices import CONSUME, FILTER, Options

if TYPE_CHECKING:
    from tests.world.network import Link
    from tests.world.world import World

WORK: Final = "work"
LEASE_SECONDS: Final = 5.0


class Held(NamedTuple):
    """A message that a worker has, by a lease that began after `since`, over `link`."""

    worker: Worker
    link: Link
    since: float

    def surely(self) -> bool:
        """Return whether the lease is certainly valid: connected, and not expired."""
        world = self.worker.world
        return self.link.stands and not self.link.delay and world.loop.time() - self.since < LEASE_SECONDS


class Worker(App):
    """Takes messages of a queue and settles them. `every`: without a filter."""

    def __init__(self, world: World, uris: list[str], name: str, *, every: bool) -> None:
        super().__init__(world, name, uris)
        self._fixed = {"filter": "none"} if every else {}
        self.got: list[Seen] = []
        self.settled: list[bytes] = []
        """Bodies it acknowledged, in order. The server has confirmed the first `sure` of them."""
        self.sure = 0
        self.perhaps: set[bytes] = set()
        """Bodies acknowledged by a process that ended before the confirmation."""
        self._options = self.chooser.draw(CONSUME, **self._fixed)
        self._did: set[str] = set()
        """Occasional actions of its options that have happened."""
        self._placed = 0.0
        """When its stream was asked for."""
        self._on: Link | None = None
        """The connection that its stream is on."""
        self._acked: dict[bytes, Held] = {}
        """Acknowledged bodies that the server has not confirmed yet."""
        self.enough = False

    def forget(self) -> None:
        self.perhaps.update(self.settled[self.sure :])
        del self.settled[self.sure :]
        self._acked.clear()
        self._lets_go()

    async def run(self) -> None:
        async with self.client() as client:
            while not self.enough:
                await self._work(client, self._options)
            while not await self._flush(client):
                await self.again()
        wanted = {name for name in ("gives back", "extends", "browses") if self._options[name] != "never"}
        if wanted <= self._did:
            self.chooser.done(self._options)

    async def _work(self, client: tt.AsyncHAClient, options: Options) -> None:
        self._placed = self.world.loop.time()
        taken: list[tt.Message] = []
        sleeps = False
        try:
            stream = await self.ends(
                client.subscribe(
                    WORK,
                    sub_id="w",
                    max_backlog=int(options["backlog"]),
                    filter=FILTER if options["filter"] == "field" else None,
                )
            )
            self._on = self._link()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5 if self.world.pace == 1.0 else 3.0):
                    async for message in stream:
                        self._takes(message, options)
                        if options["gives back"] == "sleeps" and self._now("gives back", 0.1):
                            sleeps = True
                            break
                        if options["settles"] == "when full":
                            taken.append(message)
                        else:
                            await self._settle(client, message, options)
            if sleeps:
                await self._sleeps()
            if options["browses"] == "sometimes" and self._now("browses", 0.3):
                with suppress(*RETRIES):
                    await self._browse(client, options)
            for message in taken:
                await self._settle(client, message, options)
            await self._flush(client)
            self._lets_go()
            await self.ends(stream.close())
        except RETRIES:
            self.world.counts["worker interrupted"] += 1
        self._lets_go()
        await self.again()

    # -- held messages --------------------------------------------------------------------------------

    def _link(self) -> Link | None:
        """Return the current connection."""
        links = [link for link in self.world.network.links if link.client.owner is self.process]
        return links[-1] if links and links[-1].stands else None

    def _takes(self, message: tt.Message, options: Options) -> None:
        """Check a delivery: no other worker may hold the message, and it must not be done."""
        world = self.world
        seen = Seen(message.topic, bytes(message.data), str(message.bookmark), Labels())
        self.got.append(seen)
        body = seen.body
        if options["filter"] == "field" and not msgspec.json.decode(body)["even"]:
            world.wrong.append(f"{self.name} got a message that its filter excludes: {body!r}")
        if body in world.done:
            world.wrong.append(f"{self.name} got {body!r}, which is done: {world.done[body]}")
        link = self._link()
        if link is None or link is not self._on:
            return  # it arrived before its connection was lost
        other = world.held.get(body)
        if other is not None and other.surely() and other.link is not link:
            world.wrong.append(f"{self.name} and {other.worker.name} have {body!r} at once")
        world.held[body] = Held(self, link, self._placed)
        # Messages acknowledged on an earlier connection are released when the acknowledgement is repeated.
        mine = sum(
            one.worker is self and one.surely() for had, one in world.held.items() if had not in self.settled
        )
        if mine > int(options["backlog"]):
            world.wrong.append(f"{self.name} has {mine} messages, and asked for {options['backlog']}")

    def _lets_go(self) -> None:
        held = self.world.held
        for body in [body for body, one in held.items() if one.worker is self]:
            del held[body]

    async def _settle(self, client: tt.AsyncHAClient, message: tt.Message, options: Options) -> None:
        body = bytes(message.data)
        if options["extends"] == "sometimes" and self._now("extends", 0.3):
            message.extend(20.0)
            self._did.add("extends")
            self.world.counts["leases extended"] += 1
        held = self.world.held.pop(body, None)
        if options["gives back"] == "sometimes" and self._now("gives back", 0.2):
            await self._settle_message(client, message, options, "cancel")
            self._did.add("gives back")
            self.world.counts["given back"] += 1
            return
        if options["gives back"] == "expires" and self._now("gives back", 0.1):
            await self._settle_message(client, message, options, "expire")
            self._did.add("gives back")
            self.world.counts["expired by a worker"] += 1
        else:
            await self._settle_message(client, message, options)
        self.settled.append(body)
        if held is not None:
            self._acked[body] = held
        if options["settles"] == "one by one":
            await self._flush(client)

    def _now(self, name: str, chance: float) -> bool:
        """Return whether to take an occasional action now: always the first time."""
        return self.rng.random() < chance or name not in self._did

    async def _settle_message(
        self, client: tt.AsyncHAClient, message: tt.Message, options: Options, what: str | None = None
    ) -> None:
        """Settle a message by itself, or by its bookmark."""
        if options["settles"] == "by bookmark":
            assert message.bookmark is not None
            await client.ack(WORK, str(message.bookmark), what)
        elif what == "cancel":
            message.cancel()
        elif what == "expire":
            message.expire()
        else:
            message.ack()

    async def _browse(self, client: tt.AsyncHAClient, options: Options) -> None:
        """Browse the queue: no message is done already, and browsing takes none away."""
        done = set(self.world.done)
        async with await self.ends(
            client.subscribe(
                WORK, sub_id="b", browse=True, filter=FILTER if options["filter"] == "field" else None
            )
        ) as stream:
            async for message in stream:
                body = bytes(message.data)
                if body in done:
                    self.world.wrong.append(f"{self.name} sees {body!r}, which is done")
                if message.lease_expires is not None:
                    self.world.wrong.append(f"{self.name} looks at {body!r} and holds it")
        self._did.add("browses")
        self.world.counts["queue browsed"] += 1

    async def _sleeps(self) -> None:
        """Sleep longer than a lease: the messages are redelivered to any worker."""
        self._did.add("gives back")
        self.world.counts["lease ended"] += 1
        self._lets_go()  # all it has is as old
        await asyncio.sleep(LEASE_SECONDS + 1.0 + 20.0 * (self._options["extends"] == "sometimes"))

    async def _flush(self, client: tt.AsyncHAClient) -> bool:
        upto = len(self.settled)
        acked, self._acked = self._acked, {}
        try:
            await self.ends(client.publish_flush())
        except RETRIES:
            return False
        self.sure = max(self.sure, upto)
        link = self._link()
        for body, held in acked.items():
            if held.link is link and held.surely():
                # Acknowledged in time, on the connection of its delivery.
                self.world.done[body] = f"acknowledged by {self.name} at {self.world.loop.time():.3f}"
        return True
