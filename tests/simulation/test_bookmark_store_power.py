"""Power loss under a bookmark store with a file.

The store never skips an undiscarded message. With `sync="always"`, it never redelivers a message that a call
reported as discarded. Runs on one file follow each other. Each ends at a random operation of the disk, or
between two.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np
import pytest

import tickertape as tt
from tests.simulation.bookmark_disk import Sheet, StrictFile
from tests.simulation.store_disk import PowerLoss
from tickertape.client.bookmark_store import logged, ring, store_file

WORLDS = 15
WORLDS_FULL = 2_000
LIVES = 6
STEPS = 50
OPERATIONS = 80
"""Steps of a run before it loses power, at most."""
ROOM = 3
"""Publishers that the ring has space for. Every other simulation has one more."""
SUBS = ("s", "t")
Entry = tuple[int, int]
Store = tt.LoggedBookmarkStore | tt.RingBookmarkStore


class Subscription:
    """The application's view of one subscription: a model of lists and sets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cursor = 0
        """Index in the log of the next message to deliver."""
        self.held: list[Entry] = []
        """Handed to the application, which is not done with it."""
        self.done: set[Entry] = set()
        """Entries that the application has processed."""
        self.sure: set[Entry] = set()
        """Entries whose discard a returned call has confirmed."""


