"""Owns the applications of a world: what they ask of the product's own asyncio clients, and what they saw.

Must never look behind the client's calls, nor know what the others do.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

import tickertape as tt
import tickertape.client.aio_ha  # not when it is first used: it is to read the clock of the world
from tests.world.choices import CONSUME, FILTER, PUBLISH, READ, SELECT, Chooser, Options, json_body
from tests.world.process import Process

if TYPE_CHECKING:
    from tests.world.world import World

TOPICS: Final = ("a", "b")
PATTERN: Final = "^[ab]$"
JOBS: Final = "jobs"
WORK: Final = "work"
RATE: Final = 2_000
"""Messages a second, of those who ask for a rate."""
TIMEOUT: Final = 5.0
"""Seconds of a call; of virtual time, as everything here."""
QUIET: Final = 15.0
"""Seconds in which whoever has lost its connection has got another one and what it missed."""
STORES: Final = ("memory", "file", "synced file")
"""Where a publisher keeps what is not persisted yet."""
LINGER: Final = 0.5
"""In these seconds nothing more comes to whoever has everything."""
RETRIES: Final = (
    tt.Disconnected, tt.TimedOut, tt.NotReady, tt.JournalFull, tt.StagingFailed, tt.StagingFull,
    tt.TransactionBusy,
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
        self.shelf = world.shelf(name)
        self.process: Process | None = None
        self.finished: asyncio.Future[None] = world.loop.create_future()
        self.told: list[BaseException] = []

    # -- its life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, or go on after an end, in a process of its own."""
        assert self.process is None, f"{self.name} runs"
        self.process = Process(self.name, self.world.loop)
        self.process.spawn(self._live())  # type: ignore[unused-awaitable]

    async def _live(self) -> None:
        try:
            await self.run()
        except Exception as error:  # noqa: BLE001 - it is the end of this world
            self.finished.set_exception(error)
        else:
            self.finished.set_result(None)

    @property
    def down(self) -> bool:
        """Whether it is to be started again."""
        return self.process is None and not self.finished.done()

    @property
    def may_die(self) -> bool:
        """Whether it runs and has something to do."""
        return self.process is not None and not self.finished.done()

    @property
    def may_lose_power(self) -> bool:
        """Whether what is then left of its stores is simulated."""
        return self.may_die

    def killed(self) -> None:
        """Its process ends."""
        self._gone(power=False)
        self.shelf.killed()

    def power_lost(self) -> None:
        """Its machine ends."""
        for link in self.world.network.links:
            if link.client.owner is self.process:
                link.silent_end = self.rng.random() < 0.5
        self._gone(power=True)
        self.shelf.power_lost()

    def _gone(self, *, power: bool) -> None:
        assert self.process is not None
        self.process.kill()
        self.world.dead.append(self.process)
        self.process = None
        self.forget(power=power)

    @abstractmethod
    async def run(self) -> None:
        """What it does, to its end; begun again after each end of its process."""

    @abstractmethod
    def forget(self, *, power: bool) -> None:
        """Its process has ended: strike out what it alone knew."""

    # -- what it does -----------------------------------------------------------------------------------

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
        for store in (more.get("publish_store"), more.get("bookmark_store")):
            if store is not None:
                store.close()

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
        self.perhaps: set[int] = set()
        """Which of `sent` were under way, or in memory only, when its process ended."""
        self._returned = 0
        """So many of `sent` its client has taken."""
        self._made = 0
        self._extra: dict[str, Any] = {}
        """Of the last transaction."""
        self._keeps = self.rng.choice(STORES)

    @property
    def may_lose_power(self) -> bool:
        return self.may_die and self._keeps != "file"

    def forget(self, *, power: bool) -> None:
        certain = self.promised if self._keeps == "memory" else self._returned
        self.perhaps.update(range(certain, len(self.sent)))
        self._returned = len(self.sent)

    def _store(self) -> tt.PublishStore:
        if self._keeps == "memory":
            return tt.MemoryPublishStore()
        self.world.counts["publish stores opened"] += 1
        return self.shelf.publish_store("always" if self._keeps == "synced file" else "never")

    async def run(self) -> None:
        async with self.client(publish_store=self._store()) as client:
            if self.transactions and len(self.transactions) - 1 not in self.committed:
                await self._commit(client, len(self.transactions) - 1)
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
            plan = [self._next(options) for _ in range(self.rng.choice((0, 1, 5)))]
            self.transactions.append([Sent(topic, body) for topic, body in plan])
            self._extra = self._extras(options)
            await self._commit(client, len(self.transactions) - 1)
        elif options["how"] == "one":
            topic, body = self._next(options)
            self.sent.append(Sent(topic, body))
            await client.publish(topic, body, **self._extras(options))
        else:
            topic = self.rng.choice(self.topics)
            bodies = [self._next(options)[1] for _ in range(self.rng.choice((1, 4, 8)))]
            self.sent += [Sent(topic, body) for body in bodies]
            await client.publish_batch(topic, bodies)
        self._returned = len(self.sent)
        self.chooser.done(options)

    async def _commit(self, client: tt.AsyncHAClient, number: int) -> None:
        """The same transaction until it is committed: nobody is told that it failed without trying again."""
        while True:
            try:
                transaction = client.transaction(f"t{number}")
                for topic, body in self.transactions[number]:
                    transaction.publish(topic, body, **self._extra)
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
        self.world.bodies[self.name, self._made] = body
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
    wrong: list[bytes]
    """Bodies with other fields than it asked for."""
    lives: list[int]
    """Where in `seen` a process begins that knows nothing of what came before."""


