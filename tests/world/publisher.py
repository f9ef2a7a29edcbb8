"""Publisher of a simulation: publishes in every way, and records the answers of its client.

Must never know the outcome of a message but by the client's answers.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

import tickertape as tt
from tests.world.apps import RETRIES, STRICT, TIMEOUT, UNRECORDED, App, Labels
from tests.world.choices import PUBLISH, Options, json_body
from tickertape.batch import BatchBuilder
from tickertape.client.common.subscribe_arguments import extras
from tickertape.client.protocol.transactions import aborting, staging
from tickertape.wire.commands import Transaction

if TYPE_CHECKING:
    from tests.world.world import World

STORES: Final = ("memory", "file", "synced file")
"""Kinds of stores for unpersisted messages."""


class Sent(NamedTuple):
    """A message as its publisher knows it."""

    topic: str
    body: bytes
    labels: Labels


class Publisher(App):
    """Publishes in every way, or as `fixed` requires. `sent` is in the order of its sequences."""

    def __init__(
        self, world: World, uris: list[str], name: str, messages: int, topics: tuple[str, ...], **fixed: str
    ) -> None:
        super().__init__(world, name, uris)
        self._fixed = fixed
        self.messages = messages
        self.topics = topics
        self.sent: list[Sent] = []
        """Messages published under its own name."""
        self.promised = 0
        """Number of these messages reported as persisted."""
        self.transactions: list[list[Sent]] = []
        self.committed: set[int] = set()
        """Transactions that the server has reported as committed."""
        self.perhaps: set[int] = set()
        """Which of `sent` were under way, or in memory only, when its process ended."""
        self.dropped: set[bytes] = set()
        """Messages staged for dropped transactions."""
        self.nowhere: list[Sent] = []
        """Messages published to a non-persistent topic."""
        self.refused: set[bytes] = set()
        """Messages that are invalid for their topic."""
        self.rejected: set[bytes] = set()
        """Messages that the server has rejected."""
        self.untold: set[bytes] = set()
        """Invalid messages that a process sent before it ended."""
        self._returned = 0
        """Number of messages in `sent` that its client has accepted."""
        self._made = 0
        self._extra: dict[str, Any] = {}
        """Of the last transaction."""
        self._keeps = self.rng.choice(STORES)
        self._just_ended = False

    @property
    def may_lose_power(self) -> bool:
        return self.restartable and self._keeps != "file"

    def forget(self) -> None:
        certain = self.promised if self._keeps == "memory" else self._returned
        self.perhaps.update(range(certain, len(self.sent)))
        self._returned = len(self.sent)
        self.untold.update(self.refused)

    def _store(self) -> tt.PublishStore:
        if self._keeps == "memory":
            return tt.MemoryPublishStore()
        self.world.counts["publish stores opened"] += 1
        return self.shelf.publish_store("always" if self._keeps == "synced file" else "never")

    async def run(self) -> None:
        async with self.client(publish_store=self._store()) as client:
            client.set_failed_write_handler(self._on_rejected)
            if self.transactions and len(self.transactions) - 1 not in self.committed:
                await self._commit(client, len(self.transactions) - 1)
            while self._lasting() < self.messages:
                await self._publish(client)
                await self.pause()
            if not self._just_ended and self in self.world.apps and self.rng.random() < 0.3:
                await self._just_end(client)
            while not await self._flush(client):
                await self.again()
            if self.committed and len(self.uris) == 1:
                await self._commit(client, min(self.committed))

    async def _just_end(self, client: tt.AsyncHAClient) -> None:
        """End the process without `close()`, as the end of `asyncio.run` does. Another process continues."""
        self._just_ended = True
        upto = len(self.sent)
        await self.ends(client._driver.flush_with_loop(TIMEOUT))
        # A lost connection has no unsettled messages: the store still has the unsent ones.
        if client._publishing.unsettled() or client._publishing.unpersisted_count():
            self.world.counts["ended without close, not all sent"] += 1
        else:
            self.world.counts["ended without close, all sent"] += 1
            self.promised = max(self.promised, upto)
        process = self.process
        self.world.at(self.world.loop.time(), lambda: self.killed() if self.process is process else None)
        await asyncio.Event().wait()

    def _lasting(self) -> int:
        """Return the number of messages for the log, or of all messages if none is for the log."""
        if self._fixed.get("how") == "not recorded":
            return len(self.nowhere)
        return len(self.sent) + sum(map(len, self.transactions))

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
        options = self.chooser.draw(PUBLISH, **self._fixed)
        how = options["how"]
        empty = False
        if how == "transaction":
            empty = await self._transaction(client, options)
        elif how == "dropped transaction":
            await self._drop(client, options)
        elif how == "batch":
            topic = self.rng.choice(self.topics)
            bodies = [self._next(options)[1] for _ in range(self.rng.choice((1, 4, 8)))]
            self.sent += [Sent(topic, body, Labels()) for body in bodies]
            if self.rng.random() < 0.5:
                await client.publish_batch(topic, bodies)
            else:
                await self._arrow(client, topic, bodies)
        else:
            await self._one(client, options)
        self._returned = len(self.sent)
        if options["flushed"] == "persisted":
            await self._flush(client)
        elif options["flushed"] == "processed":
            with suppress(*RETRIES):
                await self.ends(client.publish_flush(level="processed"))
        if not empty:
            self.chooser.done(options)

    async def _one(self, client: tt.AsyncHAClient, options: Options) -> None:
        topic, body = self._next(options)
        extra = self._extras(options)
        if options["how"] == "not recorded":
            topic = UNRECORDED
            self.nowhere.append(Sent(topic, body, _labels(extra)))
        elif options["how"] == "refused":
            topic, body = STRICT, body[:-1]
            self.refused.add(body)
        else:
            self.sent.append(Sent(topic, body, _labels(extra)))
        while True:
            try:
                sequence = await client.publish(topic, body, **extra)
            except tt.Disconnected:
                # The last server may have been one that does not record it.
                assert topic == UNRECORDED or len(self.uris) > 1, (
                    "a publisher to persistent topics has a store"
                )
                await self.again()
            else:
                break
        if sequence is None and topic in self.topics:
            self.world.counts["published where it is not recorded"] += 1
            self.nowhere.append(self.sent.pop())

    async def _arrow(self, client: tt.AsyncHAClient, topic: str, bodies: list[bytes]) -> None:
        """Publish an array, which may be a slice of another one, sometimes after an invalid one."""
        if self.rng.random() < 0.5:
            places = pa.py_buffer(struct.pack("<4i", 0, 3, 2, 5))
            odd = pa.Array.from_buffers(pa.binary(), 3, [None, places, pa.py_buffer(b"wrong")])
            try:
                await client.publish_arrow(topic, odd)
            except tt.BadMessage:
                self.world.counts["invalid array refused"] += 1
            else:
                self.world.wrong.append(f"{self.name}: an array with offsets that fall was accepted")
        kind = self.rng.choice((pa.binary(), pa.large_binary(), pa.string(), pa.binary_view()))
        skipped = self.rng.randrange(3)
        await client.publish_arrow(
            topic, pa.array([b"skipped"] * skipped + bodies, pa.binary()).cast(kind)[skipped:]
        )
        self.world.counts["array published"] += 1

    def _on_rejected(self, error: tt.TickertapeError, batch: tt.MessageBatch | None) -> None:
        """Record rejected messages."""
        assert batch is not None, "it has a store"
        for number in range(batch.count):
            body = bytes(batch.body(number))
            self.rejected.add(body)
            if body not in self.refused or not isinstance(error.__cause__, tt.BadBody):
                self.world.wrong.append(f"{self.name}: {body[:40]!r} was refused: {error!r}")

    async def _transaction(self, client: tt.AsyncHAClient, options: Options) -> bool:
        """Commit a transaction. Return whether it was empty."""
        plan = [self._next(options) for _ in range(self.rng.choice((0, 1, 5)))]
        self._extra = self._extras(options)
        labels = _labels(self._extra)
        self.transactions.append([Sent(topic, body, labels) for topic, body in plan])
        await self._commit(client, len(self.transactions) - 1)
        return not plan

    async def _drop(self, client: tt.AsyncHAClient, options: Options) -> None:
        """Stage a part, as a writer of several processes does, and drop it, with or without an answer."""
        topic, body = self._next(options)
        self.dropped.add(body)
        builder = BatchBuilder()
        life, correlation, key = extras(**self._extras(options))
        builder.add(topic, body, expiration_ms=life, correlation_id=correlation, key=key)
        transaction = Transaction(publisher=self.name, name=f"d{self._made}")
        asked = [*staging(transaction, "0", [builder.build()]), (aborting(transaction), None)]
        with suppress(*RETRIES):
            for make, batch in asked:
                await self.ends(client._driver.ask(make, batch, TIMEOUT))

    async def _commit(self, client: tt.AsyncHAClient, number: int) -> None:
        """Retry the same transaction until it is committed: no failure is final.

        A transaction that was committed may be retried: the server reports it, also after a restart.
        """
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
            if result.message_count != len(self.transactions[number]) * (not result.repeated):
                self.world.wrong.append(f"{self.name}: {result} of {len(self.transactions[number])} messages")
            if number in self.committed and not result.repeated:
                self.world.wrong.append(f"{self.name}: transaction {number} was committed again")
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
