"""Stores on a disk that fills up: `python -m tests.helpers.full_disk DIRECTORY`.

Must never judge anything but by `assert`. It mounts a small file system, and so runs in a mount namespace of
its own (`tests.helpers.namespaces`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tickertape as tt
from tests.helpers.publish_batches import held_messages, stored_all

NAME = "pricing-1"
BODY = b"x" * 5_000
SUB, PUBLISHER = "orders", 7


def _fill(directory: Path) -> Path:
    """Use all space of the disk."""
    filler = directory / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass  # full
    return filler


def publishes(directory: Path) -> None:
    """Check that stored messages stay, others raise, and acknowledgements alone free space."""
    path = directory / "publishes"
    with tt.FilePublishStore(path) as store:
        store.attach(NAME)
        number = _append_until_full(store, 1)
        kept = held_messages(store)
        assert sorted(kept) == list(range(1, number)), (
            "a publish that raised is stored, or another one is not"
        )
        store.discard(number - 3)
        more = _append_until_full(store, number)
        assert more > number + 500, "acknowledged messages free their space"
    with tt.FilePublishStore(path) as store:
        assert sorted(held_messages(store)) == list(range(number - 2, more))
        assert set(held_messages(store).values()) == {BODY}


def _append_until_full(store: tt.FilePublishStore, number: int) -> int:
    first = number
    while _appended(store, number):
        number += 1
        if number - first == 20:
            _seal(store, first, number)
            first = number
    if number > first:
        _seal(store, first, number)
    return number


def _appended(store: tt.FilePublishStore, number: int) -> bool:
    try:
        store.append(number, "orders", BODY)
    except tt.StoreFailed as error:
        if "No space left" not in str(error):
            raise
        return False
    return True


def _seal(store: tt.FilePublishStore, first: int, number: int) -> None:
    store.seal(stored_all(first, [BODY] * (number - first), NAME))


def hybrid(directory: Path) -> None:
    """Fill a hybrid store to its limit on disk, and check that it loses nothing."""
    with tt.HybridPublishStore(directory / "hybrid", "100KB") as store:
        store.attach(NAME)
        number = 1
        while store.size_bytes < store.bytes_max:
            store.put(stored_all(number, [BODY] * 20, NAME))
            number += 20
        assert store.unpersisted_count() == number - 1
        assert [s.first for s in store.held()][-1] == number - 20
        store.discard(number - 1)
        assert (store.unpersisted_count(), store.size_bytes) == (0, 0)


def logged(directory: Path) -> None:
    """Check that a bookmark store raises, keeps its records, and resumes with free space."""
    path = directory / "log"
    store = tt.LoggedBookmarkStore(path)
    store.resumed(SUB)
    store.log(SUB, PUBLISHER, np.arange(1, 101, dtype=np.uint64))
    store.discard(SUB, PUBLISHER, 1)
    filler = _fill(directory)
    with pytest.raises(tt.StoreFailed, match="No space left"):
        store.log(SUB, PUBLISHER, np.arange(200, 2_000_000, 2, dtype=np.uint64))
    filler.unlink()
    assert store.discard(SUB, PUBLISHER, 2)
    store.close()
    with tt.LoggedBookmarkStore(path) as again:
        assert again.most_recent(SUB) == [(PUBLISHER, 2)]
        assert not again.is_discarded(SUB, PUBLISHER, 3)


def ring(directory: Path) -> None:
    """Check that a ring allocates all of its space when it is created."""
    path = directory / "ring"
    filler = _fill(directory)
    with pytest.raises(tt.StoreFailed, match="No space left"):
        tt.RingBookmarkStore(path, subscriptions=64, publishers=256)
    filler.unlink()
    with tt.RingBookmarkStore(path, subscriptions=64, publishers=256) as store:
        filler = _fill(directory)
        store.resumed(SUB)
        store.log(SUB, PUBLISHER, np.arange(1, 101, dtype=np.uint64))
        assert store.discard(SUB, PUBLISHER, 1)
    with tt.RingBookmarkStore(path) as store:
        assert store.most_recent(SUB) == [(PUBLISHER, 1)]
    filler.unlink()


def main(directory: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=36m", "tmpfs", str(directory)], check=True)
    for story in (publishes, hybrid, logged, ring):
        story(directory)
        for file in directory.iterdir():
            for inner in file.iterdir() if file.is_dir() else ():
                os.unlink(inner)
            os.rmdir(file) if file.is_dir() else os.unlink(file)
        print(story.__name__, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