class Reader(App):
    """Subscribes and replays in each way there is, one after the other."""

    def __init__(self, world: World, uris: list[str], name: str, readings: int) -> None:
        super().__init__(world, name, uris)
        self.readings: list[Reading] = []
        self._left = readings
        self._reads = False
        """The last of them is not over."""
        self._disk = self.rng.choice(("logged", "ring"))
        self.enough = asyncio.Event()
        """Nothing more is published: who has everything may stop."""
        self.has_all: Callable[[Reading], bool] = lambda _: False
        """Whether that is so; known when it is enough."""

    def forget(self, *, power: bool) -> None:
        if not self._reads:
            return
        reading = self.readings[-1]
        if reading.options["store"] != "disk":
            reading.lives.append(len(reading.seen))

    @property
    def may_lose_power(self) -> bool:
        return False  # what is left of a bookmark store then is tried elsewhere

    async def run(self) -> None:
        while self._reads or self._left:
            if not self._reads:
                options = self.chooser.draw(READ)
                topic = self.rng.choice(TOPICS) if options["topic"] == "literal" else PATTERN
                self.readings.append(Reading(options, topic, [], [], [], []))
                self._left -= 1
                self._reads = True
            await self._read(self.readings[-1])
            self._reads = False

    def _store(self, options: Options) -> tt.BookmarkStore | None:
        if options["store"] == "disk":
            self.world.counts["bookmark stores opened"] += 1
            return self.shelf.bookmark_store(self._disk, len(self.readings))
        return tt.MemoryBookmarkStore() if options["store"] == "memory" else None

    async def _read(self, reading: Reading) -> None:
        options = reading.options
        async with self.client(bookmark_store=self._store(options)) as client:
            if options["command"] == "replay":
                await self._replay(client, reading)
            elif options["taken by"] == "handler":
                await self._handled(client, reading)
            else:
                await self._streamed(client, reading)
        self.chooser.done(options)

    def _arguments(self, reading: Reading) -> dict[str, Any]:
        options = reading.options
        given: dict[str, Any] = {
            "filter": FILTER if options["filter"] == "field" else None,
            "select": SELECT if options["select"] == "some" else None,
            "depth": "4KB" if options["credit"] == "small" else None,
        }
        if options["command"] != "subscribe":
            given["fully_durable"] = options["delivery"] == "fully durable"
            given["rate"] = RATE if options["pace"] == "rate" else None
            given["pause"] = options["pace"] == "paused"
        if options["command"] in ("epoch", "most recent"):
            given["bookmark"] = tt.EPOCH if options["command"] == "epoch" else tt.MOST_RECENT
            if options["delivery"] == "live":
                given["live"] = True
                if options["taken by"] == "stream":
                    # What it was shown may be lost, and with it the place where it asks to go on. One with a
                    # handler goes on by itself, and must never need this.
                    given["bookmark_not_found"] = "epoch"
        return given

    async def _resume(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        if reading.options["pace"] == "paused":
            await self.pause()
            await client.resume("r")

    async def _replay(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        """Until one comes to its end."""
        while True:
            del reading.seen[:], reading.lives[:]
            try:
                stream = await client.replay(reading.topic, sub_id="r", **self._arguments(reading))
                await self._resume(client, reading)
                async for message in stream:
                    self._saw(reading, message)
            except (*RETRIES, tt.SubscriptionUnknown):  # the latter: gone before it was resumed
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
        with suppress(*RETRIES):  # then it comes back as it was asked for
            await self._resume(client, reading)
        reading.marks.append("placed")
        await self.enough.wait()
        await self._until_it_has_all(reading)

    async def _streamed(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        """A stream ends with its connection; who wants the rest asks again, at last until all is there."""
        whole = False
        while not whole:
            reading.marks.append(f"from {len(reading.seen)}")
            enough = self.enough.is_set()
            try:
                stream = await client.subscribe(reading.topic, sub_id="r", **self._arguments(reading))
                await self._resume(client, reading)
                taking = asyncio.create_task(self._take(client, reading, stream))
                if enough:
                    await self._until_it_has_all(reading)
                    whole = True
                else:
                    await asyncio.wait((taking,), timeout=0.3)
                await stream.close()
                await taking
            except (*RETRIES, tt.SubscriptionUnknown):
                whole = False
                self.world.counts["stream cut short"] += 1
            await self.again()

    async def _take(self, client: tt.AsyncHAClient, reading: Reading, stream: Any) -> None:
        async for message in stream:
            self._saw(reading, message)
            if client.bookmark_store is not None:
                message.discard()

    async def _until_it_has_all(self, reading: Reading) -> None:
        """Or until it is clear that it will not; and a little longer, as nothing is to come twice."""
        deadline = self.world.loop.time() + QUIET
        while not self.has_all(reading) and self.world.loop.time() < deadline:
            await asyncio.sleep(0.05)
        await asyncio.sleep(LINGER)

    def _saw(self, reading: Reading, message: tt.Message) -> None:
        body = bytes(message.data)
        if reading.options["select"] == "some":
            fields = msgspec.json.decode(body)
            if list(fields) != ["by", "n", "even"]:
                reading.wrong.append(body)
            body = self.world.bodies[fields["by"], fields["n"]]
        reading.seen.append(Seen(message.topic, body, str(message.bookmark or "")))


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

    def forget(self, *, power: bool) -> None:
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
