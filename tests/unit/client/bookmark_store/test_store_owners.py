"""Binding of bookmark store files to the client name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tickertape as tt
from tickertape.base.errors import StoreOwnerMismatch
from tickertape.client.bookmark_store import LoggedBookmarkStore, RingBookmarkStore
from tickertape.client.bookmark_store.store_file import OWNER_AT, OWNER_END, FileBackedStore

KINDS = [LoggedBookmarkStore, RingBookmarkStore]
every_kind = pytest.mark.parametrize("kind", KINDS)
Kind = Callable[[Path], FileBackedStore]


def used(store: FileBackedStore) -> None:
    """Deliver two messages of publisher 7 and discard the first."""
    store.started("s", [])
    store.log("s", 7, np.array([1, 2], np.uint64))
    store.discard("s", 7, 1)


@every_kind
def test_file_with_positions_is_rejected_for_another_client_name(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path / "s")
    store.bind_client_name("a")
    used(store)
    store.bind_client_name("a")
    store.close()
    again = kind(tmp_path / "s")
    with pytest.raises(StoreOwnerMismatch, match=r"for client 'b'.*purge"):
        again.bind_client_name("b")
    again.bind_client_name("a")
    assert [str(bookmark) for bookmark in again.most_recent("s")] == ["7|1|"]
    again.close()


@every_kind
def test_file_without_positions_is_free_for_each_client_name(kind: Kind, tmp_path: Path) -> None:
    store = kind(tmp_path / "s")
    store.bind_client_name("a")
    store.bind_client_name("b")
    used(store)
    with pytest.raises(StoreOwnerMismatch):
        store.bind_client_name("a")
    store.purge()
    store.bind_client_name("a")
    store.close()


@every_kind
def test_file_of_earlier_version_keeps_positions_and_is_bound_at_first_use(
    kind: Kind, tmp_path: Path
) -> None:
    store = kind(tmp_path / "s")
    used(store)  # never bound, as in earlier versions
    store.close()
    assert (tmp_path / "s").read_bytes()[OWNER_AT:OWNER_END] == bytes(OWNER_END - OWNER_AT)
    store = kind(tmp_path / "s")
    store.bind_client_name("a")
    assert [str(bookmark) for bookmark in store.most_recent("s")] == ["7|1|"]
    store.close()
    store = kind(tmp_path / "s")
    with pytest.raises(StoreOwnerMismatch):
        store.bind_client_name("b")
    store.close()


@every_kind
def test_damaged_binding_counts_as_none(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = kind(path)
    store.bind_client_name("a")
    used(store)
    store.close()
    content = bytearray(path.read_bytes())
    content[OWNER_END - 1] ^= 1
    path.write_bytes(content)
    store = kind(path)
    store.bind_client_name("b")
    assert [str(bookmark) for bookmark in store.most_recent("s")] == ["7|1|"]
    store.close()


def test_pruned_file_keeps_the_binding(tmp_path: Path) -> None:
    store = LoggedBookmarkStore(tmp_path / "s")
    store.bind_client_name("a")
    used(store)
    store.prune()
    store.close()
    store = LoggedBookmarkStore(tmp_path / "s")
    with pytest.raises(StoreOwnerMismatch):
        store.bind_client_name("b")
    store.close()


def test_ring_with_changed_sync_keeps_the_binding(tmp_path: Path) -> None:
    store = RingBookmarkStore(tmp_path / "s")
    store.bind_client_name("a")
    used(store)
    store.close()
    RingBookmarkStore(tmp_path / "s", sync="always").close()  # rewrites the header
    store = RingBookmarkStore(tmp_path / "s", sync="always")
    with pytest.raises(StoreOwnerMismatch):
        store.bind_client_name("b")
    store.close()


@every_kind
@pytest.mark.parametrize("client", [tt.Client, tt.AsyncClient, tt.HAClient, tt.AsyncHAClient])
def test_clients_of_every_kind_bind_the_bookmark_store(
    kind: Kind, client: Callable[..., tt.Client], tmp_path: Path
) -> None:
    store = kind(tmp_path / "s")
    target = {"servers": "tcp://127.0.0.1:1"} if "HA" in str(client) else {"uri": "tcp://127.0.0.1:1"}
    options = target | ({"connect": False} if client is tt.Client else {})
    client("a", bookmark_store=store, **options)
    used(store)
    with pytest.raises(tt.StoreOwnerMismatch):
        client("b", bookmark_store=store, **options)
    client("a", bookmark_store=store, **options)
    store.close()


def test_bookmark_store_without_client_names_is_accepted() -> None:
    made = tt.Client("a", "tcp://127.0.0.1:1", bookmark_store=tt.MemoryBookmarkStore(), connect=False)
    assert made.bookmark_store is not None
