"""Bookmark stores alone, in CPU time of one process: `python -m tests.bench.bookmark_stores`.

Batches of 640 messages of one publisher; discards one by one in order, one by one in random order within
windows of 9,600, and whole batches.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np

import tickertape as tt
from tickertape.client.bookmark_store.store import ProgressStore

BATCH = 640
WINDOW = 15 * BATCH
MESSAGES = 30 * WINDOW
SUB, PUBLISHER = "orders", 7


def deliver(store: ProgressStore, low: int, high: int) -> None:
    for at in range(low, high, BATCH):
        store.log(SUB, PUBLISHER, np.arange(at, at + BATCH, dtype=np.uint64))


def rate(store: ProgressStore, how: str) -> float:
    """Messages a second, delivery included."""
    rng, discard, seconds = Random(1), store.discard, 0.0
    for low in range(0, MESSAGES, WINDOW):
        order = list(range(low, low + WINDOW))
        if how == "random":
            rng.shuffle(order)
        begun = time.process_time()
        deliver(store, low, low + WINDOW)
        if how == "batches":
            for at in range(low, low + WINDOW, BATCH):
                store.discard_all(SUB, PUBLISHER, np.arange(at, at + BATCH, dtype=np.uint64))
        else:
            for sequence in order:
                discard(SUB, PUBLISHER, sequence)
        seconds += time.process_time() - begun
    assert store.most_recent(SUB) == [(PUBLISHER, MESSAGES - 1)]
    return MESSAGES / seconds


def stores(directory: Path, how: str) -> Iterator[tuple[str, ProgressStore]]:
    yield "memory", tt.MemoryBookmarkStore()
    yield "logged", tt.LoggedBookmarkStore(directory / f"logged-{how}")
    yield "ring", tt.RingBookmarkStore(directory / f"ring-{how}")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        for how in ("in order", "random", "batches"):
            for name, store in stores(Path(directory), how):
                with store:
                    print(f"{name:8}{how:10}{rate(store, how) / 1e3:10,.0f} k/s")


if __name__ == "__main__":
    main()
