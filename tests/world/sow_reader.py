"""Reader of a SOW simulation: queries, and subscriptions that start with a query.

Must never know the published messages, nor judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

import tickertape as tt
from tests.world.apps import RETRIES, App
from tests.world.choices import FILTER, QUERY, Options
from tests.world.reader import LINGER, QUIET
from tests.world.sow_log import PARTS, PATTERN, Identity
from tests.world.sow_publisher import KEYS

if TYPE_CHECKING:
    from tests.world.world import World

SELECT: Final = "select=[-/,+/id,+/n]"
SELECTED: Final = ("id", "n")
ORDERS: Final = {"none": None, "values": "/v", "texts descending": "/t DESC, /v"}
BATCHES: Final = {"server": 0, "one": 1, "seven": 7}
WHOLE: Final = f"^{PATTERN}"
"""Query of the SOW topic with all its topics."""


class Answer(NamedTuple):
    """A record or message as a reader received it."""

    topic: str
    bookmark: str
    fields: dict[str, Any]
    command: str


@dataclass
class Result:
    """The records of a query, and the messages after them."""

    asked: int
    """Moment of the request."""
    as_of: str = ""
    unpersisted: bool = False
    """Whether the position was not persisted when the reader received it."""
    records: list[Answer] = field(default_factory=list)
    whole: bool = False
    messages: list[Answer] = field(default_factory=list)
    matches: int | None = None


@dataclass
class Query:
    """A query with its results: the last one is complete."""

    options: Options
    topic: str
    ids: frozenset[Identity] | None = None
    keys: list[str] = field(default_factory=list)
    top: int | None = None
    skip: int = 0
    results: list[Result] = field(default_factory=list)

    @property
    def follows(self) -> bool:
        """Return whether messages follow the records."""
        return self.options["command"] == "sow_and_subscribe"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the call."""
        options = self.options
        given: dict[str, Any] = {
            "filter": FILTER if options["filter"] == "field" else None,
            "order_by": ORDERS[options["order"]],
            "top_n": self.top,
            "skip_n": self.skip if options["skip"] == "some" else None,
            "batch_size": BATCHES[options["batch"]],
            "timestamp": options["times"] == "asked",
            "options": SELECT if options["select"] == "some" else None,
            "depth": "4KB" if options["credit"] == "small" else None,
        }
        return given


