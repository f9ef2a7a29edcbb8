"""Progress of a subscription: contiguous prefix, discards beyond it, redelivery."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import BookmarkStoreFull
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.client.bookmark_store import progress as module
from tickertape.client.bookmark_store.progress import Progress


def numbers(values: Sequence[int]) -> module.UInt64s:
    return np.array(values, np.uint64)


def kept(progress: Progress, publisher: int | Sequence[int], sequences: Sequence[int]) -> list[int]:
    publishers = publisher if isinstance(publisher, int) else numbers(publisher)
    keep = progress.accept(publishers, numbers(sequences)).keep
    return list(sequences) if keep is None else numbers(sequences)[keep].tolist()


@pytest.mark.behaviour(28)
def test_resume_redelivers_only_undiscarded_messages() -> None:
    progress = Progress()
    assert kept(progress, 7, [1, 2, 3, 4, 5]) == [1, 2, 3, 4, 5]
    for sequence in (1, 2, 4):
        assert progress.discard(7, sequence) >= 0
    assert progress.most_recent() == [Bookmark(7, 2)]
    progress.resume()
    assert kept(progress, 7, [3, 4, 5, 6]) == [3, 5, 6]
    assert kept(progress, 7, [3, 5]) == []  # a message arrives once per connection
    progress.resume()
    assert kept(progress, 7, [1, 2, 3, 4, 5, 6, 7]) == [3, 5, 6, 7]


@pytest.mark.behaviour(28)
def test_late_sequence_counts_as_duplicate() -> None:
    progress = Progress()
    kept(progress, 7, [1000, 1002])
    assert kept(progress, 7, [999, 1001, 1003]) == [1003]
    assert progress.is_discarded(7, 999)
    assert not progress.is_discarded(7, 1002)


def test_progress_of_several_publishers_is_independent() -> None:
    progress = Progress()
    assert kept(progress, [1, 2, 1, 2], [10, 5, 11, 6]) == [10, 5, 11, 6]
    assert progress.discard(2, 6) == 3
    assert progress.discard(1, 10) == 0
    assert progress.most_recent() == [Bookmark(1, 10)]
    assert progress.discard(2, 5) == 1
    assert sorted(progress.most_recent()) == [Bookmark(1, 10), Bookmark(2, 5)]
    assert progress.discard(1, 11) == 2
    assert sorted(progress.most_recent()) == [Bookmark(1, 11), Bookmark(2, 6)]
    assert progress.window == 0


def test_persisted_notice_counts_after_all_earlier_messages_are_discarded() -> None:
    progress = Progress()
    kept(progress, 1, [1, 2])
    progress.point.notice(Bookmark(9, 100), progress.delivered, progress.head)
    progress.discard(1, 1)
    assert progress.most_recent() == [Bookmark(1, 1)]
    progress.discard(1, 2)
    assert progress.most_recent() == [Bookmark(1, 2), Bookmark(9, 100)]
    progress.point.notice(Bookmark(9, 200), progress.delivered, progress.head)
    assert progress.most_recent() == [
        Bookmark(9, 200)
    ]  # a silent publisher does not hold back the recovery point
    kept(progress, 1, [3])
    assert progress.most_recent() == [Bookmark(9, 200)]
    progress.discard(1, 3)
    assert progress.most_recent() == [Bookmark(1, 3)]


def test_old_persisted_notice_does_not_move_the_recovery_point_back() -> None:
    with MemoryBookmarkStore() as store:
        store.started("s", [Bookmark(1, 1)])
        store.resumed("s")
        store.log("s", 2, np.array([1], np.uint64))
        store.persisted("s", Bookmark(2, 1))
        store.resumed("s")  # the connection was lost, and delivery restarts
        store.persisted("s", Bookmark(1, 1))  # a publisher unknown to the store
        store.log("s", 2, np.array([1], np.uint64))
        assert store.discard("s", 2, 1)
        assert store.most_recent("s") == [Bookmark(2, 1)]
        store.persisted("s", Bookmark(3, 7))  # no redelivery is pending now
        assert store.most_recent("s") == [Bookmark(3, 7)]


def test_resume_with_forget_redelivers_all_messages_after_the_prefix() -> None:
    progress = Progress()
    kept(progress, 1, [1, 2, 3])
    progress.discard(1, 1)
    progress.discard(1, 3)
    progress.resume(forget=True)
    assert progress.window == 0
    assert kept(progress, 1, [1, 2, 3]) == [2, 3]
    assert progress.discard(1, 2) == 1


def test_discard_rows_discards_many_sequences_at_once() -> None:
    progress = Progress()
    kept(progress, 1, range(5000))
    assert progress.discard_rows(1, numbers(range(100, 200))) == [(100, 200)]
    assert progress.discard_rows(1, numbers(range(150))) == [(0, 100)]
    assert progress.head == 200
    mixed = [1 + n % 3 for n in range(300)]
    sequences = [5000 + n for n in range(300)]
    kept(progress, mixed, sequences)
    assert progress.discard_rows(numbers(mixed[10:]), numbers(sequences[10:])) == [(5010, 5300)]
    assert progress.undiscarded == 4810


def test_full_window_raises_bookmark_store_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bookmark_window_messages_max", 10)
    progress = Progress()
    kept(progress, 1, range(8))
    with pytest.raises(BookmarkStoreFull, match="Discard processed messages"):
        kept(progress, 1, range(8, 11))
    progress.discard(1, 0)
    assert kept(progress, 1, range(8, 11)) == [8, 9, 10]


def test_oldest_publishers_beyond_the_limit_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bookmark_publishers_max", 10)
    progress = Progress()
    for publisher in range(100):
        kept(progress, publisher, [1])
        progress.discard(publisher, 1)
        assert len(progress.publishers) <= 10
    assert progress.most_recent()[-1] == Bookmark(99, 1)
