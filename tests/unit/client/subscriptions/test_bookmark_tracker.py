"""The bookmark tracker without a store behaves like a bookmark store with immediate discards."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.helpers.tiers import parts
from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import BookmarkStoreFull, Closed, StoreFailed
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.client.subscriptions.bookmark_tracker import (
    MemoryBookmarkTracker,
    StoredBookmarkTracker,
    asked,
)


@pytest.mark.parametrize("seed", parts(40, 13))
def test_memory_tracker_equals_store_with_immediate_discards(seed: int) -> None:
    rng = Random(seed)
    store, tracker = MemoryBookmarkStore(), MemoryBookmarkTracker()
    stored = StoredBookmarkTracker(store, "s")
    log = [(rng.choice((3, 5, 9)), number) for number in range(1, 120)]
    at = 0
    for one in (stored, tracker):
        one.resumed(conflated=False)
        one.started([Bookmark(3, 0)] if seed % 2 else [])
    for _ in range(30):
        if rng.random() < 0.2:  # a new connection, from an earlier position
            at = max(0, at - rng.randrange(12))
            for one in (stored, tracker):
                one.resumed(conflated=False)
        if rng.random() < 0.2 and at:
            for one in (stored, tracker):
                one.noticed(Bookmark(*log[at - 1]))
        rows = log[at : at + rng.choice((1, 2, 7))]
        if not rows:
            break
        at += len(rows)
        publishers = np.array([row[0] for row in rows], np.uint64)
        sequences = np.array([row[1] for row in rows], np.uint64)
        single = len(set(publishers.tolist())) == 1
        given = int(publishers[0]) if single else publishers
        kept = [one.new_rows(given, sequences) for one in (stored, tracker)]
        store.discard_all("s", given, sequences)
        masks = [np.ones(len(rows), np.bool_) if keep is None else keep for keep in kept]
        assert masks[0].tolist() == masks[1].tolist()
        assert set(stored.most_recent()) == set(tracker.most_recent())


def test_sequence_out_of_order_in_a_batch_is_a_duplicate() -> None:
    tracker = MemoryBookmarkTracker()
    keep = tracker.new_rows(3, np.array([1000, 1002, 999, 1003], np.uint64))
    assert keep is not None
    assert keep.tolist() == [True, True, False, True]


def test_memory_tracker_limits_the_number_of_publishers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickertape.client.subscriptions.bookmark_tracker.bookmark_publishers_max", 10)
    tracker = MemoryBookmarkTracker()
    for publisher in range(1, 100):
        tracker.new_rows(publisher, np.array([1], np.uint64))
        assert len(tracker._seen) <= 10
    assert tracker.most_recent()[-1] == Bookmark(99, 1)


def test_exception_of_a_store_becomes_store_failed() -> None:
    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(StoreFailed, match="OSError: no such disk") as caught:
        asked(lambda: fail(OSError("no such disk")))
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(StoreFailed, match=r"it raised NotImplementedError\. Correct the store\.$"):
        asked(lambda: fail(NotImplementedError()))
    for error in (BookmarkStoreFull("full"), Closed("closed")):
        with pytest.raises(type(error)):
            asked(lambda error=error: fail(error))  # type: ignore[misc]
