"""Bookmark stores alone, in CPU time of one process, deliveries included.

Batches of 640 messages of one publisher. Discards are single in order, single in random order within windows
of 9,600, or of whole batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import numpy as np

import tickertape as tt
from tests.bench.registry import Reading, Room, bench

BATCH = 640
WINDOW = 15 * BATCH
WINDOWS = 30
SUB, PUBLISHER = "orders", 7
GROUP = "bookmark stores alone"


Store = tt.MemoryBookmarkStore | tt.LoggedBookmarkStore | tt.RingBookmarkStore


def memory(_: Room) -> Store:
    return tt.MemoryBookmarkStore()


def logged(room: Room) -> Store:
    return tt.LoggedBookmarkStore(room.directory / "store")


def ring(room: Room) -> Store:
    return tt.RingBookmarkStore(room.directory / "store")


def deliver(store: Store, low: int, high: int) -> None:
    for at in range(low, high, BATCH):
        store.log(SUB, PUBLISHER, np.arange(at, at + BATCH, dtype=np.uint64))


def rate(store: Store, how: str, windows: int) -> float:
    """Return messages a second."""
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


def _read(room: Room, make: Callable[[Room], Store], how: str) -> Reading:
    with make(room) as store:
        return Reading(rate(store, how, room.count(WINDOWS)), "CPU time")


@bench(GROUP, "MemoryBookmarkStore, discard() in order", unit="msg/s")
def memory_in_order(room: Room) -> Reading:
    return _read(room, memory, "in order")


@bench(GROUP, "LoggedBookmarkStore, discard() in order", unit="msg/s")
def logged_in_order(room: Room) -> Reading:
    return _read(room, logged, "in order")


@bench(GROUP, "RingBookmarkStore, discard() in order", unit="msg/s")
def ring_in_order(room: Room) -> Reading:
    return _read(room, ring, "in order")


@bench(GROUP, "MemoryBookmarkStore, discard() in random order within 9,600", unit="msg/s")
def memory_random(room: Room) -> Reading:
    return _read(room, memory, "random")


@bench(GROUP, "LoggedBookmarkStore, discard() in random order within 9,600", unit="msg/s")
def logged_random(room: Room) -> Reading:
    return _read(room, logged, "random")


@bench(GROUP, "RingBookmarkStore, discard() in random order within 9,600", unit="msg/s")
def ring_random(room: Room) -> Reading:
    return _read(room, ring, "random")


@bench(GROUP, "LoggedBookmarkStore, discard_all() of 640", unit="msg/s")
def logged_batches(room: Room) -> Reading:
    return _read(room, logged, "batches")
