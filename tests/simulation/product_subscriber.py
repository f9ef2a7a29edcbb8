"""Product client with a bookmark store at simulated engines: it subscribes, discards and fails over.

Must never send a command of its own: the protocol machine of the client does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.simulation.linked_engine import Key
from tests.simulation.product_publisher import LogonWaiter
from tickertape.base.bookmarks import MOST_RECENT
from tickertape.base.errors import Disconnected, TickertapeError
from tickertape.batch import message_costs
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.client.common.effects import (
    DeliverBatch,
    DeliverShared,
    Effect,
    End,
    EndConnection,
    ResolveCall,
    Send,
)
from tickertape.client.common.request import SubscribeRequest, SubscriptionContext
from tickertape.client.protocol.core import ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.wire.commands import Logon
from tickertape.wire.connection import Connection, Received

SUB_ID: Final = "all"


class _Sink:
    """Receiver of the subscription. The subscriber reads the effects instead."""

    def push(self, batch: MessageBatch) -> None:
        """Implement `Sink`."""

    def started(self, after: str, found: bool) -> None:
        """Implement `Sink`."""

    def snapshot_begun(self, as_of: str, position: int | None) -> None:
        """Implement `Sink`."""

    def snapshot_ended(self, as_of: str, matches: int, topic_matches: int, records: int) -> None:
        """Implement `Sink`."""

    def caught_up(self) -> None:
        """Implement `Sink`."""

    def noticed(self, bookmark: str) -> None:
        """Implement `Sink`."""

    def end(self, reason: str, error: TickertapeError | None) -> None:
        """Implement `Sink`."""

    def again(self) -> None:
        """Implement `Sink`."""


class ProductSubscriber(Peer):
    """A subscriber to a topic or pattern, at one of several engines at a time."""

    def __init__(
        self,
        world: EngineWorld,
        name: str,
        store: BookmarkStore,
        topic: str,
        rng: Random,
        counts: Counter[str],
    ) -> None:
        super().__init__(world, 0, name)
        self.store = store
        self.topic = topic
        self.delivered: Counter[Key] = Counter()
        self.discarded: set[Key] = set()
        self.twice: set[Key] = set()
        """Messages that were delivered again after they were discarded."""
        self.refused: list[TickertapeError] = []
        self.waiting: list[tuple[MessageBatch, int]] = []
        """Delivered messages that are not discarded."""
        self._rng = rng
        self._counts = counts
        self._request = SubscribeRequest(
            topic=topic,
            context=SubscriptionContext(sub_id=SUB_ID, with_bookmark=True),
            bookmark=MOST_RECENT,
            handled=True,
            depth_bytes=rng.choice((2_000, 1 << 20)),
        )
        self._sink = _Sink()
        self.core = self._new_core()
        self._to_engine = Connection("server")
        self._subscribed = True
        self._on_way: deque[tuple[Any, MessageBatch | None]] = deque()
        """Commands that have not arrived at the engine."""

    def _new_core(self) -> ClientProtocol:
        core = ClientProtocol(self.name, reconnects=True)
        core.subscriptions.use_store(self.store)
        return core

    def reopen(self, store: BookmarkStore) -> None:
        """Start as another process, with the reopened store."""
        self.lose()
        self.store = store
        self.waiting.clear()
        self.core = self._new_core()

    def connect(self, world: EngineWorld) -> None:
        """Log on at an engine, and resume the subscription. Unsent bytes of the last connection are lost."""
        self.lose()
        self.world = world
        world._conn += 1
        self.conn = world._conn
        self._to_engine = Connection("server")
        world.peers[self.conn] = self
        world.broker.connected(self.conn)
        self.core.receive(ConnectionOpened(LogonWaiter()), world.now())
        self._subscribed = False
        self._act()

    def _subscribe(self) -> None:
        """Start or resume the subscription, once after the logon."""
        if not self._subscribed and self.core.logon.accepted is not None:
            self._subscribed = True
            self.core.resume_publishing(self.world.now())
            if SUB_ID in self.core.subscriptions:
                self.core.resubscribe(LogonWaiter())
            else:
                self.core.subscribe(LogonWaiter(), self._request, self._sink)
            self._act()

    def lose(self) -> None:
        """The network ends the connection, if one is open."""
        if self.conn:
            if self.world.peers.pop(self.conn, None) is self:
                self.world.broker.disconnected(self.conn)
                self.world.collect()
            self.core.receive(ConnectionEnded(Disconnected("cut")), self.world.now())
            self._act()
            self._on_way.clear()
            self.conn = 0

    @property
    def connected(self) -> bool:
        """Whether the engine has the connection."""
        return self.conn != 0 and self.world.peers.get(self.conn) is self

    def discard(self, count: int) -> None:
        """Discard some of the delivered messages, in any order."""
        for _ in range(min(count, len(self.waiting))):
            batch, row = self.waiting.pop(self._rng.randrange(min(3, len(self.waiting))))
            key = batch.publisher(row), batch.sequence(row)
            if self.store.discard(SUB_ID, *key):
                self.discarded.add(key)

    def take(self, data: bytes) -> None:
        """Take bytes of the engine."""
        self.core.receive(data, self.world.now())
        self._act()
        self._subscribe()

    def wake(self) -> None:
        """Return credit that is due."""
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= self.world.mono:
            self.core.wake(self.world.now())
            self._act()

    def _act(self) -> None:
        while effects := self.core.effects():
            self._perform(effects)

    def send_all(self) -> bool:
        """Commands on the way arrive at the engine. Return whether any did."""
        sent = False
        while self._on_way and self.connected:
            command, batch = self._on_way.popleft()
            self.world.broker.received(self.conn, command, batch, self.world.now())
            self.world.collect()
            sent = True
        return sent

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, EndConnection):
                self._counts["subscriber connections ended"] += 1
            elif isinstance(effect, End):
                assert effect.error is None or effect.error.code != "bad_command", effect
                if not isinstance(effect.error, (Disconnected, type(None))):
                    self.refused.append(effect.error)
            elif isinstance(effect, DeliverBatch):
                self._take_rows(effect.batch, range(effect.batch.count))
            elif isinstance(effect, DeliverShared):
                for _, batch, rows in effect.parts:
                    self._take_rows(batch, rows)
            elif isinstance(effect, ResolveCall) and isinstance(effect.outcome, TickertapeError):
                if not isinstance(effect.outcome, Disconnected):
                    self.refused.append(effect.outcome)
            elif isinstance(effect, Send):
                for event in self._to_engine.feed(b"".join(effect.buffers)):
                    assert isinstance(event, Received), event
                    if isinstance(event.command, Logon):
                        self._to_engine.logged_on()
                    self._on_way.append((event.command, event.batch))

    def _take_rows(self, batch: MessageBatch, rows: Sequence[int]) -> None:
        cost, costs = 0, message_costs(batch)
        for row in rows:
            key = batch.publisher(row), batch.sequence(row)
            if key in self.discarded:
                self.twice.add(key)
            self._counts["redelivered to subscribers"] += self.delivered[key] > 0
            self._counts["late to subscribers"] += batch.late(row)
            self.delivered[key] += 1
            self.waiting.append((batch, row))
            cost += int(costs[row])
        self.core.consumed(SUB_ID, cost)
