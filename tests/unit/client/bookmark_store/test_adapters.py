"""Recovery point adapters beside bookmark stores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

import tickertape as tt
from tickertape.batch import BatchBuilder, merge
from tickertape.client.bookmark_store.base import ProgressStore
from tickertape.client.bookmark_store.protocol import columns_of, refuse_own_client
from tickertape.client.bookmark_store.store_file import StoreFile
from tickertape.client.limits import adapter_notices


class Kept:
    """An adapter in a dictionary."""

    def __init__(self, client: object = None) -> None:
        self.client = client
        self.points: dict[str, list[tt.Bookmark]] = {}
        self.updates = 0
        self.threads: set[int] = set()
        self.updated = threading.Event()
        self.closed = False

    def load(self) -> Iterable[tuple[str, Sequence[tt.Bookmark]]]:
        return list(self.points.items())

    def update(self, sub_id: str, bookmarks: Sequence[tt.Bookmark]) -> None:
        self.points[sub_id] = list(bookmarks)
        self.updates += 1
        self.threads.add(threading.get_ident())
        self.updated.set()

    def purge(self, sub_id: str | None = None) -> None:
        if sub_id is None:
            self.points.clear()
        else:
            self.points.pop(sub_id, None)

    def close(self) -> None:
        self.closed = True


Make = Callable[[Path, tt.RecoveryPointAdapter], ProgressStore]
ALL = pytest.mark.parametrize(
    "make",
    [lambda _, adapter: tt.MemoryBookmarkStore(adapter), tt.LoggedBookmarkStore, tt.RingBookmarkStore],
)


def work(store: ProgressStore) -> None:
    store.resumed("s")
    store.log("s", 7, np.arange(1, 9, dtype=np.uint64))
    for sequence in (1, 2, 4):
        store.discard("s", 7, sequence)


@pytest.mark.behaviour(32)
@ALL
def test_adapter_follows_the_store_and_restores_recovery_points(make: Make, tmp_path: Path) -> None:
    kept = Kept()
    with make(tmp_path / "one", kept) as store:
        assert store.adapter is kept
        work(store)
        assert kept.points == {"s": [(7, 2)]}
    assert kept.closed
    with make(tmp_path / "two", kept) as store:  # the file does not exist
        assert store.most_recent("s") == [(7, 2)]
        store.resumed("s")
        keep = store.log("s", 7, np.arange(1, 9, dtype=np.uint64))
        assert keep is not None
        assert keep.nonzero()[0].tolist() == [2, 3, 4, 5, 6, 7]
        assert store.discard_all("s", 7, np.arange(3, 9, dtype=np.uint64)) == 6
    with make(tmp_path / "three", kept) as store:
        assert store.most_recent("s") == [(7, 8)]
        store.purge("s")
        assert kept.points == {}


class Slow(Kept):
    """An adapter whose update waits, and which records calls after its close."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.calls: list[str] = []

    def update(self, sub_id: str, bookmarks: Sequence[tt.Bookmark]) -> None:
        self.entered.set()
        assert self.go_on.wait(10)
        self.calls.append("update")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.behaviour(32)
@ALL
def test_close_of_store_waits_for_a_running_update_of_the_adapter(make: Make, tmp_path: Path) -> None:
    slow = Slow()
    store = make(tmp_path / "one", slow)
    store.resumed("s")
    store.log("s", 7, np.arange(1, 9, dtype=np.uint64))
    discarding = threading.Thread(target=store.discard, args=("s", 7, 1))
    discarding.start()
    assert slow.entered.wait(10)
    closing = [threading.Thread(target=store.close) for _ in range(2)]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(0.1)
    slow.go_on.set()
    for thread in (discarding, *closing):
        thread.join(10)
    assert slow.calls == ["update", "close"]


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("make", [tt.LoggedBookmarkStore, tt.RingBookmarkStore])
def test_concurrent_close_releases_the_file_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[StoreFile] = []
    close = StoreFile.close

    def counting(file: StoreFile, keep: int | None = None) -> None:
        released.append(file)
        if len(released) == 1:
            close(file, keep)

    monkeypatch.setattr(StoreFile, "close", counting)
    slow = Slow()
    store = make(tmp_path / "one", slow)
    store.resumed("s")
    store.log("s", 7, np.arange(1, 9, dtype=np.uint64))
    discarding = threading.Thread(target=store.discard, args=("s", 7, 1))
    discarding.start()
    assert slow.entered.wait(10)
    closing = [threading.Thread(target=store.close) for _ in range(2)]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(0.1)
    slow.go_on.set()
    for thread in (discarding, *closing):
        thread.join(10)
    assert len(released) == 1
    assert slow.calls == ["update", "close"]


