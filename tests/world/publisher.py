"""Owns publishing in a world: in each way there is, and what its application knows of it.

Must never know what became of it but by the client's answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

import tickertape as tt
from tests.world.apps import RETRIES, App, Labels
from tests.world.choices import PUBLISH, Options, json_body

if TYPE_CHECKING:
    from tests.world.world import World

STORES: Final = ("memory", "file", "synced file")
"""Where a publisher keeps what is not persisted yet."""


class Sent(NamedTuple):
    """A message as its publisher knows it."""

    topic: str
    body: bytes
    labels: Labels


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

    def forget(self) -> None:
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
            await self.ends(client.publish_flush())
        except RETRIES:
            self.world.counts["flush without an answer"] += 1
            return False
        self.promised = max(self.promised, upto)
        return True

    async def _publish(self, client: tt.AsyncHAClient) -> None:
        options = self.chooser.draw(PUBLISH)
        if options["how"] == "transaction":
            plan = [self._next(options) for _ in range(self.rng.choice((0, 1, 5)))]
            self._extra = self._extras(options)
            labels = _labels(self._extra)
            self.transactions.append([Sent(topic, body, labels) for topic, body in plan])
            await self._commit(client, len(self.transactions) - 1)
        elif options["how"] == "one":
            topic, body = self._next(options)
            extra = self._extras(options)
            self.sent.append(Sent(topic, body, _labels(extra)))
            await client.publish(topic, body, **extra)
        else:
            topic = self.rng.choice(self.topics)
            bodies = [self._next(options)[1] for _ in range(self.rng.choice((1, 4, 8)))]
            self.sent += [Sent(topic, body, Labels()) for body in bodies]
            await client.publish_batch(topic, bodies)
        self._returned = len(self.sent)
        if options["how"] != "transaction" or self.transactions[-1]:
            self.chooser.done(options)

    async def _commit(self, client: tt.AsyncHAClient, number: int) -> None:
        """The same transaction until it is committed: nobody is told that it failed without trying again."""
        while True:
            try:
                transaction = client.transaction(f"t{number}")
                for topic, body, _ in self.transactions[number]:
                    transaction.publish(topic, body, **self._extra)
                result = await self.ends(transaction.commit())
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


def _labels(extra: dict[str, Any]) -> Labels:
    return Labels(extra["correlation_id"], extra["sow_key"], extra["expiration"] is not None)
