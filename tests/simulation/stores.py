"""Publishers that keep and resend unacknowledged messages, for simulations of the engine.

Must never take the list of published messages from the engine: plain lists here hold it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.wire.commands import Publish


class Store:
    """A minimal publish store: keeps messages until they are acknowledged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.peer: Peer | None = None
        self.kept: list[tuple[int, str, bytes]] = []
        self.all: list[tuple[int, str, bytes]] = []
        self.next = 1
        self.acknowledged = 0

    def connect(self, world: EngineWorld) -> None:
        """Log on, and resend the unacknowledged messages in order.

        Clients of the product omit messages that the server reports as persisted. Other clients may not, so
        chance decides here.
        """
        self.peer = world.connect(self.name)
        assert self.peer.logged_on is not None
        last = self.peer.logged_on.last_persisted
        assert last >= self.acknowledged, "acknowledged messages are durable"
        if world.rng.random() < 0.5:
            self.kept = [entry for entry in self.kept if entry[0] > last]
        world.counts["persisted messages sent again"] += sum(entry[0] <= last for entry in self.kept)
        for entry in self.kept:
            self._send([entry])

    def publish(self, topic: str, bodies: list[bytes]) -> None:
        entries = [(self.next + i, topic, body) for i, body in enumerate(bodies)]
        self.next += len(bodies)
        self.kept += entries
        self.all += entries
        self._send(entries)

    def _send(self, entries: list[tuple[int, str, bytes]]) -> None:
        peer = self.peer
        assert peer is not None
        builder = BatchBuilder()
        for _, topic, body in entries:
            builder.add(topic, body)
        peer.frames += 1
        assert peer.logged_on is not None
        publisher = peer.logged_on.publisher
        batch = MessageBatch.parse(builder.build(publisher, first_sequence=entries[0][0]).encode())
        peer.send(Publish(frame=peer.frames, sequenced=True), batch)

    def hear(self) -> None:
        """Process the acknowledgements that have arrived."""
        assert self.peer is not None
        self.acknowledged = max(self.acknowledged, self.peer.acked_sequence)
        self.kept = [entry for entry in self.kept if entry[0] > self.acknowledged]


def everything_once(world: EngineWorld, stores: Sequence[Store], label: str) -> None:
    """Check an idle engine: every message is acknowledged and is in the log once, in order."""
    log = world.log()
    for store in stores:
        store.hear()
        assert store.kept == [], f"{label}: a message is unacknowledged at the end"
        assert store.peer is not None
        assert store.peer.logged_on is not None
        publisher = store.peer.logged_on.publisher
        mine = [(h.sequence, h.topic, h.body) for h in log if h.publisher == publisher]
        assert mine == store.all, f"{label}: once, in order, unchanged"