class World:
    """A log of entries, a store, two subscriptions and their application."""

    def __init__(
        self, seed: int, path: Path, kind: str, sync: Literal["never", "always"], patch: pytest.MonkeyPatch
    ) -> None:
        self.rng = Random(seed)
        self.publishers = ROOM + seed % 2
        self.purges = seed % 5 == 0
        self.path = path
        self.kind = kind
        self.sync = sync
        self.patch = patch
        self.log: list[Entry] = []
        self.subs = [Subscription(name) for name in SUBS]
        self.counts: Counter[str] = Counter()

    def opened(self) -> Store:
        if self.kind == "ring":
            return tt.RingBookmarkStore(self.path, subscriptions=2, publishers=ROOM, sync=self.sync)
        return tt.LoggedBookmarkStore(self.path, sync=self.sync, prune_size=4096)

    def life(self, number: int) -> None:
        """Open the store, check its contents, and work until the power is lost."""
        for module in (logged, ring):
            self.patch.setattr(module, "boot_id", lambda: number.to_bytes(16, "big"))
        self.patch.setattr(logged, "bookmark_log_bytes_first", 8_192)
        sheet = Sheet(self.path, self.rng.randrange(OPERATIONS))
        self.patch.setattr(store_file, "StoreFile", partial(StrictFile, sheet=sheet))
        store: Store | None = None
        with suppress(PowerLoss):
            store = self.opened()
            for sub in self.subs:
                self.resume(store, sub)
            for _ in range(self.rng.randrange(STEPS)):
                sheet.look()
                self.step(store)
            if self.rng.random() < 0.2:
                store.close()
                self.counts["closed"] += 1
        self.counts["syncs"] += sheet.syncs
        sheet.remains(self.rng)
        if store is not None:
            store._file.forked()  # releases the lock without a write
            store._refuse_in_child()
        Path(f"{self.path}.lock").unlink(missing_ok=True)
        self.counts["lives"] += 1

    # -- actions of the application -------------------------------------------------------------------

    def step(self, store: Store) -> None:
        sub = self.rng.choice(self.subs)
        names = ("deliver", "deliver", "first", "any", "many", "notice", "again")
        if self.purges and self.rng.random() < 0.07:
            self.purge(store, sub)
            return
        what = self.rng.choice(names if self.kind == "ring" else (*names, "prune"))
        self.counts[what] += 1
        getattr(self, what)(store, sub)

    def deliver(self, store: Store, sub: Subscription) -> None:
        for _ in range(self.rng.choice((1, 5, 20))):
            publisher = self.rng.randint(1, self.publishers)
            last = max((s for p, s in self.log if p == publisher), default=0)
            self.log.append((publisher, last + self.rng.randint(1, 3)))
        self.hand_on(store, sub)

    def hand_on(self, store: Store, sub: Subscription, before: int = 0) -> None:
        """Deliver the rest of the log. Confirmed discards at an index below `before` must not be
        redelivered.
        """
        batch = self.log[sub.cursor :]
        if not batch:
            return
        publishers, sequences = (np.array(column, np.uint64) for column in zip(*batch, strict=True))
        keep = store.log(sub.name, publishers, sequences)
        flags = [True] * len(batch) if keep is None else keep.tolist()
        for place, (entry, kept) in enumerate(zip(batch, flags, strict=True), sub.cursor):
            if kept:
                assert place >= before or entry not in sub.sure, f"{entry} was discarded and is redelivered"
                assert entry not in sub.held
                self.counts["redelivered"] += entry in sub.done
                sub.done.discard(entry)
                sub.sure.discard(entry)
                sub.held.append(entry)
            else:
                assert entry in sub.done, f"{entry} is skipped and was never discarded"
        sub.cursor = len(self.log)

    def first(self, store: Store, sub: Subscription) -> None:
        self.take(store, sub, sub.held[: self.rng.choice((1, 3, 10))])

    def any(self, store: Store, sub: Subscription) -> None:
        self.take(store, sub, self.rng.sample(sub.held, min(len(sub.held), self.rng.choice((1, 4)))))

    def take(self, store: Store, sub: Subscription, entries: list[Entry]) -> None:
        for entry in entries:
            sub.done.add(entry)
            sub.held.remove(entry)
            assert store.discard(sub.name, *entry)
            sub.sure.add(entry)

    def many(self, store: Store, sub: Subscription) -> None:
        some = self.rng.sample(sub.held, self.rng.randint(0, len(sub.held)))
        if not some:
            return
        sub.done.update(some)
        sub.held = [entry for entry in sub.held if entry not in sub.done]
        publishers, sequences = (np.array(column, np.uint64) for column in zip(*some, strict=True))
        assert store.discard_all(sub.name, publishers, sequences) == len(some)
        sub.sure.update(some)

    def notice(self, store: Store, sub: Subscription) -> None:
        if sub.cursor:
            store.persisted(sub.name, tt.Bookmark(*self.log[sub.cursor - 1]))

    def again(self, store: Store, sub: Subscription) -> None:
        """Resume after a lost connection."""
        self.resume(store, sub)

    def prune(self, store: Store, _: Subscription) -> None:
        assert isinstance(store, tt.LoggedBookmarkStore)
        store.prune()

    def purge(self, store: Store, sub: Subscription) -> None:
        """Purge the subscription, sometimes with all others."""
        every = self.rng.random() < 0.5
        gone = self.subs if every else [sub]
        for one in gone:
            one.sure.clear()
        store.purge(None if every else sub.name)
        self.counts["purged"] += 1
        self.counts["purged all"] += every
        for one in gone:
            one.done.clear()
            self.resume(store, one)

    # -- invariants -----------------------------------------------------------------------------------

    def resume(self, store: Store, sub: Subscription) -> None:
        points = store.most_recent(sub.name)
        places = [self.log.index(point) + 1 for point in points]
        start = min(places, default=0)
        for entry in self.log[:start]:
            assert entry in sub.done, f"{entry} is before the recovery point and was never discarded"
        before = 0
        if self.sync == "always":
            whole = next((n for n, entry in enumerate(self.log) if entry not in sub.sure), len(self.log))
            if self.kind == "logged":
                before = len(self.log)
            elif len({publisher for publisher, _ in self.log[:whole]}) <= ROOM:  # else it keeps the last
                before = whole
            if before:
                assert max(places, default=0) >= whole, "the recovery point went back"
        store.resumed(sub.name)
        sub.held.clear()
        sub.cursor = start
        self.counts["resumed in the log"] += bool(places)
        self.hand_on(store, sub, before)


@pytest.mark.parametrize("sync", ["always", "never"])
@pytest.mark.parametrize("kind", ["logged", "ring"])
def test_bookmark_store_after_power_loss_skips_nothing_and_with_sync_always_repeats_nothing(
    kind: str, sync: Literal["never", "always"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(WORLDS_FULL if full else WORLDS):
        with monkeypatch.context() as patch:
            world = World(seed, tmp_path / str(seed), kind, sync, patch)
            try:
                for number in range(LIVES):
                    world.life(number)
            except BaseException as error:
                error.add_note(f"seed {seed}, life {world.counts['lives']}")
                raise
        counts.update(world.counts)
    assert all(counts[event] > 20 for event in ("deliver", "first", "any", "many", "again", "purged")), counts
    assert counts["purged all"] > 3
    assert counts["resumed in the log"] > 50
    assert counts["redelivered"] > 20
