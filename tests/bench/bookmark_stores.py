"""Bookmark stores alone, in CPU time of one process, deliveries included.

Batches of 640 messages of one publisher; discards one by one in order, one by one in random order within
windows of 9,600, and whole batches.
"""

from __future__ import annotations

import time
from random import Random

import numpy as np

import tickertape as tt
from tests.bench.registry import Reading, Room, bench
from tickertape.client.bookmark_store.store import ProgressStore

BATCH = 640
WINDOW = 15 * BATCH
WINDOWS = 30
SUB, PUBLISHER = "orders", 7
GROUP = "bookmark stores alone"


def deliver(store: ProgressStore, low: int, high: int) -> None:
    for at in range(low, high, BATCH):
        store.log(SUB, PUBLISHER, np.arange(at, at + BATCH, dtype=np.uint64))


def rate(store: ProgressStore, how: str, windows: int) -> float:
    """Messages a second."""
    rng, discard, seconds, total = Random(1), store.discard, 0.0, windows * WINDOW
    for low in range(0, total, WINDOW):
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
    assert store.most_recent(SUB) == [(PUBLISHER, total - 1)]
    return total / seconds


def _read(room: Room, store: ProgressStore, how: str) -> Reading:
    with store:
        return Reading(rate(store, how, room.count(WINDOWS)), "CPU time")


@bench(GROUP, "MemoryBookmarkStore, discard() in order", unit="msg/s")
def memory_in_order(room: Room) -> Reading:
    return _read(room, tt.MemoryBookmarkStore(), "in order")


@bench(GROUP, "LoggedBookmarkStore, discard() in order", unit="msg/s")
def logged_in_order(room: Room) -> Reading:
    return _read(room, tt.LoggedBookmarkStore(room.directory / "store"), "in order")


@bench(GROUP, "RingBookmarkStore, discard() in order", unit="msg/s")
def ring_in_order(room: Room) -> Reading:
    return _read(room, tt.RingBookmarkStore(room.directory / "store"), "in order")


@bench(GROUP, "MemoryBookmarkStore, discard() in random order within 9,600", unit="msg/s")
def memory_random(room: Room) -> Reading:
    return _read(room, tt.MemoryBookmarkStore(), "random")


@bench(GROUP, "LoggedBookmarkStore, discard() in random order within 9,600", unit="msg/s")
def logged_random(room: Room) -> Reading:
    return _read(room, tt.LoggedBookmarkStore(room.directory / "store"), "random")


@bench(GROUP, "RingBookmarkStore, discard() in random order within 9,600", unit="msg/s")
def ring_random(room: Room) -> Reading:
    return _read(room, tt.RingBookmarkStore(room.directory / "store"), "random")


@bench(GROUP, "LoggedBookmarkStore, discard_all() of 640", unit="msg/s")
def logged_batches(room: Room) -> Reading:
    return _read(room, tt.LoggedBookmarkStore(room.directory / "store"), "batches")
