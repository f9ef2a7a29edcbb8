"""Simulation of linked engines with product subscribers that fail over between them.

Must never compute an expectation with the product: sets of stored and delivered messages decide.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final

from tests.simulation.linked_engines import LinkedEngines
from tests.simulation.product_subscriber import ProductSubscriber
from tickertape.base.errors import BookmarkExpired
from tickertape.client.bookmark_store.base import MemoryBookmarkStore
from tickertape.client.bookmark_store.logged import LoggedBookmarkStore
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.client.bookmark_store.ring import RingBookmarkStore

KINDS: Final = ("memory", "logged", "ring")


class LinkedSubscribers(LinkedEngines):
    """Linked engines, and one subscriber with each kind of store."""

    def __init__(self, seed: int, counts: Counter[str], directory: Path, topology: str = "") -> None:
        super().__init__(seed, counts, topology)
        self._directory = directory
        self._opened = 0
        self.subscribers = {
            kind: ProductSubscriber(
                self.engines[0],
                f"s-{kind}",
                self._store(kind),
                self.rng.choice((".*", ".*", "orders")),
                self.rng,
                counts,
            )
            for kind in KINDS
        }
        for subscriber in self.subscribers.values():
            subscriber.connect(self.rng.choice(self.engines))

    def _store(self, kind: str) -> BookmarkStore:
        path = os.fspath(self._directory / kind)
        if kind == "memory":
            return MemoryBookmarkStore()
        return LoggedBookmarkStore(path) if kind == "logged" else RingBookmarkStore(path)

    # -- steps ------------------------------------------------------------------------------------------

    def move_subscriber(self) -> None:
        """A subscriber resumes at another engine, or in another process."""
        kind = self.rng.choice(KINDS)
        subscriber = self.subscribers[kind]
        if kind != "memory" and self.rng.random() < 0.3:
            subscriber.lose()
            if self.rng.random() < 0.5 and isinstance(subscriber.store, LoggedBookmarkStore):
                subscriber.store.prune()
            subscriber.store.close()
            subscriber.reopen(self._store(kind))
            self.counts["restarted subscribers"] += 1
        subscriber.connect(self.rng.choice(self.engines))
        self.counts["moved subscribers"] += 1

    def step(self) -> None:
        """Take one random step."""
        super().step()
        if self.rng.random() < 0.06:
            self.move_subscriber()
        if self.rng.random() < 0.1:
            self.rng.choice(self.engines).wake(1.1)  # notices
        for subscriber in self.subscribers.values():
            if self.rng.random() < 0.7:
                subscriber.send_all()
            if self.rng.random() < 0.5:
                subscriber.discard(self.rng.choice((1, 5, 50)))

    def _round(self) -> int:
        before = sum(subscriber.delivered.total() for subscriber in self.subscribers.values())
        done = super()._round()
        for subscriber in self.subscribers.values():
            if not subscriber.connected:
                subscriber.connect(self.rng.choice(self.engines))
            subscriber.discard(1_000_000)
            subscriber.wake()
        while sum(subscriber.send_all() for subscriber in self.subscribers.values()):
            for engine in self.engines:
                engine.settle()
        after = sum(subscriber.delivered.total() for subscriber in self.subscribers.values())
        return done + after - before

    # -- the end ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Each subscriber got each message, and those with exact stores none twice."""
        super().check()
        everything = {key for engine in self.engines for key in engine.persisted.values()}
        removed = self._removed()
        for kind, subscriber in self.subscribers.items():
            if any(isinstance(error, BookmarkExpired) for error in subscriber.refused):
                assert any(engine.broker.journal.view.first_position for engine in self.engines)
                self.counts["expired subscribers"] += 1
                continue
            assert not subscriber.refused, (kind, subscriber.refused[:1])
            wanted = {key for key in everything if subscriber.topic == ".*" or key[1] % 2 == 0}
            missed = wanted - {*subscriber.delivered} - removed
            assert not missed, (kind, subscriber.name, "missed", len(missed), sorted(missed)[:5])
            if kind != "ring":
                assert not subscriber.twice, (kind, "twice", sorted(subscriber.twice)[:5])
            self.counts["delivered messages"] += subscriber.delivered.total()

    def close(self) -> None:
        """Release the files."""
        for subscriber in self.subscribers.values():
            subscriber.store.close()
