"""Store files below directories that do not exist yet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tickertape as tt
from tickertape.client.common.directories import make_parents


def test_missing_parents_are_created_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    make_parents(tmp_path / "a" / "b" / "store")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [str(tmp_path), str(tmp_path / "a")]


def test_existing_parents_stay_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: pytest.fail(f"synced {fd}"))
    make_parents(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_stores_create_parent_directories(tmp_path: Path) -> None:
    with tt.FilePublishStore(tmp_path / "p" / "q" / "store"):
        pass
    tt.LoggedBookmarkStore(tmp_path / "l" / "m" / "store").close()
    tt.RingBookmarkStore(tmp_path / "r" / "s" / "store").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l", "p", "r"]


def test_file_in_place_of_parent_directory_raises_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(tt.StoreError):
        tt.FilePublishStore(tmp_path / "file" / "deeper" / "store")
    with pytest.raises(tt.StoreError):
        tt.RingBookmarkStore(tmp_path / "file" / "deeper" / "store")
