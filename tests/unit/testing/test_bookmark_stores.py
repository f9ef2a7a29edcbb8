"""The bookmark store checks reject stores that lose state or give false answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tickertape as tt
from tickertape.base.bookmarks import Bookmark
from tickertape.client.bookmark_store.progress import Mask, Publishers, UInt64s
from tickertape.client.bookmark_store.store_file import FileBackedStore
from tickertape.testing import check_bookmark_store
from tickertape.wire.link_rows import OpenHoles

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


class Recorded(tt.MemoryBookmarkStore):
    """Records each call that changes something on a shelf, and makes them again when it is opened."""

    def __init__(self, shelves: dict[str, list[Call]], name: str) -> None:
        super().__init__()
        self.shelf = shelves.setdefault(name, [])
        self.replaying = True
        for call, arguments, options in list(self.shelf):
            getattr(self, call)(*arguments, **options)
        self.replaying = False

    def changed(self, call: str, *arguments: Any, **options: Any) -> None:
        if not self.replaying:
            self.keep((call, arguments, options))

    def keep(self, call: Call) -> None:
        self.shelf.append(call)

    def started(self, sub_id: str, bookmarks: Sequence[Bookmark]) -> None:
        super().started(sub_id, bookmarks)
        self.changed("started", sub_id, bookmarks)

    def resumed(self, sub_id: str, *, forget_beyond: bool = False) -> None:
        super().resumed(sub_id, forget_beyond=forget_beyond)
        self.changed("resumed", sub_id, forget_beyond=forget_beyond)

    def log(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> Mask | None:
        keep = super().log(sub_id, publishers, sequences)
        self.changed("log", sub_id, publishers, sequences)
        return keep

    def discard(self, sub_id: str, publisher: int, sequence: int) -> bool:
        done = super().discard(sub_id, publisher, sequence)
        self.changed("discard", sub_id, publisher, sequence)
        return done

    def discard_all(self, sub_id: str, publishers: Publishers, sequences: UInt64s) -> int:
        done = super().discard_all(sub_id, publishers, sequences)
        self.changed("discard_all", sub_id, publishers, sequences)
        return done

    def persisted(
        self,
        sub_id: str,
        bookmark: Bookmark,
        places: Sequence[Bookmark] = (),
        holes: Sequence[OpenHoles] | None = None,
    ) -> None:
        super().persisted(sub_id, bookmark, places, holes)
        self.changed("persisted", sub_id, bookmark, places, holes)

    def purge(self, sub_id: str | None = None) -> None:
        super().purge(sub_id)
        self.changed("purge", sub_id)


def nothing(_: tt.BookmarkStore) -> None:
    """The end of a process, for a store that may be opened twice."""


def check(kind: type[Recorded], **options: Any) -> None:
    check_bookmark_store(partial(kind, {}), **options)


def test_check_bookmark_store_accepts_store_that_records_each_change() -> None:
    check(Recorded, killed=nothing)


class RecordsWhenClosed(Recorded):
    def __init__(self, shelves: dict[str, list[Call]], name: str) -> None:
        self.waiting: list[Call] = []
        super().__init__(shelves, name)

    def keep(self, call: Call) -> None:
        self.waiting.append(call)

    def close(self) -> None:
        super().close()
        self.shelf += self.waiting
        self.waiting = []


class ForgetsDiscardAll(Recorded):
    def keep(self, call: Call) -> None:
        if call[0] != "discard_all":
            super().keep(call)


class ForgetsNotices(Recorded):
    def keep(self, call: Call) -> None:
        if call[0] != "persisted":
            super().keep(call)


class ForgetsPublishers(Recorded):
    """All but the first one of a subscription."""

    def keep(self, call: Call) -> None:
        name, arguments, _ = call
        if name in ("log", "discard") and isinstance(arguments[1], int):
            logged = [kept[1] for kept in self.shelf if kept[0] == "log" and kept[1][0] == arguments[0]]
            if logged and not np.array_equal(logged[0][1], arguments[1]):
                return
        super().keep(call)


class ForgetsPurgeOfAll(Recorded):
    def keep(self, call: Call) -> None:
        if call[:2] != ("purge", (None,)):
            super().keep(call)


class ForgetsPurges(Recorded):
    def keep(self, call: Call) -> None:
        if call[0] != "purge":
            super().keep(call)


class PurgesTooMuch(Recorded):
    def keep(self, call: Call) -> None:
        self.shelf.append(("purge", (None,), {}) if call[0] == "purge" else call)


class ForgetsSubscriptions(Recorded):
    """All but the first one."""

    def keep(self, call: Call) -> None:
        if call[0] == "purge" or not self.shelf or call[1][0] == self.shelf[0][1][0]:
            super().keep(call)


class ReportsAllAsDiscarded(Recorded):
    def is_discarded(self, sub_id: str, publisher: int, sequence: int) -> bool:
        super().is_discarded(sub_id, publisher, sequence)
        return True


class AnswersWhenClosed(Recorded):
    def undiscarded_count(self, sub_id: str) -> int:
        return 0 if self._closed else super().undiscarded_count(sub_id)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ForgetsDiscardAll, "discards of discard_all survive, when it was closed"),
        (ForgetsNotices, "a notice survives, when it was closed"),
        (ForgetsPublishers, "recovery points of all publishers survive, when it was closed"),
        (ForgetsPurgeOfAll, "a purge of all survives, when it was closed"),
        (ForgetsPurges, "a purge survives, when it was closed"),
        (PurgesTooMuch, "a purge survives, when it was closed"),
        (ForgetsSubscriptions, "all subscriptions survive, when it was closed"),
        (ReportsAllAsDiscarded, r"is_discarded\('s', 5, 10\) before any discard: True"),
        (AnswersWhenClosed, "undiscarded_count of a closed store does not raise Closed"),
    ],
)
def test_check_bookmark_store_rejects_store_with_lost_state_or_false_answers(
    kind: type[Recorded], text: str
) -> None:
    with pytest.raises(AssertionError, match=text):
        check(kind)


def test_check_bookmark_store_with_killed_rejects_store_that_writes_only_at_close() -> None:
    check(RecordsWhenClosed)
    with pytest.raises(AssertionError, match="all subscriptions survive, when it was killed"):
        check(RecordsWhenClosed, killed=nothing)


def test_check_bookmark_store_rejects_object_without_store_methods() -> None:
    wrong: Callable[[str], Any] = lambda _: object()  # noqa: E731
    with pytest.raises(AssertionError, match="it lacks methods of BookmarkStore"):
        check_bookmark_store(wrong)


def process_ended(store: tt.BookmarkStore) -> None:
    assert isinstance(store, FileBackedStore)
    store._file.forked()


@pytest.mark.parametrize("sync", ["never", pytest.param("always", marks=pytest.mark.slow)])
def test_stores_on_disk_pass_check_bookmark_store_with_killed_process(tmp_path: Path, sync: Any) -> None:
    check_bookmark_store(
        lambda name: tt.LoggedBookmarkStore(tmp_path / name, sync=sync), killed=process_ended
    )
    check_bookmark_store(
        lambda name: tt.RingBookmarkStore(tmp_path / f"ring-{name}", sync=sync),
        filters_after_restart=False,
        killed=process_ended,
    )
