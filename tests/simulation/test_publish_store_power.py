"""Power loss under a publish store with `sync="always"`: messages of returned calls are stored.

Runs on one store follow each other. Each ends at a random operation of the disk.
"""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.helpers.publish_batches import held_messages, stored_all
from tests.simulation.store_disk import Platter, PowerLoss, StrictDirectory
from tickertape.batch.derive import slice_batch
from tickertape.client.publish_store import file
from tickertape.client.publish_store.hybrid_parts import BacklogFiles

WORLDS = 20
WORLDS_FULL = 1_000
LIVES = 5
STEPS = 60
SEGMENT_BYTES = 16 << 10
OPERATIONS = 90
"""Steps of a run, at most."""


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "publish_segment_bytes", SEGMENT_BYTES)


class World:
    """A store and its calls."""

    def __init__(self, seed: int, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.rng = Random(seed)
        self.directory = directory
        self.patch = patch
        self.path = directory / "0"
        self.returned: dict[int, bytes] = {}
        """Messages stored by returned calls, neither settled nor refused."""
        self.begun: dict[int, set[bytes]] = {}
        """All that was ever given a number."""
        self.optional: set[int] = set()
        """Settled or refused, perhaps."""
        self.counts: Counter[str] = Counter()
        self.gathered: list[bytes] = []
        self.first = self.highest = 0
        self.settled = 0
        """Highest settled message of any run."""
        self.session = 0

    def life(self, number: int) -> None:
        """Open the store, work until the power is lost, and check its contents."""
        platter = Platter(self.rng.randrange(OPERATIONS))
        if self.path.exists():
            platter.look(self.path)
            platter.names, platter.known = set(platter.durable), True
        self.patch.setattr(file, "SegmentDirectory", partial(StrictDirectory, platter=platter))
        store: BacklogFiles | None = None
        with suppress(PowerLoss):
            store = BacklogFiles(self.path, sync="always")
            self.check(store)
            store.attach("pricing-1")
            self.session = store.next_session(self.session + 1)
            self.gathered, self.first = [], max(1_000, store.last_sequence + 1)
            for _ in range(STEPS):
                platter.look(self.path)
                self.step(store)
        left = self.directory / str(number + 1)
        if self.path.exists():
            platter.remains(self.path, left, self.rng)
        if store is not None:
            store._refuse_in_child()  # releases the lock without a write
        shutil.rmtree(self.path, ignore_errors=True)
        self.path = left
        self.counts["lives"] += 1

    def step(self, store: BacklogFiles) -> None:
        what = self.rng.choice(("append", "append", "append", "seal", "put", "settle", "refuse", "used"))
        if what in ("put", "settle", "refuse", "used"):
            self.seal(store)  # as a client does
        self.counts[what] += 1
        getattr(self, what)(store)

    def body(self, sequence: int) -> bytes:
        size = self.rng.choice((0, 10, 100, 500, 3_000, 20_000 if self.rng.random() < 0.1 else 50))
        body = b"%d.%d." % (sequence, self.rng.getrandbits(30)) + b"x" * size
        self.begun.setdefault(sequence, set()).add(body)
        return body

    def append(self, store: BacklogFiles) -> None:
        sequence = self.first + len(self.gathered)
        body = self.body(sequence)
        if self.rng.random() < 0.2:
            store.append(sequence, "orders", body, 5, "corr", "key")
        else:
            store.append(sequence, "orders", body)
        self.gathered.append(body)
        self.returned[sequence] = body

    def seal(self, store: BacklogFiles) -> None:
        if self.gathered:
            store.seal(stored_all(self.first, self.gathered, "pricing-1"))
            self.first += len(self.gathered)
            self.gathered = []

    def put(self, store: BacklogFiles) -> None:
        bodies = [self.body(self.first + n) for n in range(self.rng.randrange(1, 6))]
        store.put(stored_all(self.first, bodies, "pricing-1"))
        self.returned.update(enumerate(bodies, self.first))
        self.first += len(bodies)

    def settle(self, store: BacklogFiles) -> None:
        settled = self.first - 1 - self.rng.choice((0, 0, 3, 10))
        self.optional.update(n for n in self.returned if n <= settled)
        self.settled = max(self.settled, settled)
        store.discard(settled)
        assert store.persisted_sequence <= self.settled

    def refuse(self, store: BacklogFiles) -> None:
        held = store.held()
        if not held:
            return
        first, last, batch = self.rng.choice(held)
        keep = self.rng.randrange(batch.count)
        rest = slice_batch(batch, 0, keep) if keep else None
        gone = batch.sequences.tolist()[keep:]
        self.optional.update(gone)
        store.replace(first, last, rest)

    def used(self, store: BacklogFiles) -> None:
        store.note_used(store.last_sequence)

    def check(self, store: BacklogFiles) -> None:
        """Check the contents after power is restored."""
        held = held_messages(store)
        assert store.persisted_sequence <= self.settled, "it claims messages without an acknowledgement"
        assert store.persisted_sequence < min(held, default=1 << 64)
        self.counts["claims after power loss"] += store.persisted_sequence > 0
        assert list(held) == sorted(held)
        missing = {n for n in self.returned if n not in held} - self.optional
        assert not missing, f"lost: {sorted(missing)}"
        for number, body in held.items():
            assert body in self.begun[number], f"{number} is not the published body"
            assert number not in self.returned or number in self.optional or body == self.returned[number]
        self.highest = max(self.highest, *self.returned, 0)
        assert store.last_sequence >= self.highest
        self.counts["found"] += len(held)
        self.counts["files"] = max(self.counts["files"], len(list(self.path.glob("*.segment"))))
        self.returned = held


@pytest.mark.behaviour(29)
def test_publish_store_with_sync_always_keeps_returned_messages_through_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(WORLDS_FULL if full else WORLDS):
        directory = tmp_path / str(seed)
        directory.mkdir()
        with monkeypatch.context() as patch:
            world = World(seed, directory, patch)
            try:
                for number in range(LIVES):
                    world.life(number)
            except BaseException as error:
                error.add_note(f"seed {seed}, life {world.counts['lives']}")
                raise
        shutil.rmtree(directory)
        counts.update(world.counts)
    assert all(counts[event] > 10 for event in ("append", "seal", "put", "settle", "refuse", "found")), counts
    assert counts["claims after power loss"]
