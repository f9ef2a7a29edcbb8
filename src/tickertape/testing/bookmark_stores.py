"""Conformance suite for bookmark stores of applications and of this package.

It uses only the protocol of a store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import numpy as np

from tickertape.base.bookmarks import Bookmark, place_at
from tickertape.base.errors import Closed
from tickertape.client.bookmark_store.protocol import BookmarkStore
from tickertape.testing.verdicts import must, same
from tickertape.wire.link_rows import OpenHoles

Open = Callable[[str], BookmarkStore]
End = Callable[[BookmarkStore], None]


def check_bookmark_store(
    open_store: Open,
    *,
    survives_restart: bool = True,
    filters_after_restart: bool = True,
    killed: End | None = None,
) -> None:
    """Check a bookmark store. Raise `AssertionError` with the first violated requirement.

    The check does not cover power loss, disk errors, full stores, recovery point adapters or speed.

    Args:
        open_store: `open_store(name)` returns the store `name`. It creates a new store, or reopens the store
            if an earlier call used this name.
        survives_restart: False for a store that is empty after a restart of the process. Default True.
        filters_after_restart: Whether the store still drops discarded messages after a restart of the
            process. False for a store that then has only recovery points. Default True.
        killed: For a store that survives a kill of the process. `killed(store)` simulates the kill: it
            releases locks and files as the operating system would, and writes nothing. Use `lambda store:
            None` if a store can be reopened without a close. Default None: the check does not kill the
            store. A store that writes only in `close` then passes the check.

    Example:
        >>> check_bookmark_store(lambda name: tt.MemoryBookmarkStore(), survives_restart=False)
    """
    names = (f"checked-{n}" for n in count())
    checks = (
        _order,
        _gaps,
        _duplicates,
        _publishers,
        _subscriptions,
        _batches,
        _notices,
        _places,
        _start,
        _threads,
    )
    for check in checks:
        with _opened(open_store, next(names)) as store:
            check(store)
    with _opened(open_store, next(names)) as store:
        _log(store, "s", 1, [1])
    _refuses_when_closed(store)
    ends: list[tuple[str, End]] = [("closed", lambda store: store.close())] if survives_restart else []
    if killed is not None:
        ends.append(("killed", killed))
    for how, end in ends:
        _restart(_Restarts(open_store, next(names), how, end), filters_after_restart)
        _forgotten(_Restarts(open_store, next(names), how, end))
        _all_forgotten(_Restarts(open_store, next(names), how, end))


class _Restarts:
    """A store that is opened, ended and reopened.

    Earlier instances stay referenced, so that none writes during garbage collection.
    """

    def __init__(self, open_store: Open, name: str, how: str, end: End) -> None:
        self._open, self._name, self.how, self._end = open_store, name, how, end
        self.store = open_store(name)
        self._before: list[BookmarkStore] = []

    def again(self) -> BookmarkStore:
        """Return the reopened store, a new object."""
        self._end(self.store)
        self._before.append(self.store)
        self.store = self._open(self._name)
        return self.store

    def same(self, what: str, found: object, wanted: object) -> None:
        """Check equality, and name the kind of end in the error."""
        same(f"{what}, when it was {self.how}", found, wanted)


@contextmanager
def _opened(open_store: Open, name: str) -> Iterator[BookmarkStore]:
    store = open_store(name)
    must(isinstance(store, BookmarkStore), "it lacks methods of BookmarkStore")
    try:
        yield store
    finally:
        store.close()


def _log(store: BookmarkStore, sub_id: str, publisher: int, sequences: Sequence[int]) -> list[int]:
    numbers = np.array(sequences, np.uint64)
    keep = store.log(sub_id, publisher, numbers)
    return list(sequences) if keep is None else [int(n) for n in numbers[keep]]


def _order(store: BookmarkStore) -> None:
    same("most_recent of an unknown id is empty (EPOCH)", store.most_recent("s"), [])
    store.resumed("s")
    same("new messages are delivered", _log(store, "s", 5, [10, 11, 12]), [10, 11, 12])
    same("most_recent without discards is empty (EPOCH)", store.most_recent("s"), [])
    for sub_id, sequence in (("s", 10), ("s", 99), ("t", 10)):
        found = store.is_discarded(sub_id, 5, sequence)
        same(f"is_discarded({sub_id!r}, 5, {sequence}) before any discard", found, False)
    for sequence in (10, 11):
        same("the first discard of a message returns True", store.discard("s", 5, sequence), True)
        same("the second discard of a message returns False", store.discard("s", 5, sequence), False)
        same("discard moves the recovery point", store.most_recent("s"), [Bookmark(5, sequence)])
    same("undiscarded_count after two discards", store.undiscarded_count("s"), 1)
    same("discard of an undelivered message returns False", store.discard("s", 5, 99), False)
    same("discard for an unknown id returns False", store.discard("t", 5, 12), False)


def _gaps(store: BookmarkStore) -> None:
    store.resumed("s")
    _log(store, "s", 5, [1, 2, 3, 4, 5])
    for sequence in (4, 1, 2):
        store.discard("s", 5, sequence)
    same("the recovery point precedes the first gap", store.most_recent("s"), [Bookmark(5, 2)])
    same("is_discarded of a message behind the gap", store.is_discarded("s", 5, 4), True)
    same("is_discarded of the message in the gap", store.is_discarded("s", 5, 3), False)
    store.resumed("s")
    same("only undiscarded messages are redelivered", _log(store, "s", 5, [3, 4, 5, 6]), [3, 5, 6])
    store.discard("s", 5, 3)
    same("a closed gap moves the recovery point", store.most_recent("s"), [Bookmark(5, 4)])
    store.resumed("s", forget_beyond=True)
    same("forget_beyond redelivers all later messages", _log(store, "s", 5, [4, 5, 6]), [5, 6])


def _duplicates(store: BookmarkStore) -> None:
    store.resumed("s")
    _log(store, "s", 5, [1000, 1002])
    same("late messages are duplicates", _log(store, "s", 5, [999, 1001, 1002, 1003]), [1003])
    store.resumed("s")
    found = _log(store, "s", 5, [1000, 1001, 1002, 1003])
    same("undiscarded messages are not duplicates after resumed", found, [1000, 1002, 1003])
    same("redelivered messages are duplicates", _log(store, "s", 5, [1000, 1003]), [])


def _publishers(store: BookmarkStore) -> None:
    store.resumed("s")
    ids, numbers = np.array([1, 2, 1, 2], np.uint64), np.array([2**64 - 2, 7, 2**64 - 1, 8], np.uint64)
    keep = store.log("s", ids, numbers)
    same("publishers are independent", keep is None or bool(keep.all()), True)
    store.discard("s", 2, 7)
    same("the recovery point follows the order of delivery", store.most_recent("s"), [])
    store.discard("s", 1, 2**64 - 2)
    wanted = [Bookmark(1, 2**64 - 2), Bookmark(2, 7)]
    same("a recovery point has one bookmark per publisher", sorted(store.most_recent("s")), wanted)


def _subscriptions(store: BookmarkStore) -> None:
    for sub_id in ("a", "b"):
        store.resumed(sub_id)
        _log(store, sub_id, 1, [1, 2])
    store.discard("a", 1, 1)
    found = store.most_recent("a"), store.most_recent("b")
    same("subscriptions are independent", found, ([Bookmark(1, 1)], []))
    same("subscriptions returns all ids", sorted(store.subscriptions()), ["a", "b"])
    store.purge("a")
    same("purge removes a subscription", (store.most_recent("a"), store.subscriptions()), ([], ["b"]))
    same("a purged subscription starts again", _log(store, "a", 1, [1, 2]), [1, 2])
    store.purge()
    same("purge removes all subscriptions", store.subscriptions(), [])


def _batches(store: BookmarkStore) -> None:
    store.resumed("s")
    _log(store, "s", 1, range(3000))
    many = np.arange(10, 2000, dtype=np.uint64)
    same("discard_all returns the number of messages", store.discard_all("s", 1, many), 1990)
    some = np.arange(0, 20, dtype=np.uint64)
    same("discard_all counts only undiscarded messages", store.discard_all("s", 1, some), 10)
    same("discard_all moves the recovery point", store.most_recent("s"), [Bookmark(1, 1999)])
    same("discard_all keeps other messages", store.undiscarded_count("s"), 1000)


def _notices(store: BookmarkStore) -> None:
    store.resumed("s")
    _log(store, "s", 1, [1])
    store.persisted("s", Bookmark(2, 50))
    same("a notice has no effect before earlier discards", store.most_recent("s"), [])
    store.discard("s", 1, 1)
    same("a notice is in the recovery point", Bookmark(2, 50) in store.most_recent("s"), True)
    store.persisted("s", Bookmark(2, 60))
    same("a notice moves an idle subscription", store.most_recent("s"), [Bookmark(2, 60)])
    same("a message after a notice is new", _log(store, "s", 2, [61]), [61])


def _places(store: BookmarkStore) -> None:
    """Check places and missing messages of servers that replicate."""
    here, other = place_at(70, 5), place_at(71, 9)
    store.started("s", [Bookmark(3, 9), here])
    store.resumed("s")
    same("late messages after a start with places are delivered", _log(store, "s", 1, [5, 9]), [5, 9])
    same("a late message is delivered", _log(store, "s", 1, [7]), [7])
    same("a late message is delivered once", _log(store, "s", 1, [7]), [])
    same("a late message is not discarded", store.is_discarded("s", 1, 7), False)
    for sequence in (5, 7, 9):
        same("a delivered message can be discarded", store.discard("s", 1, sequence), True)
    same("the place of the start is in the recovery point", here in store.most_recent("s"), True)
    store.persisted("s", Bookmark(1, 9), [place_at(70, 8), other], [OpenHoles(1, 9, ((8, 8),))])
    same("the places of a notice are in the recovery point", store.most_recent("s")[-1], other)
    same("a place replaces the one before", place_at(70, 8) in store.most_recent("s"), True)
    same("a hole is before the last bookmark", Bookmark(1, 7) in store.most_recent("s"), True)
    store.resumed("s")
    same("only messages in holes are delivered late", _log(store, "s", 1, [6, 8]), [8])


def _start(store: BookmarkStore) -> None:
    store.started("s", [Bookmark(3, 9)])
    same("the start is the first recovery point", store.most_recent("s"), [Bookmark(3, 9)])
    store.resumed("s")
    _log(store, "s", 1, [1])
    same("the start stays until the first discard", store.most_recent("s"), [Bookmark(3, 9)])
    store.discard("s", 1, 1)
    store.started("s", [Bookmark(3, 1)])
    same("a second start has no effect", store.most_recent("s"), [Bookmark(1, 1)])


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
    same("two threads discard concurrently", store.most_recent("s"), [Bookmark(1, total - 1)])
    same("another thread delivers concurrently", store.undiscarded_count("s"), total)


def _refuses_when_closed(store: BookmarkStore) -> None:
    bookmark = Bookmark(1, 1)
    calls: dict[str, Callable[[], object]] = {
        "started": lambda: store.started("s", [bookmark]),
        "resumed": lambda: store.resumed("s"),
        "log": lambda: store.log("s", 1, np.array([2], np.uint64)),
        "is_discarded": lambda: store.is_discarded("s", 1, 1),
        "discard": lambda: store.discard("s", 1, 1),
        "discard_all": lambda: store.discard_all("s", 1, np.array([1], np.uint64)),
        "persisted": lambda: store.persisted("s", bookmark),
        "most_recent": lambda: store.most_recent("s"),
        "undiscarded_count": lambda: store.undiscarded_count("s"),
        "subscriptions": store.subscriptions,
        "purge": store.purge,
    }
    for name, call in calls.items():
        try:
            call()
        except Closed:
            continue
        raise AssertionError(f"{name} of a closed store does not raise Closed")


def _restart(restarts: _Restarts, filters: bool) -> None:
    store, wants = restarts.store, restarts.same
    store.started("quiet", [Bookmark(9, 9)])
    for sub_id in ("one by one", "many", "noticed"):
        store.resumed(sub_id)
    for publisher, sequences in ((1, [1]), (2, [7]), (1, [2, 3, 4]), (2, [8, 9])):
        _log(store, "one by one", publisher, sequences)
    for publisher, sequence in ((1, 1), (2, 7), (1, 3)):
        store.discard("one by one", publisher, sequence)
    _log(store, "many", 1, range(1, 11))
    store.discard_all("many", 1, np.arange(1, 7, dtype=np.uint64))
    _log(store, "noticed", 1, [1])
    store.discard("noticed", 1, 1)
    store.persisted("noticed", Bookmark(2, 50))
    store = restarts.again()
    known = ["many", "noticed", "one by one", "quiet"]
    wants("all subscriptions survive", sorted(store.subscriptions()), known)
    point = [Bookmark(1, 1), Bookmark(2, 7)]
    wants("recovery points of all publishers survive", sorted(store.most_recent("one by one")), point)
    wants("discards of discard_all survive", store.most_recent("many"), [Bookmark(1, 6)])
    noticed = store.most_recent("noticed")
    wants("a notice survives", (Bookmark(2, 50) in noticed, noticed), (True, noticed))
    wants("starts survive", store.most_recent("quiet"), [Bookmark(9, 9)])
    wants("is_discarded of a discarded message", store.is_discarded("one by one", 1, 1), True)
    wants("is_discarded of an undiscarded message", store.is_discarded("one by one", 1, 2), False)
    for sub_id in ("one by one", "many"):
        store.resumed(sub_id)
    wanted = [2, 4, 5] if filters else [2, 3, 4, 5]
    redelivered = _log(store, "one by one", 1, [1, 2, 3, 4, 5])
    wants("undiscarded messages are redelivered after a restart", redelivered, wanted)
    wants("of the other publisher too", _log(store, "one by one", 2, [7, 8, 9, 10]), [8, 9, 10])
    wants("after discard_all too", _log(store, "many", 1, range(5, 12)), [7, 8, 9, 10, 11])
    store.close()


def _forgotten(restarts: _Restarts) -> None:
    store, wants = restarts.store, restarts.same
    for sub_id in ("a", "b"):
        _discarded(store, sub_id)
    store.purge("a")
    store = restarts.again()
    wants("a purge survives", (store.subscriptions(), store.most_recent("a")), (["b"], []))
    wants("a purge keeps other subscriptions", store.most_recent("b"), [Bookmark(1, 1)])
    wants("a purged subscription starts again", _log(store, "a", 1, [1, 2]), [1, 2])
    store.close()


def _all_forgotten(restarts: _Restarts) -> None:
    store, wants = restarts.store, restarts.same
    for sub_id in ("a", "b"):
        _discarded(store, sub_id)
    store.purge()
    store = restarts.again()
    points = [store.most_recent(sub_id) for sub_id in ("a", "b")]
    wants("a purge of all survives", (store.subscriptions(), points), ([], [[], []]))
    store.close()


def _discarded(store: BookmarkStore, sub_id: str) -> None:
    store.resumed(sub_id)
    _log(store, sub_id, 1, [1])
    store.discard(sub_id, 1, 1)
