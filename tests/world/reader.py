"""Owns reading in a world: subscriptions and replays in each way there is, and what they got.

Must never know what was published, but when it has all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

import tickertape as tt
from tests.world.apps import RETRIES, TOPICS, App, Labels, Seen
from tests.world.choices import FILTER, READ, SELECT, Options

if TYPE_CHECKING:
    from tests.world.world import World

PATTERN: Final = "^[ab]$"
RATE: Final = 200
"""Messages a second, of those who ask for a rate."""
QUIET: Final = 30.0
"""Seconds in which whoever has lost its connection has got another one and what it missed."""
LINGER: Final = 0.5
"""In these seconds nothing more comes to whoever has everything."""


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
    moments: list[float]
    """When each of `seen` came."""


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
        self.last_call = asyncio.Event()
        """Nothing goes wrong any more: who subscribes plainly now gets what is published then."""
        self.final: int | None = None
        """Of the plain subscription of this moment: what it had seen when it was placed after that."""
        self.length: Callable[[], int] = lambda: 0
        """How much of the log is there to be read."""
        self._late: list[tuple[bytes, tt.Message]] = []
        """Messages that it will discard, and their bodies."""
        self._discarded: set[bytes] = set()

    def forget(self) -> None:
        if not self._reads:
            return
        reading = self.readings[-1]
        if reading.options["store"] != "disk":
            reading.lives.append(len(reading.seen))
        self._late.clear()
        if reading.options["store"] != "disk" or self._disk == "ring":
            self._discarded.clear()  # all of it comes again, or what was discarded beyond a gap

    @property
    def plain(self) -> bool:
        """Whether it has a plain subscription now."""
        return self._reads and self.readings[-1].options["command"] == "subscribe"

    @property
    def may_lose_power(self) -> bool:
        return False  # what is left of a bookmark store then is tried elsewhere

    async def run(self) -> None:
        while self._reads or self._left:
            if not self._reads:
                options = self.chooser.draw(READ)
                topic = self.rng.choice(TOPICS) if options["topic"] == "literal" else PATTERN
                self.readings.append(Reading(options, topic, [], [], [], [], []))
                self.final = None
                self._late.clear()
                self._discarded.clear()
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
            await self.ends(client.resume("r"))

    async def _replay(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        """Until one comes to its end."""
        while True:
            del reading.seen[:], reading.lives[:], reading.moments[:]
            reading.marks.append(f"asked with {self.length()} at {self.world.loop.time()}")
            try:
                stream = await self.ends(client.replay(reading.topic, sub_id="r", **self._arguments(reading)))
                try:
                    await self._resume(client, reading)
                except RETRIES:
                    await self.ends(stream.close())
                    raise
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
            self._done_with(client, reading, message)

        while True:
            try:
                await self.ends(
                    client.subscribe(reading.topic, sub_id="r", on_message=take, **self._arguments(reading))
                )
                break
            except tt.SubscriptionExists:
                break  # its answer was lost, and the client has placed it again
            except RETRIES:
                await self.again()
        while True:
            try:
                await self._resume(client, reading)
                break
            except RETRIES:  # perhaps it was not even asked
                await self.again()
        reading.marks.append("placed")
        if reading.options["command"] == "subscribe":
            await self.last_call.wait()
            self.final = len(reading.seen)
        await self.enough.wait()
        await self._until_it_has_all(reading)
        self._discard_late()

    async def _streamed(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        """A stream ends with its connection; who wants the rest asks again, at last until all is there."""
        whole = False
        while not whole:
            reading.marks.append(f"from {len(reading.seen)}")
            enough = self.enough.is_set()
            last_call = self.last_call.is_set() and reading.options["command"] == "subscribe"
            try:
                stream = await self.ends(
                    client.subscribe(reading.topic, sub_id="r", **self._arguments(reading))
                )
                try:
                    await self._resume(client, reading)
                except RETRIES:
                    await self.ends(stream.close())  # else its id is in use
                    raise
                taking = asyncio.create_task(self._take(client, reading, stream))
                if last_call:
                    self.final = len(reading.seen)
                    await self.enough.wait()
                    enough = True
                if enough:
                    await self._until_it_has_all(reading)
                    whole = True
                else:
                    await asyncio.wait((taking,), timeout=0.3 * self.world.pace)
                await self.ends(stream.close())
                await taking
            except (*RETRIES, tt.SubscriptionUnknown):
                whole = False
                self.world.counts["stream cut short"] += 1
            await self.again()

    async def _take(self, client: tt.AsyncHAClient, reading: Reading, stream: Any) -> None:
        async for message in stream:
            self._saw(reading, message)
            self._done_with(client, reading, message)

    def _done_with(self, client: tt.AsyncHAClient, reading: Reading, message: tt.Message) -> None:
        """Discard it, or, some time later, several of them, in any order."""
        if client.bookmark_store is None:
            return
        self._late.append((reading.seen[-1].body, message))
        if reading.options["discards"] == "at once" or self.rng.random() < 0.2:
            self._discard_late()

    def _discard_late(self) -> None:
        self.rng.shuffle(self._late)
        keep = len(self._late) > 3 and self.rng.random() < 0.5
        for body, message in self._late[int(keep) :]:
            message.discard()
            self._discarded.add(body)
        del self._late[int(keep) :]

    async def _until_it_has_all(self, reading: Reading) -> None:
        """Or until it is clear that it will not; and a little longer, as nothing is to come twice."""
        deadline = self.world.loop.time() + QUIET
        while not self.has_all(reading) and self.world.loop.time() < deadline:
            await asyncio.sleep(0.05)
        await asyncio.sleep(LINGER)

    def _saw(self, reading: Reading, message: tt.Message) -> None:
        body = bytes(message.data)
        labels = Labels(message.correlation_id, message.sow_key, message.expiration is not None)
        if reading.options["select"] == "some":
            fields = msgspec.json.decode(body)
            if list(fields) != ["by", "n", "even"]:
                reading.wrong.append(body)
            body = self.world.bodies[fields["by"], fields["n"]]
        if body in self._discarded:
            self.world.wrong.append(f"{self.name} {reading.options}: {body!r} was discarded and comes again")
        reading.seen.append(Seen(message.topic, body, str(message.bookmark or ""), labels))
        reading.moments.append(self.world.loop.time())
