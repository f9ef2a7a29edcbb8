"""Publishers with stores against an engine whose machine loses power: acknowledged is kept, everything is
there once.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.engine_world import EngineWorld, Peer
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.wire.commands import Publish

SEEDS = 150


class Store:
    """What a publisher keeps until it is acknowledged: the least a publish store can be."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.peer: Peer | None = None
        self.kept: list[tuple[int, str, bytes]] = []
        self.all: list[tuple[int, str, bytes]] = []
        self.next = 1

    def connect(self, world: EngineWorld) -> None:
        """Log on, drop what the server has, send the rest again in order."""
        self.peer = world.connect(self.name)
        assert self.peer.logged_on is not None
        last = self.peer.logged_on.last_persisted
        assert last >= self.acknowledged, "what was acknowledged is durable"
        self.kept = [entry for entry in self.kept if entry[0] > last]
        for entry in self.kept:
            self._send([entry])

    acknowledged = 0

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
        """Take in the acknowledgements that have come."""
        assert self.peer is not None
        self.acknowledged = max(self.acknowledged, self.peer.acked_sequence)
        self.kept = [entry for entry in self.kept if entry[0] > self.acknowledged]


def _live(world: EngineWorld, stores: list[Store]) -> None:
    rng = world.rng
    for _ in range(rng.randrange(10, 80)):
        if rng.random() < 0.4:
            store = rng.choice(stores)
            store.publish(
                rng.choice("ab"), [rng.randbytes(rng.choice((0, 9, 400))) for _ in range(rng.choice((1, 4)))]
            )
        else:
            world.step()
        for store in stores:
            store.hear()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_exact_09_acknowledged_means_retained_through_power_losses(part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part * SEEDS // 5, (part + 1) * SEEDS // 5):
        world = EngineWorld(seed, counts=counts, segment_bytes=16_384)
        stores = [Store(f"p{i}") for i in range(3)]
        for store in stores:
            store.connect(world)
        for _ in range(3):
            _live(world, stores)
            world.disk = (
                world.disk.crash_clone(world.rng) if world.rng.random() < 0.8 else world.disk.kill_clone()
            )
            world.open()
            counts["unacknowledged at the crash"] += sum(len(store.kept) for store in stores)
            for store in stores:
                store.connect(world)
        world.settle()
        for store in stores:
            store.hear()
            assert store.kept == [], f"seed {seed}: everything is acknowledged in the end"
            assert store.peer is not None
            assert store.peer.logged_on is not None
            publisher = store.peer.logged_on.publisher
            mine = [(h.sequence, h.topic, h.body) for h in world.log() if h.publisher == publisher]
            assert mine == store.all, f"seed {seed}: once, in order, unchanged"
    assert counts["crash"] > 20
    assert counts["kill"] > 5
    assert counts["sector_lost"] > 20
    assert counts["unacknowledged at the crash"] > 50