class SowReader(App):
    """Queries in every way, one after the other."""

    def __init__(self, world: World, uris: list[str], name: str, queries: int) -> None:
        super().__init__(world, name, uris)
        self.queries: list[Query] = []
        self._left = queries
        self._current: Query | None = None
        self.enough = asyncio.Event()
        """Set when publishing is over."""
        self.has_all: Callable[[Query], bool] = lambda _: False
        """Whether a following query has all messages, known when `enough` is set."""
        self.persisted: Callable[[str], bool] = lambda _: True
        """Whether the server has persisted the message of a bookmark."""

    def forget(self) -> None:
        """The next process repeats the query."""

    @property
    def may_lose_power(self) -> bool:
        return False

    async def run(self) -> None:
        while self._current is not None or self._left:
            if self._current is None:
                self._current = self._next()
                self.queries.append(self._current)
                self._left -= 1
            await self._read(self._current)
            self._current = None
            await self.pause()

    def _next(self) -> Query:
        options, rng = self.chooser.draw(QUERY), self.rng
        topic = options["topic"]
        if topic == "pattern":
            topic = WHOLE
        elif topic == "one of a pattern":
            topic = rng.choice((PATTERN, *PARTS))
        return Query(
            options,
            topic,
            top=rng.choice((0, 2, 5)) if options["top"] == "some" else None,
            skip=rng.choice((1, 4)) if options["skip"] == "some" else 0,
        )

    async def _read(self, query: Query) -> None:
        store = tt.MemoryBookmarkStore() if query.options["store"] == "memory" else None
        async with self.client(bookmark_store=store) as client:
            if not query.follows:
                while not await self._query(client, query):
                    await self.again()
            elif query.options["taken by"] == "handler":
                await self._handled(client, query)
            else:
                await self._streamed(client, query)
        self.chooser.done(query.options)

    # -- results on their own ---------------------------------------------------------------------------

    async def _query(self, client: tt.AsyncHAClient, query: Query) -> bool:
        """Query once. Return whether the result is complete."""
        try:
            if query.options["keys"] == "some" and query.ids is None:
                await self._choose_keys(client, query)
            result = self._begin(query)
            keys = query.keys or None
            found = await self.ends(client.sow(query.topic, keys=keys, **query.arguments()))
            self._at(result, found.as_of)
            async for message in found:
                self._take(query, message)
                if self.rng.random() < 0.1:
                    await self.pause()
        except RETRIES:
            self.world.counts["query without a result"] += 1
            return False
        result.whole, result.matches = True, found.matches
        if found.records_returned != len(result.records):
            self.world.wrong.append(
                f"{self.name}: {found.records_returned} records are {len(result.records)}"
            )
        return True

    async def _choose_keys(self, client: tt.AsyncHAClient, query: Query) -> None:
        found = await self.ends(client.sow(query.topic))
        known: dict[str, Identity] = {}
        explicit = query.options["topic"] == "explicit"
        async for message in found:
            known[str(message.sow_key)] = message.topic, message.sow_key if explicit else message.json()["id"]
        query.keys = self.rng.sample(sorted(known), min(len(known), self.rng.choice((1, 3))))
        query.ids = frozenset(known[key] for key in query.keys)
        if not query.keys:
            query.keys, query.ids = [f"k{KEYS}"], frozenset()

    def _begin(self, query: Query) -> Result:
        query.results.append(Result(self.world.moment()))
        return query.results[-1]

    def _at(self, result: Result, as_of: str | None) -> None:
        result.as_of = as_of or tt.EPOCH
        result.unpersisted = not self.persisted(result.as_of)

    def _take(self, query: Query, message: tt.Message) -> None:
        result, command = query.results[-1], message.command
        if command == "group_begin":
            if result.as_of:
                query.results.append(Result(result.asked))
                self.world.counts["queries sent again"] += 1
            self._at(query.results[-1], message.bookmark)
        elif command == "group_end":
            result.whole = True
        else:
            fields = msgspec.json.decode(message.data)
            answer = Answer(message.topic, str(message.bookmark), fields, command)
            (result.records if command == "sow" else result.messages).append(answer)
            if (message.timestamp is not None) != (query.options["times"] == "asked"):
                self.world.wrong.append(f"{self.name} {query.options}: timestamp {message.timestamp}")
            if query.options["select"] == "some" and set(fields) != set(SELECTED):
                self.world.wrong.append(f"{self.name} {query.options}: fields {list(fields)}")
            if query.options["store"] == "memory" and command == "publish":
                message.discard()

    # -- followed by messages -----------------------------------------------------------------------------

    async def _handled(self, client: tt.AsyncHAClient, query: Query) -> None:
        self._begin(query)
        while True:
            try:
                await self.ends(
                    client.sow_and_subscribe(
                        query.topic,
                        sub_id="q",
                        on_message=lambda message: self._take(query, message),
                        **query.arguments(),
                    )
                )
            except tt.SubscriptionExists:
                break  # an earlier attempt took effect
            except RETRIES:
                await self.again()
            else:
                break
        await self.enough.wait()
        await self._until_complete(query)

    async def _streamed(self, client: tt.AsyncHAClient, query: Query) -> None:
        """Read one stream after the other, as connections end, until one has all messages."""
        whole = False
        while not whole:
            self._begin(query)
            try:
                stream = await self.ends(
                    client.sow_and_subscribe(query.topic, sub_id="q", groups=True, **query.arguments())
                )
                taking = asyncio.create_task(self._taking(query, stream))
                await asyncio.wait((taking,), timeout=0.3 * self.world.pace)
                if self.rng.random() < 0.7:
                    enough = asyncio.create_task(self.enough.wait())
                    await asyncio.wait((taking, enough), return_when=asyncio.FIRST_COMPLETED)
                    enough.cancel()
                if self.enough.is_set() and not taking.done():
                    await self._until_complete(query)
                    whole = not taking.done()
                await self.ends(stream.close())
                await taking
            except (*RETRIES, tt.SubscriptionExists, tt.SubscriptionUnknown):
                whole = False
                self.world.counts["stream cut short"] += 1
            await self.again()

    async def _taking(self, query: Query, stream: tt.AsyncMessageStream) -> None:
        async for message in stream:
            self._take(query, message)

    async def _until_complete(self, query: Query) -> None:
        deadline = self.world.loop.time() + QUIET
        while not self.has_all(query) and self.world.loop.time() < deadline:
            await asyncio.sleep(0.05)
        await asyncio.sleep(LINGER)