@pytest.mark.behaviour(32)
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:12] + b"damaged" + whole[19:],
        lambda whole: whole[:5],
        lambda whole: whole[:9],
        lambda whole: whole[:50],
        lambda whole: bytes(len(whole)),
    ],
)
@pytest.mark.parametrize("make", [tt.LoggedBookmarkStore, tt.RingBookmarkStore])
def test_damaged_store_file_is_restored_from_the_adapter(
    make: Make, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    kept, path = Kept(), tmp_path / "store"
    with make(path, kept) as store:
        work(store)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with make(path, kept) as store:
        assert store.most_recent("s") == [(7, 2)]
    with make(path, kept) as store:  # and the file is whole again
        assert store.most_recent("s") == [(7, 2)]


@pytest.mark.behaviour(32)
@pytest.mark.parametrize(
    "content",
    [
        b"all my notes\n" * 100,
        b"notes",
        b"ttbmlog\0" + b"\2\0" + bytes(54),
        b"ttbmring" + b"\1\0" + bytes(54),
        b"\0" * 100 + b"data",
    ],
)
@pytest.mark.parametrize("make", [tt.LoggedBookmarkStore, tt.RingBookmarkStore])
def test_file_of_another_format_is_never_overwritten(make: Make, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(content)
    with pytest.raises(tt.StoreCorrupt, match=r"it is not|it has format version [12]"):
        make(path, Kept())
    assert path.read_bytes() == content


@pytest.mark.behaviour(32)
def test_store_of_another_kind_is_never_overwritten(tmp_path: Path) -> None:
    makes: list[Make] = [tt.LoggedBookmarkStore, tt.RingBookmarkStore]
    for make, other in (makes, makes[::-1]):
        path = tmp_path / make.__name__
        with make(path, Kept()) as store:
            work(store)
        content = path.read_bytes()
        with pytest.raises(tt.StoreCorrupt, match="it is not"):
            other(path, Kept())
        assert path.read_bytes() == content


@pytest.mark.behaviour(32)
def test_intact_store_file_takes_precedence_over_the_adapter(tmp_path: Path) -> None:
    kept = Kept()
    with tt.LoggedBookmarkStore(tmp_path / "store", kept) as store:
        work(store)
    kept.points["s"] = [tt.Bookmark(7, 1)]
    with tt.LoggedBookmarkStore(tmp_path / "store", kept) as store:
        assert store.most_recent("s") == [(7, 2)]


@pytest.mark.behaviour(32)
def test_adapter_that_uses_the_same_client_is_rejected() -> None:
    client = object()
    store = tt.MemoryBookmarkStore(tt.ConflatingRecoveryPointAdapter(Kept(client)))
    with store, pytest.raises(tt.UsageError, match="separate client for the adapter"):
        refuse_own_client(store, client)
    refuse_own_client(store, object())
    refuse_own_client(tt.MemoryBookmarkStore(), client)


def test_conflating_adapter_passes_on_the_last_update() -> None:
    kept = Kept()
    adapter = tt.ConflatingRecoveryPointAdapter(kept, seconds=60, updates=1_000_000)
    with tt.MemoryBookmarkStore(adapter) as store:
        work(store)
        assert kept.updates == 0
        adapter.flush()
        assert (kept.updates, kept.points) == (1, {"s": [(7, 2)]})
        store.discard("s", 7, 3)
    assert (kept.updates, kept.points) == (2, {"s": [(7, 4)]})
    assert kept.closed


@pytest.mark.parametrize("limits", [{"seconds": "1ms"}, {"seconds": 60, "updates": 2}])
def test_conflating_adapter_passes_on_after_time_or_number_of_updates(limits: dict[str, float | str]) -> None:
    kept = Kept()
    adapter = tt.ConflatingRecoveryPointAdapter(kept, **limits)  # type: ignore[arg-type]
    with tt.MemoryBookmarkStore(adapter) as store:
        work(store)
        assert kept.updated.wait(10)
        assert threading.get_ident() not in kept.threads


def test_exception_of_adapter_is_reported_and_update_is_retried() -> None:
    class Failing(Kept):
        def update(self, sub_id: str, bookmarks: Sequence[tt.Bookmark]) -> None:
            super().update(sub_id, bookmarks)
            if self.updates == 1:
                raise OSError("no network")

    reported: list[Exception] = []
    kept = Failing()
    adapter = tt.ConflatingRecoveryPointAdapter(kept, seconds=60, on_error=reported.append)
    adapter.update("s", [tt.Bookmark(1, 1)])
    adapter.flush()
    assert [str(error) for error in reported] == ["no network"]
    adapter.update("s", [tt.Bookmark(1, 2)])
    adapter.close()
    adapter.close()
    assert kept.points == {"s": [(1, 2)]}
    with pytest.raises(tt.Closed):
        adapter.update("s", [])
    with pytest.raises(tt.BadOption):
        tt.ConflatingRecoveryPointAdapter(kept, seconds=0)


def test_purge_drops_pending_updates_of_conflating_adapter() -> None:
    kept = Kept()
    with tt.MemoryBookmarkStore(tt.ConflatingRecoveryPointAdapter(kept, seconds=60)) as store:
        work(store)
        store.purge("s")
        store.purge()
    assert kept.points == {}


@pytest.mark.behaviour(26)
def test_start_is_the_first_recovery_point() -> None:
    store = tt.MemoryBookmarkStore()
    store.started("s", [tt.Bookmark(3, 9), tt.Bookmark(4, 1)])
    assert store.most_recent("s") == [(3, 9), (4, 1)]


@pytest.mark.behaviour(25)
def test_most_recent_of_unknown_id_is_empty() -> None:
    assert tt.MemoryBookmarkStore().most_recent("never seen") == []


@pytest.mark.parametrize("publishers", [[7], [7, 8]])
def test_store_accepts_columns_of_a_batch(publishers: list[int]) -> None:
    batches = []
    for publisher in publishers:
        builder = BatchBuilder()
        builder.add("orders", b"x")
        builder.add("orders", b"y")
        batches.append(builder.build(publisher=publisher, first_sequence=5, timestamp=1))
    ids, sequences = columns_of(merge(batches))
    store = tt.MemoryBookmarkStore()
    store.resumed("s")
    assert store.log("s", ids, sequences) is None
    assert store.discard_all("s", ids, sequences) == 2 * len(publishers)
    assert store.most_recent("s") == [(publisher, 6) for publisher in publishers]


@ALL
def test_adapter_that_publishes_is_updated_at_every_60th_notice(make: Make, tmp_path: Path) -> None:
    adapter = Kept(client=object())
    with make(tmp_path / "marks", adapter) as store:
        store.resumed("s")
        for sequence in range(1, adapter_notices):
            store.persisted("s", tt.Bookmark(9, sequence))
        assert adapter.points == {}
        store.persisted("s", tt.Bookmark(9, adapter_notices))
        assert adapter.points == {"s": [tt.Bookmark(9, adapter_notices)]}
        updates = adapter.updates
        store.persisted("s", tt.Bookmark(9, adapter_notices + 1))
        store.log("s", 7, np.array([1], np.uint64))
        store.discard("s", 7, 1)
        for sequence in range(2, adapter_notices + 1):
            store.persisted("s", tt.Bookmark(9, adapter_notices + sequence))
        assert adapter.updates == updates + 1
    assert adapter.points["s"][0] == tt.Bookmark(9, 2 * adapter_notices), "close reports the last notice"


class Unreachable(Kept):
    """An adapter that publishes, and whose updates raise an exception of its own."""

    def __init__(self) -> None:
        super().__init__(client=object())

    def update(self, sub_id: str, bookmarks: Sequence[tt.Bookmark]) -> None:
        raise OSError("the network is down")


@pytest.mark.behaviour(32)
@ALL
def test_close_releases_the_store_if_the_last_adapter_update_raises(make: Make, tmp_path: Path) -> None:
    adapter = Unreachable()
    store = make(tmp_path / "store", adapter)
    store.persisted("s", tt.Bookmark(9, 1))  # no update yet
    store.close()
    assert adapter.closed
    with pytest.raises(tt.Closed):
        store.subscriptions()
    make(tmp_path / "store", Kept()).close()  # the file is free
