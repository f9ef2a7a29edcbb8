"""Owns the applications of a world: what they ask of the product's own asyncio clients, and what they saw.

Must never look behind the client's calls, nor know what the others do.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

import tickertape as tt
import tickertape.client.aio_ha  # not when it is first used: it is to read the clock of the world
from tests.world.choices import CONSUME, FILTER, PUBLISH, READ, Chooser, Options, json_body
from tests.world.process import Process

if TYPE_CHECKING:
    from tests.world.world import World

TOPICS: Final = ("a", "b")
PATTERN: Final = "^[ab]$"
JOBS: Final = "jobs"
WORK: Final = "work"
TIMEOUT: Final = 5.0
"""Seconds of a call; of virtual time, as everything here."""
QUIET: Final = 15.0
"""Seconds in which whoever lost its connection has got another one and what it missed."""
RETRIES: Final = (
    tt.Disconnected, tt.TimedOut, tt.NotReady, tt.JournalFull, tt.StagingFailed, tt.StagingFull,
)  # fmt: skip
"""What an application tries again after: the server or the way to it is gone, or its answer is."""


class Sent(NamedTuple):
    """A message as its publisher knows it."""

    topic: str
    body: bytes


class Seen(NamedTuple):
    """A message as a reader got it."""

    topic: str
    body: bytes
    bookmark: str


class App(ABC):
    """A process with one client."""

    def __init__(self, world: World, name: str, uris: list[str]) -> None:
        self.world = world
        self.rng = world.rng
        self.name = name
        self.uris = uris
        self.chooser = Chooser(world.rng, world.counts)
        self.process = Process(name, world.loop)
        self.finished: asyncio.Task[None] | None = None
        self.told: list[BaseException] = []

    def start(self) -> None:
        """Begin in its process."""
        self.finished = self.process.spawn(self.run())

    @abstractmethod
    async def run(self) -> None:
        """What it does, to its end."""

    @asynccontextmanager
    async def client(self, **more: Any) -> AsyncIterator[tt.AsyncHAClient]:
        """A client that comes back to its servers."""
        rng = self.rng
        client = tt.AsyncHAClient(
            self.name,
            servers=self.uris,
            reconnect_delay=rng.choice((0.01, 0.3)),
            heartbeat=rng.choice((0.5, 3.0)),
            timeout=TIMEOUT,
            **more,
        )
        client.set_exception_listener(self.told.append)
        await client.connect_and_logon()
        yield client
        await client.close()

    async def pause(self) -> None:
        """Let others do something."""
        await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.02)) * self.rng.random())

    async def again(self) -> None:
        """Wait before something is tried again: whoever asks at once for ever gets nowhere."""
        await asyncio.sleep(0.02 + 0.1 * self.rng.random())


class Publisher(App):
    """Publishes in each way there is. `sent` is in the order of its sequences."""

    def __init__(
        self, world: World, uris: list[str], name: str, messages: int, topics: tuple[str, ...]
    ) -> None:
        super().__init__(world, name, uris)
        self.messages = messages
        self.topics = topics
        self.sent: list[Sent] = []
        """What was published under its own name."""
        self.promised = 0
        """So many of them are persisted, as it was told."""
        self.transactions: list[list[Sent]] = []
        self.committed: set[int] = set()
        """Of these the server said that they are committed."""
        self._made = 0

    async def run(self) -> None:
        async with self.client() as client:
            while self._made < self.messages:
                await self._publish(client)
                if self.rng.random() < 0.3:
                    await self._flush(client)
                await self.pause()
            while not await self._flush(client):
                await self.again()

    async def _flush(self, client: tt.AsyncHAClient) -> bool:
        upto = len(self.sent)
        try:
            await client.publish_flush()
        except RETRIES:
            self.world.counts["flush without an answer"] += 1
            return False
        self.promised = max(self.promised, upto)
        return True

    async def _publish(self, client: tt.AsyncHAClient) -> None:
        options = self.chooser.draw(PUBLISH)
        if options["how"] == "transaction":
            await self._commit(client, options)
        elif options["how"] == "one":
            topic, body = self._next(options)
            self.sent.append(Sent(topic, body))
            await client.publish(topic, body, **self._extras(options))
        else:
            topic = self.rng.choice(self.topics)
            bodies = [self._next(options)[1] for _ in range(self.rng.choice((1, 4, 8)))]
            self.sent += [Sent(topic, body) for body in bodies]
            await client.publish_batch(topic, bodies)
        self.chooser.done(options)

    async def _commit(self, client: tt.AsyncHAClient, options: Options) -> None:
        """The same transaction until it is committed: nobody is told that it failed without trying again."""
        number = len(self.transactions)
        plan = [self._next(options) for _ in range(self.rng.choice((0, 1, 5)))]
        self.transactions.append([Sent(topic, body) for topic, body in plan])
        while True:
            try:
                transaction = client.transaction(f"t{number}")
                for topic, body in plan:
                    transaction.publish(topic, body, **self._extras(options))
                result = await transaction.commit()
            except RETRIES:
                self.world.counts["commit without an answer"] += 1
                await self.again()
                continue
            self.world.counts["committed before"] += result.repeated
            self.committed.add(number)
            return

    def _next(self, options: Options) -> tuple[str, bytes]:
        body = msgspec.json.encode(json_body(self._made, self.name, options["size"]))
        self._made += 1
        return self.rng.choice(self.topics), body

    def _extras(self, options: Options) -> dict[str, Any]:
        return {
            "expiration": None if options["life"] == "none" else 172_800.0,
            "correlation_id": None if options["label"] == "none" else f"c{self._made}",
            "sow_key": None if options["key"] == "none" else f"k{self._made % 3}",
        }


class Reading(NamedTuple):
    """One subscription or replay, and what it got."""

    options: Options
    topic: str
    seen: list[Seen]
    marks: list[str]
    """What happened to it: `placed`, `lost` and the like."""


class Reader(App):
    """Subscribes and replays in each way there is, one after the other."""

    def __init__(self, world: World, uris: list[str], name: str, readings: int) -> None:
        super().__init__(world, name, uris)
        self.readings: list[Reading] = []
        self._count = readings
        self.enough = False
        """Nothing more is published: who has everything may stop."""

    async def run(self) -> None:
        for _ in range(self._count):
            await self._read(self.chooser.draw(READ))

    async def _read(self, options: Options) -> None:
        topic = self.rng.choice(TOPICS) if options["topic"] == "literal" else PATTERN
        reading = Reading(options, topic, [], [])
        self.readings.append(reading)
        store = tt.MemoryBookmarkStore() if options["store"] == "memory" else None
        async with self.client(bookmark_store=store) as client:
            if options["command"] == "replay":
                await self._replay(client, reading)
            elif options["taken by"] == "handler":
                await self._handled(client, reading)
            else:
                await self._streamed(client, reading)
        self.chooser.done(options)

    def _arguments(self, reading: Reading) -> dict[str, Any]:
        options = reading.options
        given: dict[str, Any] = {"filter": FILTER if options["filter"] == "field" else None}
        if options["command"] != "subscribe":
            given["bookmark"] = tt.EPOCH if options["command"] != "most recent" else tt.MOST_RECENT
            if options["delivery"] == "live":
                given["live"] = True
                if options["taken by"] == "stream":
                    # What it was shown may be lost, and with it the place where it asks to go on. One with a
                    # handler goes on by itself, and must never need this.
                    given["bookmark_not_found"] = "epoch"
        return given

    async def _replay(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        """Until one comes to its end."""
        while True:
            del reading.seen[:]
            try:
                filter_ = FILTER if reading.options["filter"] == "field" else None
                stream = await client.replay(reading.topic, filter=filter_)
                async for message in stream:
                    self._saw(reading, message)
            except RETRIES:
                self.world.counts["replay cut short"] += 1
                await self.again()
                continue
            reading.marks.append("whole")
            return

    async def _handled(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        def take(message: tt.Message) -> None:
            self._saw(reading, message)
            if client.bookmark_store is not None:
                message.discard()

        while True:
            try:
                await client.subscribe(reading.topic, sub_id="r", on_message=take, **self._arguments(reading))
                break
            except tt.SubscriptionExists:
                break  # its answer was lost, and the client has placed it again
            except RETRIES:
                await self.again()
        reading.marks.append("placed")
        await self._until_enough()

    async def _streamed(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        """A stream ends with its connection; who wants the rest asks again, at last until all is there."""
        whole = False
        while not whole:
            enough = self.enough
            reading.marks.append(f"from {len(reading.seen)}")
            try:
                stream = await client.subscribe(reading.topic, sub_id="r", **self._arguments(reading))
                try:
                    async with asyncio.timeout(QUIET if enough else 0.3):
                        async for message in stream:
                            self._saw(reading, message)
                            if client.bookmark_store is not None:
                                message.discard()
                except TimeoutError:
                    whole = enough
                await stream.close()
            except RETRIES:
                self.world.counts["stream cut short"] += 1
            await self.again()

    def _saw(self, reading: Reading, message: tt.Message) -> None:
        reading.seen.append(Seen(message.topic, bytes(message.data), str(message.bookmark or "")))

    async def _until_enough(self) -> None:
        while not self.enough:
            await asyncio.sleep(0.05)
        await asyncio.sleep(QUIET)


class Worker(App):
    """Takes messages of a queue and settles them; `every`: any of them."""

    def __init__(self, world: World, uris: list[str], name: str, *, every: bool) -> None:
        super().__init__(world, name, uris)
        self._fixed = {"filter": "none"} if every else {}
        self.got: list[Seen] = []
        self.settled: list[bytes] = []
        """Bodies it acknowledged, in order; of the first `sure` it was told that the server has that."""
        self.sure = 0
        self.enough = False

    async def run(self) -> None:
        options = self.chooser.draw(CONSUME, **self._fixed)
        async with self.client() as client:
            while not self.enough:
                await self._work(client, options)
            while not await self._flush(client):
                await self.again()
        self.chooser.done(options)

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
        if options["gives back"] == "sometimes" and self.rng.random() < 0.2:
            message.cancel()
            self.world.counts["given back"] += 1
            return
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
