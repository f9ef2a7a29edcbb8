"""Late messages of servers that replicate, in bookmark stores over restarts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tickertape.base.bookmarks import Bookmark, place_at
from tickertape.client.bookmark_store.base import MemoryBookmarkStore, restored
from tickertape.client.bookmark_store.logged import LoggedBookmarkStore
from tickertape.client.bookmark_store.ring import RingBookmarkStore
from tickertape.wire.link_rows import OpenHoles

SUB = "s"
P = 7
LOG = 99


def received(store: MemoryBookmarkStore | LoggedBookmarkStore | RingBookmarkStore, *sequences: int) -> int:
    """Receive messages of the publisher, and return the number of delivered ones."""
    keep = store.log(SUB, P, np.array(sequences, np.uint64))
    return len(sequences) if keep is None else int(keep.sum())


def noticed(
    store: MemoryBookmarkStore | LoggedBookmarkStore | RingBookmarkStore,
    last: int,
    position: int,
    *holes: OpenHoles,
) -> None:
    store.persisted(SUB, Bookmark(P, last), [place_at(LOG, position)], holes)


def with_late(store: MemoryBookmarkStore | LoggedBookmarkStore | RingBookmarkStore) -> None:
    """Deliver 1 to 10 without 5, discard them, and deliver 5 without discarding it."""
    store.resumed(SUB)
    store.started(SUB, [place_at(LOG, 0)])
    assert received(store, *range(1, 5), *range(6, 11)) == 9
    noticed(store, 10, 20, OpenHoles(P, 10, ((5, 5),)))
    assert received(store, 5) == 1
    store.discard_all(SUB, P, np.array([*range(1, 5), *range(6, 11)], np.uint64))
    noticed(store, 10, 30, OpenHoles(P, 10, ()))


def test_late_message_without_discard_is_delivered_after_a_restart_of_a_ring_store(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    with RingBookmarkStore(path) as store:
        with_late(store)
    with RingBookmarkStore(path) as store:
        store.resumed(SUB)
        assert received(store, 5) == 1
        assert store.discard(SUB, P, 5)


def test_late_message_without_discard_is_a_hole_of_the_recovery_point() -> None:
    store = MemoryBookmarkStore()
    with_late(store)
    point = store.most_recent(SUB)
    assert point == [Bookmark(P, 4), Bookmark(P, 5), Bookmark(P, 10), place_at(LOG, 20)]
    after = restored(point)
    after.resume()
    keep = after.accept(P, np.array([5], np.uint64)).keep
    assert keep is None or keep.all()
    store.discard(SUB, P, 5)
    assert store.most_recent(SUB) == [Bookmark(P, 10), place_at(LOG, 20)]


def test_logged_store_of_a_server_without_places_keeps_gaps_after_the_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with LoggedBookmarkStore(path) as store:
        store.resumed(SUB)
        store.started(SUB, [Bookmark(P, 1)])
        assert received(store, 2, 3) == 2
        store.resumed(SUB)
        store.started(SUB, [Bookmark(P, 1), place_at(LOG, 0)])
        assert received(store, 4, 6) == 2
    with LoggedBookmarkStore(path) as store:
        store.resumed(SUB)
        store.started(SUB, [Bookmark(P, 1), place_at(LOG, 0)])
        assert received(store, 5) == 1
