"""Files of bookmark stores: locks, foreign and damaged files, growth, pruning."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from crc32c import crc32c

import tickertape as tt
from tests.helpers.processes import source_environment
from tickertape.client.bookmark_store import log_format as records
from tickertape.client.bookmark_store import ring_format as cells
from tickertape.client.bookmark_store.base import ProgressStore
from tickertape.client.bookmark_store.logged import LoggedBookmarkStore

GOLDEN = Path(__file__).parents[3] / "golden"
Make = Callable[[Path], LoggedBookmarkStore | tt.RingBookmarkStore]
BOTH = pytest.mark.parametrize("make", [tt.LoggedBookmarkStore, tt.RingBookmarkStore])


def deliver(store: ProgressStore, low: int, high: int, publisher: int = 7) -> list[int]:
    numbers = np.arange(low, high, dtype=np.uint64)
    keep = store.log("s", publisher, numbers)
    found: list[int] = (numbers if keep is None else numbers[keep]).tolist()
    return found


def story(store: ProgressStore) -> None:
    store.started("s", [tt.Bookmark(1, 1)])
    store.resumed("s")
    deliver(store, 1, 9)
    for sequence in (1, 2, 5):
        store.discard("s", 7, sequence)
    store.persisted("s", tt.Bookmark(1, 5))


@pytest.mark.behaviour(31)
@pytest.mark.slow
@BOTH
def test_second_owner_of_store_file_raises_store_locked(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with make(path):
        with pytest.raises(tt.StoreLocked, match=f"process {os.getpid()}"):
            make(path)
        code = f"import tickertape as tt; tt.{make.__name__}({str(path)!r})"
        result = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            env=source_environment(),
        )
        assert "StoreLocked" in result.stderr
    make(path).close()


@BOTH
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"#!/bin/sh\nexit 0\n" * 20, "it is not"),
        (records.MAGIC, "header is truncated|it is not"),
        (cells.MAGIC, "header is truncated|it is not"),
        (records.header(1, bytes(16)).replace(b"\1", b"\2"), "header is damaged|it is not"),
        (cells.header(1, 1, 1, bytes(16)).replace(b"\1", b"\2"), "header is damaged|it is not"),
        (cells.header(1, 1, 1, bytes(16)), "bytes instead of|it is not"),
    ],
)
def test_foreign_or_damaged_file_raises_and_stays_unchanged(
    make: Make, content: bytes, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    if content[:8] == records.MAGIC and content[8:] and make is not tt.LoggedBookmarkStore:
        why = "it is not"
    path.write_bytes(content)
    with pytest.raises(tt.StoreCorrupt, match=why):
        make(path)
    assert path.read_bytes() == content


@BOTH
def test_newer_format_version_raises_store_corrupt(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "store"
    make(path).close()
    content = bytearray(path.read_bytes())
    struct.pack_into("<H", content, 8, 9)
    head = records.HEADER if make is tt.LoggedBookmarkStore else cells.HEADER
    struct.pack_into("<I", content, head.size, crc32c(bytes(content[: head.size])))
    path.write_bytes(content)
    with pytest.raises(tt.StoreCorrupt, match="version 9"):
        make(path)


@BOTH
def test_system_error_at_open_raises_store_failed(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(tt.StoreFailed, match="Not a directory"):
        make(tmp_path / "file" / "store")
    (tmp_path / "folder").mkdir()
    with pytest.raises(tt.StoreFailed):
        make(tmp_path / "folder")


@BOTH
def test_closed_store_raises_closed(make: Make, tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    store.close()
    store.close()
    for call in (
        store.subscriptions,
        store.sync,
        lambda: store.discard("s", 1, 1),
        lambda: store.resumed("s"),
    ):
        with pytest.raises(tt.Closed):
            call()


@BOTH
def test_invalid_store_options_raise_bad_option(make: Make, tmp_path: Path) -> None:
    with pytest.raises(tt.BadOption, match="sync"):
        make(tmp_path / "store", sync="sometimes")  # type: ignore[call-arg]
    with pytest.raises(tt.BadOption, match="publishers"):
        tt.RingBookmarkStore(tmp_path / "ring", publishers=0)
    with pytest.raises(tt.BadOption, match="prune_size"):
        tt.LoggedBookmarkStore(tmp_path / "log", prune_size=0)


@pytest.mark.behaviour(31)
@pytest.mark.slow
def test_log_truncated_at_any_byte_loses_progress_and_gains_none(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with tt.LoggedBookmarkStore(path) as store:
        story(store)
    content = path.read_bytes()
    for end in range(records.HEADER_BYTES, len(content)):
        path.write_bytes(content[:end])
        with tt.LoggedBookmarkStore(path) as store:
            store.resumed("s")
            assert {3, 4, 6, 7, 8} <= set(deliver(store, 1, 9))
            assert store.most_recent("s") in ([], [(1, 1)], [(7, 1)], [(7, 2)])
            store.discard("s", 7, 3)  # the store is writable
        with tt.LoggedBookmarkStore(path) as store:
            assert store.is_discarded("s", 7, 3)


@pytest.mark.slow
def test_flipped_byte_of_log_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with tt.LoggedBookmarkStore(path) as store:
        story(store)
    content = path.read_bytes()
    log = records.read_log(content, records.read_header(content)[0])  # type: ignore[arg-type]
    assert log.end == len(content)
    last = max(at for at in range(64, len(content), 8) if records._record_at(content, at, store._salt))
    for at in range(len(content)):
        if records.HEADER.size + 4 <= at < records.HEADER_BYTES:
            continue  # unused zeros
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        if at < last:
            with pytest.raises(tt.StoreCorrupt):
                tt.LoggedBookmarkStore(path)
        else:  # as after an incomplete write
            with tt.LoggedBookmarkStore(path) as store:
                assert store.most_recent("s") == [(7, 2)]


def test_zeros_in_log_after_machine_restart_count_as_end_of_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with tt.LoggedBookmarkStore(path) as store:
        story(store)
    content = bytearray(path.read_bytes())
    content[200:208] = bytes(8)
    path.write_bytes(content)
    monkeypatch.setattr("tickertape.client.bookmark_store.logged.boot_id", lambda: b"another run".ljust(16))
    with tt.LoggedBookmarkStore(path) as store:
        store.resumed("s")
        assert {3, 4, 6, 7, 8} <= set(deliver(store, 1, 9))


@pytest.mark.slow
def test_ring_with_one_bad_slot_uses_the_previous_and_two_bad_slots_raise(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with tt.RingBookmarkStore(path, subscriptions=1, publishers=2) as store:
        story(store)
    content = path.read_bytes()
    for at in range(cells.HEADER_BYTES, len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        with tt.RingBookmarkStore(path) as store:
            assert store.most_recent("s") in ([], [(1, 1)], [(7, 1)], [(7, 2)])
            store.resumed("s")
            assert {3, 4, 5, 6, 7, 8} <= set(deliver(store, 1, 9))
    first = cells.HEADER_BYTES + cells.NAME_BYTES
    bad = bytearray(content)
    bad[first + 9] ^= 1
    bad[first + cells.SLOT_BYTES * 2 + 9] ^= 1
    path.write_bytes(bad)
    with pytest.raises(tt.StoreCorrupt, match="damaged in 2 places"):
        tt.RingBookmarkStore(path)


@pytest.mark.parametrize("sync", ["never", "always"])
def test_ring_after_power_loss_with_lost_slot_pair_trusts_other_slots_only_if_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Literal["never", "always"]
) -> None:
    """The lost slots may hold the last start of the subscription. If each write is synced, they can only
    hold an unfinished first write of a publisher."""
    path = tmp_path / "store"
    with tt.RingBookmarkStore(path, subscriptions=1, publishers=2, sync=sync) as store:
        for publisher in (1, 2, 2):
            store.log("s", publisher, np.array([store.undiscarded_count("s") + publisher], np.uint64))
        store.discard("s", 1, 1)
        for sequence in (3, 4):
            store.discard("s", 2, sequence)
        assert store.most_recent("s") == [(1, 1), (2, 4)]
    content = bytearray(path.read_bytes())
    content[cells.HEADER_BYTES + cells.NAME_BYTES + 2 * cells.SLOT_BYTES + 9] ^= 1
    path.write_bytes(content)
    with tt.RingBookmarkStore(path, sync=sync) as store:
        assert store.most_recent("s") == [(2, 4)], "the machine has not lost power"
    monkeypatch.setattr("tickertape.client.bookmark_store.ring.boot_id", lambda: b"another run".ljust(16))
    for _ in range(2):
        with tt.RingBookmarkStore(path, sync=sync) as store:
            assert store.most_recent("s") == ([] if sync == "never" else [(2, 4)])


def test_ring_subscription_with_lost_name_stays_removed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with tt.RingBookmarkStore(path, subscriptions=1, publishers=2) as store:
        story(store)
        assert store.most_recent("s")
    content = bytearray(path.read_bytes())
    first = cells.HEADER_BYTES
    named = bytes(content[first : first + cells.NAME_BYTES])
    content[first : first + cells.NAME_BYTES] = bytes(cells.NAME_BYTES)
    path.write_bytes(content)
    with tt.RingBookmarkStore(path) as store:
        assert store.most_recent("s") == []
    content = bytearray(path.read_bytes())
    content[first : first + cells.NAME_BYTES] = named
    path.write_bytes(content)
    with tt.RingBookmarkStore(path) as store:
        assert store.most_recent("s") == [], "the data of the lost name is gone"


def test_ring_limits_subscriptions_and_keeps_the_newest_publishers(tmp_path: Path) -> None:
    with tt.RingBookmarkStore(tmp_path / "ring", subscriptions=1, publishers=2) as store:
        store.resumed("s")
        for publisher in range(5):
            deliver(store, 1, 2, publisher)
            store.discard("s", publisher, 1)
        with pytest.raises(tt.BookmarkStoreFull, match=r"capacity is 1 .* create another file with more"):
            store.resumed("another")
        assert store.subscriptions() == ["s"]
        size = store.size_bytes
    assert (tmp_path / "ring").stat().st_size == size
    with tt.RingBookmarkStore(tmp_path / "ring") as store:
        assert store.most_recent("s") == [(3, 1), (4, 1)]
        store.purge("s")
        store.resumed("another")
    with tt.RingBookmarkStore(tmp_path / "ring") as store:
        assert store.subscriptions() == ["another"]
        assert store.most_recent("another") == []


def test_ring_with_subscription_id_of_256_bytes_asks_for_a_shorter_id(tmp_path: Path) -> None:
    with tt.RingBookmarkStore(tmp_path / "ring") as store:
        with pytest.raises(tt.BookmarkStoreFull, match=r"has 256 bytes\. Use an id of at most 255 bytes\.$"):
            store.resumed("s" * 256)
        store.resumed("s" * 255)
        assert store.subscriptions() == ["s" * 255]


@pytest.mark.parametrize("sync", ["never", "always"])
@pytest.mark.parametrize(("kind", "most"), [(tt.LoggedBookmarkStore, 1), (tt.RingBookmarkStore, 2)])
def test_purge_of_all_subscriptions_needs_no_more_syncs_than_purge_of_one(
    kind: type[LoggedBookmarkStore | tt.RingBookmarkStore],
    most: int,
    sync: Literal["never", "always"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    synced: list[tuple[int, int]] = []
    with kind(tmp_path / "store", sync=sync) as store:
        monkeypatch.setattr(store._file, "sync", lambda low, high: synced.append((low, high)))
        for wanted in (1, 40):
            for number in range(wanted):
                store.resumed(f"s{number}")
            synced.clear()
            store.purge()
            assert len(synced) == most, f"of {wanted}"
        store.resumed("s")
        synced.clear()
        store.purge("another")
        assert not synced, "nothing was purged"
    with kind(tmp_path / "store") as store:
        assert store.subscriptions() == ["s"]


@pytest.mark.behaviour(31)
@pytest.mark.slow
def test_resize_handler_may_prune(tmp_path: Path) -> None:
    sizes: list[int] = []

    def prune(store: LoggedBookmarkStore, size: int) -> None:
        sizes.append(size)
        store.prune()

    with tt.LoggedBookmarkStore(tmp_path / "store", prune_size="1GB") as store:
        store.on_resize(prune)
        story(store)
        for low in range(9, 40_009, 1000):
            deliver(store, low, low + 1000)
            for sequence in range(low, low + 1000):
                store.discard("s", 7, sequence)
        assert sizes
        assert store.size_bytes < 16 * 40_000
        assert store.most_recent("s") == [(7, 2)]


def test_exception_of_resize_handler_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def refuse(_: LoggedBookmarkStore, size: int) -> None:
        raise RuntimeError(size)

    with tt.LoggedBookmarkStore(path) as store:
        store.on_resize(refuse)
        story(store)
        with pytest.raises(RuntimeError):
            store.log("s", 7, np.arange(100, 200_000, 2, dtype=np.uint64))
        store.on_resize(None)
        store.discard("s", 7, 3)
    with tt.LoggedBookmarkStore(path) as store:
        assert store.most_recent("s") == [(7, 3)]
        assert store.undiscarded_count("s") == 4 + 99_950


def test_store_on_full_disk_raises_and_continues_with_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"

    def no_space(_fd: int, _offset: int, _length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with tt.LoggedBookmarkStore(path) as store:
        story(store)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", no_space)
            with pytest.raises(tt.StoreFailed, match="No space left"):
                store.log("s", 7, np.arange(100, 200_000, 2, dtype=np.uint64))
            with pytest.raises(tt.StoreFailed, match="No space left"):
                store.discard("s", 7, 3)  # the file is behind memory, so the store rewrites it
            assert not store.is_discarded("s", 7, 3)
        assert store.discard("s", 7, 3)
    with tt.LoggedBookmarkStore(path) as store:
        assert store.most_recent("s") == [(7, 3)]
        assert store.undiscarded_count("s") == 4 + 99_950


def test_log_after_restart_knows_that_discards_were_forgotten(tmp_path: Path) -> None:
    with tt.LoggedBookmarkStore(tmp_path / "store") as store:
        story(store)
        store.resumed("s", forget_beyond=True)
        assert deliver(store, 1, 6) == [3, 4, 5]
    with tt.LoggedBookmarkStore(tmp_path / "store") as store:
        assert store.most_recent("s") == [(7, 2)]
        assert store.undiscarded_count("s") == 3
        store.resumed("s")
        assert deliver(store, 1, 9) == [3, 4, 5, 6, 7, 8]


@pytest.mark.slow
def test_log_prunes_at_the_prune_size(tmp_path: Path) -> None:
    with tt.LoggedBookmarkStore(tmp_path / "store", prune_size="512KB") as store:
        store.resumed("s")
        for low in range(0, 100_000, 1000):
            deliver(store, low, low + 1000)
            for sequence in range(low, low + 1000):
                store.discard("s", 7, sequence)
        assert (tmp_path / "store").stat().st_size <= 1 << 20
        assert store.most_recent("s") == [(7, 99_999)]


@pytest.mark.parametrize("name", ["bookmarks-log.bin", "bookmarks-ring.bin"])
def test_golden_files_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    path.write_bytes((GOLDEN / name).read_bytes())
    store: ProgressStore
    store = tt.LoggedBookmarkStore(path) if "log" in name else tt.RingBookmarkStore(path)
    with store:
        assert store.most_recent("s") == [(7, 2)]
        store.resumed("s")
        assert deliver(store, 1, 9) == ([3, 4, 6, 7, 8] if "log" in name else [3, 4, 5, 6, 7, 8])


@pytest.mark.parametrize("kind", ["logged", "ring"])
def test_written_files_equal_the_golden_files(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("random_salt", 7), ("boot_id", bytes(range(16)))):
        monkeypatch.setattr(f"tickertape.client.bookmark_store.{kind}.{name}", lambda value=value: value)
    path = tmp_path / "store"
    store: ProgressStore
    if kind == "logged":
        store, golden = tt.LoggedBookmarkStore(path), GOLDEN / "bookmarks-log.bin"
    else:
        store, golden = (
            tt.RingBookmarkStore(path, subscriptions=1, publishers=2),
            GOLDEN / "bookmarks-ring.bin",
        )
    with store:
        story(store)
    if os.environ.get("TICKERTAPE_GOLDEN") == "write":
        golden.write_bytes(path.read_bytes())
    assert path.read_bytes() == golden.read_bytes()


def test_ring_after_restart_keeps_progress_beyond_a_closed_gap(tmp_path: Path) -> None:
    with tt.RingBookmarkStore(tmp_path / "ring") as store:
        store.resumed("s")
        store.log("s", 1, np.array([1, 2, 3, 4, 5], np.uint64))
        for sequence in (1, 3, 4, 2):  # the last one closes the gap before two others
            assert store.discard("s", 1, sequence)
    with tt.RingBookmarkStore(tmp_path / "ring") as store:
        assert store.most_recent("s") == [tt.Bookmark(1, 4)]


def refusing(store: LoggedBookmarkStore | tt.RingBookmarkStore, name: str) -> Callable[..., None]:
    def refuse(*_: int) -> None:
        raise tt.StoreFailed(f"{name} of {store.path} was refused")

    return refuse


@pytest.mark.parametrize("sub_id", ["s1", None])
@pytest.mark.parametrize("sync", ["never", "always"])
@pytest.mark.parametrize("kind", [tt.LoggedBookmarkStore, tt.RingBookmarkStore])
def test_purge_after_failed_purge_completes(
    kind: type[tt.LoggedBookmarkStore | tt.RingBookmarkStore],
    tmp_path: Path,
    sync: Literal["never", "always"],
    sub_id: str | None,
) -> None:
    """The second call does not rely on memory, and the capacity is free afterwards."""
    full = 4
    path = tmp_path / "store"
    if kind is tt.RingBookmarkStore:
        tt.RingBookmarkStore(path, subscriptions=full, sync=sync).close()
    with kind(path, sync=sync) as store:
        for number in range(full):
            store.resumed(f"s{number}")
        real_sync: Callable[[int, int], None] = store._file.sync
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store._file, "sync", refusing(store, "sync"))
            with pytest.raises(tt.StoreFailed):
                store.purge(sub_id)
        synced: list[tuple[int, int]] = []

        def syncs(low: int, high: int) -> None:
            synced.append((low, high))
            real_sync(low, high)

        pruned = store._salt
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store._file, "sync", syncs)
            store.purge(sub_id)
        assert synced or store._salt != pruned, "neither synced nor rewritten"
        for number in range(1 if sub_id else full):
            store.resumed(f"new {number}")
    with kind(path, sync=sync) as store:
        left = {"s0", "s2", "s3", "new 0"} if sub_id else {f"new {number}" for number in range(full)}
        assert set(store.subscriptions()) == left


def test_failed_directory_sync_of_prune_keeps_later_discards(tmp_path: Path) -> None:
    with tt.LoggedBookmarkStore(tmp_path / "store") as store:
        story(store)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store._file, "_sync_directory", refusing(store, "sync of the directory"))
            with pytest.raises(tt.StoreFailed):
                store.prune()
        store.discard("s", 7, 3)
        recent = store.most_recent("s")
        copied = tmp_path / "copy"
        copied.write_bytes((tmp_path / "store").read_bytes())
    with tt.LoggedBookmarkStore(copied) as store:
        assert store.most_recent("s") == recent
        store.resumed("s")
        assert deliver(store, 1, 9) == [4, 6, 7, 8]
