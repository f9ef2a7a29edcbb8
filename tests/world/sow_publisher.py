"""Publisher of a SOW simulation: upserts, deltas and deletes of records, and the answers to them.

Must never know the outcome of a change but by the client's answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

import tickertape as tt
from tests.world.apps import RETRIES, App
from tests.world.choices import CHANGE, Options
from tests.world.sow_log import EXPLICIT, PARTS, PATTERN, Fields, Identity

if TYPE_CHECKING:
    from tests.world.world import World

STORES: Final = ("none", "memory", "file", "synced file")
"""Kinds of publish stores."""
KEYS: Final = 7
"""Keys of each topic."""
DELETING: Final = ("/even = true", "/n > 9", "/id < 3")
"""Filters of deletes."""
SHORT_SECONDS: Final = 0.5
LONG_SECONDS: Final = 172_800.0


@dataclass
class Change:
    """An upsert, delta or delete, as its publisher knows it."""

    how: str
    topic: str
    fields: Fields | None = None
    """Body of an upsert or a delta, or the data of a delete."""
    key: str | None = None
    filter: str | None = None
    ids: frozenset[Identity] = frozenset()
    """Records that a delete by keys or data names."""
    keys: tuple[str, ...] = ()
    sequence: int | None = None
    """None: unknown, or given by the server."""
    acknowledged: int | None = None
    """Moment of its acknowledgement. None: without one."""
    result: tt.DeleteResult | None = None
    perhaps: bool = False
    """Whether it may be lost."""

    @property
    def deletes(self) -> bool:
        """Return whether it removes records."""
        return self.how.startswith("delete")


class SowPublisher(App):
    """Changes records in every way."""

    def __init__(self, world: World, uris: list[str], name: str, changes: int) -> None:
        super().__init__(world, name, uris)
        self.changes: list[Change] = []
        """In the order of its calls."""
        self._left = changes
        self._keeps = self.rng.choice(STORES)
        self._sequence: int | None = None
        """Of its last change, if known."""
        self._first = 0
        """Index of the first change of its process."""
        self._returned = 0
        self._acknowledged = 0

    @property
    def stored(self) -> bool:
        """Return whether it has a publish store."""
        return self._keeps != "none"

    @property
    def may_lose_power(self) -> bool:
        return self.restartable and self._keeps != "file"

    def forget(self) -> None:
        on_disk = self._keeps in ("file", "synced file")
        for change in self.changes[self._returned if on_disk else self._acknowledged :]:
            change.perhaps = True
        self._returned = self._acknowledged = self._first = len(self.changes)
        self._sequence = None

    def _store(self) -> tt.PublishStore | None:
        if not self.stored:
            return None
        if self._keeps == "memory":
            return tt.MemoryPublishStore()
        return self.shelf.publish_store("always" if self._keeps == "synced file" else "never")

    async def run(self) -> None:
        async with self.client(publish_store=self._store()) as client:
            client.set_failed_write_handler(self._on_rejected)
            while len(self.changes) < self._left:
                options = self.chooser.draw(CHANGE)
                if await self._change(client, options):
                    self.chooser.done(options)
                await self.pause()
            while not await self._flush(client):
                await self.again()

    def _on_rejected(self, error: tt.TickertapeError, _: tt.MessageBatch | None) -> None:
        if self.stored or "journal_full" not in str(error):
            self.world.wrong.append(f"{self.name}: {error!r}")

    async def _flush(self, client: tt.AsyncHAClient) -> bool:
        upto = len(self.changes)
        try:
            await self.ends(client.publish_flush())
        except RETRIES:
            self.world.counts["flush without an answer"] += 1
            return False
        if self.stored:
            moment = self.world.moment()
            for change in self.changes[:upto]:
                if not change.perhaps and change.acknowledged is None:
                    change.acknowledged = moment
            self._acknowledged = max(self._acknowledged, upto)
        return True

    # -- changes ----------------------------------------------------------------------------------------

    async def _change(self, client: tt.AsyncHAClient, options: Options) -> bool:
        """Change something. Return whether the call was sent."""
        how, topic = options["how"], options["topic"]
        if topic == "pattern":
            topic = self.rng.choice((PATTERN, *PARTS))
        first = len(self.changes)
        if how.startswith("delete"):
            change = await self._delete_of(client, how, topic)
            if change is None:
                return False
            self._add(change)
            sent = await self._delete(client, change, wait=options["answer"] == "awaited")
        else:
            for _ in range(self.rng.choice((1, 3, 8)) if how == "batch" else 1):
                self._add(self._upsert(how, topic, options))
            sent = await self._publish(client, self.changes[first:], options)
        self._returned = len(self.changes)
        if sent and options["answer"] == "awaited" and not how.startswith("delete"):
            sent = await self._flush(client)
        return sent

    def _add(self, change: Change) -> None:
        if not self.stored:
            change.perhaps = True
        elif self._sequence is not None:
            self._sequence += 1
            change.sequence = self._sequence
        self.changes.append(change)

    def _upsert(self, how: str, topic: str, options: Options) -> Change:
        number = len(self.changes)
        rng = self.rng
        identity = rng.randrange(KEYS)
        fields: Fields = {"id": identity, "by": self.name, "n": number}
        value = rng.choice((rng.randrange(100), rng.randrange(100) / 4, f"t{number % 5}", None))
        if how != "delta" or rng.random() < 0.5:
            fields["v"] = value
        if how != "delta":
            fields |= {"even": number % 2 == 0, "t": f"t{rng.randrange(5)}"}
        if how != "delta" or options["size"] == "large":
            fields["pad"] = "x" * (900 if options["size"] == "large" else 5)
        fields["c"] = {self.name: {str(number % 3): number}}
        return Change(how, topic, fields, f"k{identity}" if topic == EXPLICIT else None)

    async def _publish(self, client: tt.AsyncHAClient, changes: list[Change], options: Options) -> bool:
        life = {"none": None, "short": SHORT_SECONDS, "two days": LONG_SECONDS}[options["life"]]
        bodies = [msgspec.json.encode(change.fields) for change in changes]
        (change, *_) = changes
        try:
            if change.how == "batch":
                sequence = await client.publish_batch(change.topic, bodies)
            else:
                call = client.delta_publish if change.how == "delta" else client.publish
                sequence = await call(change.topic, bodies[0], expiration=life, sow_key=change.key)
        except tt.Disconnected:
            assert not self.stored, "a publisher with a store is never disconnected"
            return False
        if not self.stored:
            return sequence is None
        assert sequence is not None
        for back, one in enumerate(reversed(changes)):
            if one.sequence not in (None, sequence - back):
                self.world.wrong.append(f"{self.name}: sequence {sequence - back} after {one.sequence}")
            one.sequence = sequence - back
        self._sequence = sequence
        for back, one in enumerate(reversed(self.changes[self._first :])):
            one.sequence = sequence - back  # those before the first known one, too
        return True

    # -- deletes ----------------------------------------------------------------------------------------

    async def _delete_of(self, client: tt.AsyncHAClient, how: str, topic: str) -> Change | None:
        """Return a delete, or None if no keys are known."""
        rng = self.rng
        if how == "delete by filter":
            return Change(how, topic, filter=rng.choice(DELETING))
        ids = rng.sample(range(KEYS), rng.choice((1, 3)))
        if how == "delete by data":
            return Change(how, topic, {"id": ids[0]}, ids=frozenset({(topic, ids[0])}))
        if topic == EXPLICIT:
            keys = tuple(f"k{one}" for one in ids)
            return Change(how, topic, ids=frozenset((topic, key) for key in keys), keys=keys)
        try:
            result = await self.ends(client.sow(topic))
            known = {str(message.sow_key): (message.topic, message.json()["id"]) async for message in result}
        except RETRIES:
            return None
        chosen = rng.sample(sorted(known), min(len(known), rng.choice((1, 3))))
        if not chosen:
            return None
        return Change(how, topic, ids=frozenset(known[key] for key in chosen), keys=tuple(chosen))

    async def _delete(self, client: tt.AsyncHAClient, change: Change, *, wait: bool) -> bool:
        arguments: dict[str, Any] = {}
        if change.filter is not None:
            arguments["filter"] = change.filter
        elif change.how == "delete by data":
            arguments["data"] = change.fields
        else:
            arguments["keys"] = change.keys
        try:
            change.result = await self.ends(client.sow_delete(change.topic, **arguments, wait=wait))
        except RETRIES as error:
            self.world.counts["delete without an answer"] += 1
            if "Cannot connect" in str(error):  # it was not stored, and took no sequence
                change.perhaps, change.sequence, self._sequence = True, None, None
                self._first = len(self.changes)
            return False
        if wait:
            assert change.result is not None
            change.acknowledged = self.world.moment()
            change.perhaps = False
        return True
