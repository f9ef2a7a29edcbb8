"""Owns the conformance suite of bookmark stores: for those of users as for ours.

Must never look inside a store: what is checked is what a client may rely on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.client.bookmark_store.protocol import BookmarkStore

Open = Callable[[str], BookmarkStore]


def check_bookmark_store(
    open_store: Open, *, survives_restart: bool = True, filters_after_restart: bool = True
) -> None:
    """Raise `AssertionError` naming the first promise that a store breaks.

    `open_store(name)` opens the store called so: a new one for a new name, and for the name of one that was
    closed that one again. `survives_restart=False` for a store that then knows nothing any more,
    `filters_after_restart=False` for one that then knows only the recovery point.
    """
    names = (f"checked-{n}" for n in count())
    for check in (_order, _gaps, _duplicates, _publishers, _subscriptions, _batches, _notices, _start):
        with _closing(open_store(next(names))) as store:
            check(store)
    with _closing(open_store(next(names))) as store:
        _threads(store)
    if survives_restart:
        _restart(open_store, next(names), filters_after_restart)
        _forgotten(open_store, next(names))


class _closing:  # noqa: N801 - it reads as the function it stands for
    def __init__(self, store: BookmarkStore) -> None:
        self._store = store

    def __enter__(self) -> BookmarkStore:
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def _log(store: BookmarkStore, sub_id: str, publisher: int, sequences: Sequence[int]) -> list[int]:
    numbers = np.array(sequences, np.uint64)
    keep = store.log(sub_id, publisher, numbers)
    return list(sequences) if keep is None else [int(n) for n in numbers[keep]]


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: {found!r} instead of {wanted!r}")


def _order(store: BookmarkStore) -> None:
    _same("an id never seen stands for EPOCH", store.most_recent("s"), [])
    store.resumed("s")
    _same("new messages are delivered", _log(store, "s", 5, [10, 11, 12]), [10, 11, 12])
    _same("nothing discarded stands for EPOCH", store.most_recent("s"), [])
    for sequence in (10, 11):
        _same("discard says that it is so now", store.discard("s", 5, sequence), True)
        _same("and only once", store.discard("s", 5, sequence), False)
        _same("the recovery point follows", store.most_recent("s"), [Bookmark(5, sequence)])
    _same("what is left", store.undiscarded_count("s"), 1)
    _same("what never came is not discarded", store.discard("s", 5, 99), False)
    _same("nor by an id never seen", store.discard("t", 5, 12), False)


def _gaps(store: BookmarkStore) -> None:
    store.resumed("s")
    _log(store, "s", 5, [1, 2, 3, 4, 5])
    for sequence in (4, 1, 2):
        store.discard("s", 5, sequence)
    _same("the recovery point is before the first undiscarded", store.most_recent("s"), [Bookmark(5, 2)])
    _same("beyond it is remembered what is discarded", store.is_discarded("s", 5, 4), True)
    store.resumed("s")
    _same("undiscarded ones come again, others not", _log(store, "s", 5, [3, 4, 5, 6]), [3, 5, 6])
    store.discard("s", 5, 3)
    _same("a gap that closes moves it on", store.most_recent("s"), [Bookmark(5, 4)])
    store.resumed("s", forget_beyond=True)
    _same("when told so all behind it comes again", _log(store, "s", 5, [4, 5, 6]), [5, 6])


def _duplicates(store: BookmarkStore) -> None:
    store.resumed("s")
    _log(store, "s", 5, [1000, 1002])
    _same("late ones are duplicates", _log(store, "s", 5, [999, 1001, 1002, 1003]), [1003])
    store.resumed("s")
    _same("undiscarded ones are none", _log(store, "s", 5, [1000, 1001, 1002, 1003]), [1000, 1002, 1003])
    _same("but they come once", _log(store, "s", 5, [1000, 1003]), [])


def _publishers(store: BookmarkStore) -> None:
    store.resumed("s")
    ids, numbers = np.array([1, 2, 1, 2], np.uint64), np.array([2**64 - 2, 7, 2**64 - 1, 8], np.uint64)
    keep = store.log("s", ids, numbers)
    _same("publishers are apart", keep is None or bool(keep.all()), True)
    store.discard("s", 2, 7)
    _same("order is that of delivery", store.most_recent("s"), [])
    store.discard("s", 1, 2**64 - 2)
    _same("one bookmark each", sorted(store.most_recent("s")), [Bookmark(1, 2**64 - 2), Bookmark(2, 7)])


def _subscriptions(store: BookmarkStore) -> None:
    for sub_id in ("a", "b"):
        store.resumed(sub_id)
        _log(store, sub_id, 1, [1, 2])
    store.discard("a", 1, 1)
    _same("ids are apart", (store.most_recent("a"), store.most_recent("b")), ([Bookmark(1, 1)], []))
    _same("all are known", sorted(store.subscriptions()), ["a", "b"])
    store.purge("a")
    _same("a purged one is as never seen", (store.most_recent("a"), store.subscriptions()), ([], ["b"]))
    _same("and begins anew", _log(store, "a", 1, [1, 2]), [1, 2])
    store.purge()
    _same("all are purged", store.subscriptions(), [])


def _batches(store: BookmarkStore) -> None:
    store.resumed("s")
    _log(store, "s", 1, range(3000))
    many = np.arange(10, 2000, dtype=np.uint64)
    _same("many are discarded at once", store.discard_all("s", 1, many), 1990)
    _same("once", store.discard_all("s", 1, np.arange(0, 20, dtype=np.uint64)), 10)
    _same("as if one by one", store.most_recent("s"), [Bookmark(1, 1999)])
    _same("and others stay", store.undiscarded_count("s"), 1000)


def _notices(store: BookmarkStore) -> None:
    store.resumed("s")
    _log(store, "s", 1, [1])
    store.persisted("s", Bookmark(2, 50))
    _same("a notice waits for what was before it", store.most_recent("s"), [])
    store.discard("s", 1, 1)
    _same("then it counts", Bookmark(2, 50) in store.most_recent("s"), True)
    store.persisted("s", Bookmark(2, 60))
    _same("a quiet subscription moves on", store.most_recent("s"), [Bookmark(2, 60)])
    _same("what comes later is new", _log(store, "s", 2, [61]), [61])


def _start(store: BookmarkStore) -> None:
    store.started("s", [Bookmark(3, 9)])
    _same("the start is the first recovery point", store.most_recent("s"), [Bookmark(3, 9)])
    store.resumed("s")
    _log(store, "s", 1, [1])
    _same("until something is discarded", store.most_recent("s"), [Bookmark(3, 9)])
    store.discard("s", 1, 1)
    store.started("s", [Bookmark(3, 1)])
    _same("a later one does not set it back", store.most_recent("s"), [Bookmark(1, 1)])


def _threads(store: BookmarkStore) -> None:
    total = 2000
    store.resumed("s")
    _log(store, "s", 1, range(total))

    def discard(parity: int) -> None:
        for sequence in range(parity, total, 2):
            store.discard("s", 1, sequence)

    threads = [threading.Thread(target=discard, args=(parity,)) for parity in (0, 1)]
    for thread in threads:
        thread.start()
    _log(store, "s", 2, range(total))
    for thread in threads:
        thread.join()
    _same("two threads discard", store.most_recent("s"), [Bookmark(1, total - 1)])
    _same("while a third delivers", store.undiscarded_count("s"), total)


def _restart(open_store: Open, name: str, filters: bool) -> None:
    with _closing(open_store(name)) as store:
        store.started("quiet", [Bookmark(9, 9)])
        store.resumed("s")
        _log(store, "s", 1, [1, 2, 3, 4])
        for sequence in (1, 3):
            store.discard("s", 1, sequence)
    with _closing(open_store(name)) as store:
        _same("recovery points survive", store.most_recent("s"), [Bookmark(1, 1)])
        _same("starts survive", store.most_recent("quiet"), [Bookmark(9, 9)])
        store.resumed("s")
        wanted = [2, 4, 5] if filters else [2, 3, 4, 5]
        _same("undiscarded ones come after a restart", _log(store, "s", 1, [1, 2, 3, 4, 5]), wanted)


def _forgotten(open_store: Open, name: str) -> None:
    with _closing(open_store(name)) as store:
        store.resumed("s")
        _log(store, "s", 1, [1])
        store.discard("s", 1, 1)
        store.purge("s")
    with _closing(open_store(name)) as store:
        _same("a purge survives", (store.subscriptions(), store.most_recent("s")), ([], []))
