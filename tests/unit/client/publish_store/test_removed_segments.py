"""Segments of a publish store that the store or another program removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.publish_batches import held_messages, stored
from tickertape.client.limits import publish_segment_bytes
from tickertape.client.publish_store import FilePublishStore, HybridPublishStore
from tickertape.client.publish_store.format import RECORD_BYTES
from tickertape.client.publish_store.hybrid_parts import BacklogFiles


def attached(path: Path) -> BacklogFiles:
    store = BacklogFiles(path)
    store.attach("pricing-1")
    return store


def segments(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.endswith("segment"))


def mapped_but_removed(path: Path) -> list[str]:
    """Return mapped segments without a name, which still use space."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if str(path) in line and line.endswith("(deleted)")]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "full")


def test_removed_segment_after_reads_frees_the_space(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with attached(path) as store:
        store.put(stored(1, b"x" * (publish_segment_bytes // 2)))
        store.put(stored(2, b"y" * (publish_segment_bytes // 2)))
        assert len(segments(path)) == 2
        assert list(held_messages(store)) == [1, 2]  # a reconnect reads the old segment
        store.discard(2)
        assert len(segments(path)) == 1
        assert mapped_but_removed(path) == []


def test_close_on_full_disk_records_settled_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    with attached(path) as store:
        store.put(stored(1, b"1"))
        current = store._current
        assert current is not None
        store.put(stored(2, b"x" * (current.end - current.at - RECORD_BYTES - 200)))
        while current.end - current.at >= RECORD_BYTES:
            store.note_used(3)
        assert store._current is current, "the segment is full"
        monkeypatch.setattr(os, "posix_fallocate", full)
        store.discard(2)
    monkeypatch.undo()
    with attached(path) as store:
        assert store.unpersisted_count() == 0


@pytest.mark.parametrize("make", [FilePublishStore, HybridPublishStore])
def test_store_with_all_segments_missing_raises_store_corrupt(
    tmp_path: Path, make: type[FilePublishStore | HybridPublishStore]
) -> None:
    path = tmp_path / "s"
    with attached(path) as store:
        store.put(stored(1, b"1"))
    for name in segments(path):
        (path / name).unlink()
    with pytest.raises(tt.StoreCorrupt, match="'pricing-1' used it, and all of its segments are missing"):
        make(path)
    with pytest.raises(tt.StoreCorrupt):
        make(path)
    (path / "lock").unlink()
    make(path).close()


def test_unused_store_can_be_reopened(tmp_path: Path) -> None:
    FilePublishStore(tmp_path / "s").close()
    FilePublishStore(tmp_path / "s").close()


@pytest.mark.parametrize("logged_on", [True, False])
def test_first_logon_is_known_after_removal_of_the_recording_segment(logged_on: bool, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with attached(path) as store:
        store.put(stored(1, b"x" * (publish_segment_bytes // 2)))
        if logged_on:
            store.note_logon()
        store.put(stored(2, b"y" * (publish_segment_bytes // 2)))
        store.replace(1, 1, None)
        assert len(segments(path)) == 1
    with FilePublishStore(path) as store:
        assert store.never_logged_on is not logged_on
        assert list(held_messages(store)) == [2]


def test_first_logon_is_recorded_on_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    with attached(path) as store:
        store.put(stored(1, b"1"))
        current = store._current
        assert current is not None
        while current.end - current.at >= RECORD_BYTES:
            store.note_used(3)
        monkeypatch.setattr(os, "posix_fallocate", full)
        store.note_logon()
    with FilePublishStore(path) as store:
        assert not store.never_logged_on
        assert list(held_messages(store)) == [1]


def test_store_with_settled_messages_counts_as_logged_on(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with attached(path) as store:
        store.put(stored(1, b"1"))
        store.put(stored(2, b"2"))
        store.discard(1)  # as by a version that does not record the logon
    with FilePublishStore(path) as store:
        assert not store.never_logged_on
