"""Reader of a simulation: subscriptions and replays in every way, and the received messages.

Must never know the published messages, only whether it has all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

import tickertape as tt
from tests.world.apps import RETRIES, UNRECORDED, App, Labels, Seen
from tests.world.choices import READ, Options
from tests.world.reading import PATTERN, Asked, Reading, somewhere, topic_of
from tickertape.client.common.subscribe_arguments import make_request, resolve_command, wire_text
from tickertape.client.common.waiting import DEFAULT
from tickertape.wire.commands import Resolved

if TYPE_CHECKING:
    from tests.world.world import World

QUIET: Final = 30.0
"""Seconds in which a reader reconnects after a loss and receives the missed messages."""
LINGER: Final = 0.5
"""Seconds in which a reader with all messages must receive no more."""


class Reader(App):
    """Subscribes and replays in every way, one after the other."""

    def __init__(self, world: World, uris: list[str], name: str, readings: int) -> None:
        super().__init__(world, name, uris)
        self.readings: list[Reading] = []
        self._left = readings
        self._current: list[Reading] = []
        """The readings that are still running."""
        self._disk = self.rng.choice(("logged", "ring"))
        self.enough = asyncio.Event()
        """Set when publishing is over: a reader with all messages may stop."""
        self.has_all: Callable[[Reading], bool] = lambda _: False
        """Whether a reading has all messages, known when `enough` is set."""
        self.last_call = asyncio.Event()
        """Set when faults are over: new plain subscriptions get all messages published from then on."""
        self.length: Callable[[], int] = lambda: 0
        """How much of the log is there to be read."""

    def forget(self) -> None:
        for reading in self._current:
            reading.forget(all_discarded_again=self._disk == "ring")

    @property
    def plain(self) -> list[Reading]:
        """Plain subscriptions that it has now."""
        return [reading for reading in self._current if reading.plain]

    @property
    def may_lose_power(self) -> bool:
        return False  # other tests cover the remaining state of a bookmark store

    async def run(self) -> None:
        while self._current or self._left:
            if not self._current:
                self._begin()
            await self._read()
            self._current = []

    def _begin(self) -> None:
        options = self.chooser.draw(READ)
        first = Reading(options, topic_of(options, self.rng), "r")
        self._current = [first]
        if options["beside"] == "a twin":
            self._current.append(Reading(options, first.topic, "s"))
        self.readings += self._current
        self._left -= 1

    def _store(self, options: Options) -> tt.BookmarkStore | None:
        if options["store"] == "disk":
            self.world.counts["bookmark stores opened"] += 1
            return self.shelf.bookmark_store(self._disk, len(self.readings))
        return tt.MemoryBookmarkStore() if options["store"] == "memory" else None

    async def _read(self) -> None:
        options = self._current[0].options
        async with self.client(bookmark_store=self._store(options)) as client:
            if self._current[0].past:
                await self._past(client, self._current[0])
            elif options["taken by"] == "handler":
                await self._handled(client)
            else:
                await self._streamed(client, self._current[0])
        if options["command"] != "range" or self._current[0].behind is not None:
            self.chooser.done(options)

    async def _until_done(self, call: Callable[[], Awaitable[object]], *over: type[Exception]) -> None:
        """Retry until the call is answered. An error of `over` means that an earlier attempt took effect."""
        while True:
            try:
                await self.ends(call())
            except over:
                return
            except RETRIES:
                await self.again()
            else:
                return

    async def _resume(self, client: tt.AsyncHAClient) -> None:
        if self._current[0].options["pace"] == "paused":
            await self.pause()
            await self.ends(client.resume(*self._ids()))

    def _ids(self) -> list[str]:
        return [reading.sub_id for reading in self._current]

    # -- stored messages ------------------------------------------------------------------------------

    async def _past(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        """Replay until one is complete."""
        while True:
            reading.restart_reading()
            reading.asked = Asked(self.length(), self.world.loop.time())
            try:
                if reading.options["command"] == "range" and reading.behind is None:
                    await self._choose_start(client, reading)
                if reading.options["command"] == "positions":
                    await self._positions(client, reading)
                else:
                    await self._replay(client, reading)
            except (*RETRIES, tt.SubscriptionUnknown):  # SubscriptionUnknown: it ended before it was resumed
                self.world.counts["replay cut short"] += 1
                await self.again()
                continue
            reading.whole = True
            return

    async def _choose_start(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        """Wait until messages are stored, and choose one of them as start point."""
        for _ in range(20):
            stream = await self.ends(client.replay(PATTERN, sub_id="looks"))
            known = [
                Seen(message.topic, bytes(message.data), str(message.bookmark), Labels())
                async for message in stream
            ]
            if known:
                somewhere(reading, known, self.rng)
                self.world.counts["ranges with a start"] += 1
                self.world.counts["ranges with an end"] += reading.until is not None
                return
            await self.again()

    async def _replay(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        stream = await self.ends(
            client.replay(reading.topic, reading.start, sub_id="r", **reading.arguments())
        )
        try:
            await self._resume(client)
        except RETRIES:
            await self.ends(stream.close())
            raise
        async for message in stream:
            self._saw(reading, message)

    async def _positions(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        driver, command = client._driver, resolve_command(reading.topic, wire_text(tt.EPOCH))
        found = await self.ends(
            driver.call(lambda call: driver.core.resolve(call, command), DEFAULT, "resolve")
        )
        assert isinstance(found, Resolved)
        start, end = found.start, found.end
        request = make_request(
            reading.topic,
            driver.new_sub_id(),
            timestamp=True,
            positions=(start, end),
            journal=found.journal,
            numbered=True,
            **reading.content(),
        )
        stream = await self.ends(driver.open_stream(request, DEFAULT, None))
        last = start - 1
        async for batch in stream.batches():
            assert batch.positions is not None
            places = batch.positions.tolist()
            if places != sorted({*places}) or not last < places[0] <= places[-1] < end:
                self.world.wrong.append(f"{self.name} read {places} behind {last} of {start} to {end}")
            last = places[-1]
            for message in batch:
                self._saw(reading, message)

    # -- with a handler -------------------------------------------------------------------------------

    async def _handled(self, client: tt.AsyncHAClient) -> None:
        for reading in self._current:
            # Where its answer was lost, the client has placed it again.
            await self._until_done(lambda: self._place(client, reading), tt.SubscriptionExists)  # noqa: B023
        if self._current[0].options["pace"] == "paused":
            await self.pause()
            await self._until_done(lambda: client.resume(*self._ids()))  # perhaps it was not even asked
        await self._on_the_way(client)
        if self.plain:
            await self.last_call.wait()
            for reading in self._current:
                reading.final = len(reading.seen)
        await self.enough.wait()
        for reading in self._current:
            await self._until_complete(reading)
            self._discard_late(reading)

    async def _place(self, client: tt.AsyncHAClient, reading: Reading, *, replaced: bool = False) -> None:
        # A replaced subscription keeps its messages: its handler would run beside the other one.
        slow = reading.options["on the way"] != "replaced" and self.rng.random() < 0.5

        async def take(message: tt.Message) -> None:
            self._saw(reading, message)
            if slow and self.rng.random() < 0.3:
                await self.pause()  # messages arrive meanwhile, and wait
            self._done_with(client, reading, message)

        given = reading.replacement() if replaced else reading.arguments()
        await client.subscribe(reading.topic, sub_id=reading.sub_id, on_message=take, **given)

    async def _on_the_way(self, client: tt.AsyncHAClient) -> None:
        """Change a running subscription."""
        what = self._current[0].options["on the way"]
        if what == "nothing":
            return
        await self.pause()
        if what == "replaced":
            for reading in self._current:
                await self._replaced(client, reading)
            return
        await self._until_done(lambda: client.pause(*self._ids()))
        await self.pause()
        await self._until_done(lambda: client.resume(*self._ids()))

    async def _replaced(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        asked = False
        while True:
            try:
                await self.ends(self._place(client, reading, replaced=True))
            except tt.SubscriptionExists:
                if asked:
                    return  # its answer is late: the one before is still on its way
            except RETRIES:
                asked = True
            else:
                return
            await self.again()

    # -- as a stream ----------------------------------------------------------------------------------

    async def _streamed(self, client: tt.AsyncHAClient, reading: Reading) -> None:
        """Read one stream after the other, as connections end, until one has all messages."""
        whole = False
        while not whole:
            reading.streams.append(len(reading.seen))
            enough = self.enough.is_set()
            last_call = self.last_call.is_set() and reading.plain
            try:
                stream = await self.ends(client.subscribe(reading.topic, sub_id="r", **reading.arguments()))
                try:
                    await self._resume(client)
                except RETRIES:
                    await self.ends(stream.close())  # else its id is in use
                    raise
                taking = asyncio.create_task(self._take(client, reading, stream))
                if last_call:
                    reading.final = len(reading.seen)
                    await self.enough.wait()
                    enough = True
                if enough:
                    await self._until_complete(reading)
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

    # -- received messages ----------------------------------------------------------------------------

    def _done_with(self, client: tt.AsyncHAClient, reading: Reading, message: tt.Message) -> None:
        """Discard it, or, some time later, several of them, in any order."""
        if client.bookmark_store is None or reading.options["store"] == "none":
            return
        reading.late.append((reading.seen[-1].body, message))
        if reading.options["discards"] == "at once" or self.rng.random() < 0.2:
            self._discard_late(reading)

    def _discard_late(self, reading: Reading) -> None:
        late = reading.late
        if reading.options["discards"] == "late":
            self.rng.shuffle(late)
        keep = int(reading.options["discards"] == "late" and len(late) > 3 and self.rng.random() < 0.5)
        for body, message in late[keep:]:
            message.discard()
            reading.discarded.add(body)
        del late[keep:]

    async def _until_complete(self, reading: Reading) -> None:
        """Wait until a reading has all messages, or too long, then a little longer for duplicates."""
        deadline = self.world.loop.time() + QUIET
        while not self.has_all(reading) and self.world.loop.time() < deadline:
            await asyncio.sleep(0.05)
        await asyncio.sleep(LINGER)

    def _saw(self, reading: Reading, message: tt.Message) -> None:
        body = bytes(message.data)
        options = reading.options
        labels = Labels(message.correlation_id, message.sow_key, message.expiration is not None)
        if options["select"] == "some":
            fields = msgspec.json.decode(body)
            if list(fields) != ["by", "n", "even"]:
                reading.wrong.append(body)
            body = self.world.bodies[fields["by"], fields["n"]]
        # The server gives a time to messages that it stores.
        if (message.timestamp is not None) != (options["times"] == "asked" and message.topic != UNRECORDED):
            reading.wrong.append(body)
        if body in reading.discarded and not reading.conflated:
            self.world.wrong.append(f"{self.name} {options}: {body!r} was discarded and is redelivered")
        reading.seen.append(Seen(message.topic, body, str(message.bookmark or ""), labels))
        reading.moments.append(self.world.loop.time())
