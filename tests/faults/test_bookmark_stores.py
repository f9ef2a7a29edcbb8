"""SIGKILL of a process that delivers, discards and prunes, at random times, again and again.

A mapped file records its actions: before each discard the message to be discarded, after it the completion.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import sys
import time
import traceback
from pathlib import Path
from random import Random
from typing import NoReturn

import numpy as np
import pytest

import tickertape as tt

CYCLES = 20
CYCLES_FULL = 200
TOTAL = 400_000
BATCH = 100
WINDOW = 400
SUB, PUBLISHER = "orders", 7
COUNTS = struct.Struct("<QQ")
Store = tt.LoggedBookmarkStore | tt.RingBookmarkStore


def opened(kind: str, path: Path) -> Store:
    if kind == "ring":
        return tt.RingBookmarkStore(path, subscriptions=1, publishers=1)
    return tt.LoggedBookmarkStore(path, prune_size=300_000)


def order_of(seed: int) -> list[int]:
    """Return the order of discards: shuffled in windows that are delivered as a whole."""
    rng, order = Random(seed), []
    for low in range(0, TOTAL, WINDOW):
        window = list(range(low, low + WINDOW))
        if rng.random() < 0.7:
            rng.shuffle(window)
        order += window
    return order


def resume_at(store: Store) -> int:
    points = store.most_recent(SUB)
    return points[0].sequence + 1 if points else 0


def live(kind: str, path: Path, witness: mmap.mmap, order: list[int], seed: float) -> NoReturn:
    """Deliver and discard messages until the process is killed."""
    store = opened(kind, path)
    done = COUNTS.unpack_from(witness)[1]
    counts = memoryview(witness).cast("Q")  # each is written whole, pack_into writes zeros first
    before = set(order[:done])
    cursor = resume_at(store)
    store.resumed(SUB)
    deaths = Random(seed)
    while True:
        if done == len(order):
            signal.pause()  # the judge is late
        while cursor <= order[done] // WINDOW * WINDOW + WINDOW:
            batch = np.arange(cursor, cursor + BATCH, dtype=np.uint64)
            keep = store.log(SUB, PUBLISHER, batch)
            cursor += BATCH
            for sequence in (batch if keep is None else batch[keep]).tolist():
                if sequence in before:  # the ring store redelivers it
                    store.discard(SUB, PUBLISHER, sequence)
        counts[0] = done + 1
        store.discard(SUB, PUBLISHER, order[done])
        done += 1
        counts[1] = done
        if isinstance(store, tt.LoggedBookmarkStore) and deaths.random() < 0.01:
            store.prune()


def victim(kind: str, path: Path, witness: mmap.mmap, order: list[int], seed: float) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        live(kind, path, witness, order, seed)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        raise
    finally:
        os._exit(1)


def judge(store: Store, order: list[int], begun: int, done: int, filters: bool) -> None:
    surely, perhaps = set(order[:done]), set(order[:begun])
    start = resume_at(store)
    assert perhaps.issuperset(range(start)), "the recovery point is past a message that is not discarded"
    prefix = next(n for n in range(TOTAL + 1) if n not in surely)
    assert start >= prefix, "the recovery point has moved back"
    for sequence in range(start, start + 3 * WINDOW):
        known = store.is_discarded(SUB, PUBLISHER, sequence)
        assert not known or sequence in perhaps, "a message passes for discarded that is not"
        assert known or not filters or sequence not in surely, "a discarded message would be redelivered"


@pytest.mark.behaviour(31)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logged", "ring"])
def test_bookmark_store_after_sigkill_at_any_time_keeps_discards(
    kind: str, tmp_path: Path, full: bool
) -> None:
    seed = int(time.time()) if full else 11
    rng, order = Random(seed), order_of(seed)
    witness = mmap.mmap(-1, COUNTS.size)
    path = tmp_path / "store"
    last = 0
    for _ in range(CYCLES_FULL if full else CYCLES):
        if last > TOTAL // 2:
            last, path = 0, path.with_name(f"{path.name}x")
            COUNTS.pack_into(witness, 0, 0, 0)
        pid = victim(kind, path, witness, order, rng.random())
        deadline = time.monotonic() + 20
        while COUNTS.unpack_from(witness)[1] == last and time.monotonic() < deadline:
            time.sleep(0.001)  # until it works
        time.sleep(rng.random() * 0.02)
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL, f"the victim ended by itself (seed {seed})"
        begun, done = COUNTS.unpack_from(witness)
        assert done > last
        last = done
        with opened(kind, path) as store:
            judge(store, order, begun, done, filters=kind == "logged")
