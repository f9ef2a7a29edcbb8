"""Bookmark stores in a forked child: calls raise, and file and lock of the parent are unaffected."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tickertape as tt
from tickertape.client.bookmark_store.logged import LoggedBookmarkStore

Make = Callable[[Path], LoggedBookmarkStore | tt.RingBookmarkStore]
BOTH = pytest.mark.parametrize("make", [tt.LoggedBookmarkStore, tt.RingBookmarkStore])


def numbers(low: int, high: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.arange(low, high, dtype=np.uint64)


def in_child(work: Callable[[], object]) -> bytes:
    """Return the name of the exception of `work` in a child, empty for none, or `b"hung"` for no end."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        threading.Timer(10, lambda: (os.write(writer, b"hung"), os._exit(1))).start()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            os.write(writer, type(error).__name__.encode())
        os._exit(0)
    os.close(writer)
    received = os.read(reader, 100)
    os.close(reader)
    os.waitpid(child, 0)
    return received


@BOTH
def test_bookmark_store_in_forked_child_raises_and_parent_continues(make: Make, tmp_path: Path) -> None:
    with make(tmp_path / "store") as store:
        store.log("s", 7, numbers(1, 200))
        store.discard("s", 7, 1)
        before = (tmp_path / "store").read_bytes()

        def leave() -> None:
            with store:
                pass

        assert in_child(leave) == b""
        for call in (
            lambda: store.discard("s", 7, 2),
            lambda: store.discard_all("s", 7, numbers(2, 100)),
            lambda: store.log("s", 7, numbers(200, 210)),
            lambda: store.most_recent("s"),
            store.purge,
            store.sync,
        ):
            assert in_child(call) == b"Forked"
        assert (tmp_path / "store").read_bytes() == before
        for low in range(
            200, 2_000, 200
        ):  # up to the end of the mapping, where a truncated file would crash this process
            store.log("s", 7, numbers(low, low + 200))
        store.discard_all("s", 7, numbers(2, 5))
    with make(tmp_path / "store") as store:
        assert store.most_recent("s") == [(7, 4)]


@BOTH
def test_store_lock_is_free_while_a_forked_child_runs_longer(make: Make, tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    alive, end = os.pipe()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)  # so that the end of the parent is the end of the child
        os.write(writer, b"x")
        os.read(alive, 1)
        os._exit(0)
    os.read(reader, 1)
    store.close()
    make(tmp_path / "store").close()
    for descriptor in (end, alive, reader, writer):
        os.close(descriptor)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "make", [tt.LoggedBookmarkStore, tt.RingBookmarkStore, lambda _: tt.MemoryBookmarkStore()]
)
def test_forked_child_does_not_wait_for_locks_of_the_parent(
    make: Callable[[Path], tt.MemoryBookmarkStore], tmp_path: Path
) -> None:
    held, done = threading.Event(), threading.Event()

    class Waiting:
        def load(self) -> list[tuple[str, list[tt.Bookmark]]]:
            return []

        def update(self, sub_id: str, bookmarks: object) -> None:
            held.set()
            done.wait(10)

        def purge(self, sub_id: str | None = None) -> None: ...

        def close(self) -> None: ...

    store = make(tmp_path / "store")
    store.adapter = Waiting()
    thread = threading.Thread(target=store.started, args=("s", [tt.Bookmark(7, 1)]))
    thread.start()
    held.wait(10)
    assert in_child(lambda: store.discard("s", 7, 1)) == b"Forked"
    assert in_child(store.close) == b""
    done.set()
    thread.join()
    assert store.most_recent("s") == [(7, 1)]
    store.close()


def test_fork_in_resize_handler_leaves_the_file_unchanged(tmp_path: Path) -> None:
    received: list[bytes] = []
    children: list[int] = []

    def fork(store: LoggedBookmarkStore, size: int) -> None:
        reader, writer = os.pipe()
        child = os.fork()
        children.append(child)
        if child:
            os.close(writer)
            received.append(os.read(reader, 100))
            os.close(reader)
            os.waitpid(child, 0)
        else:
            received.append(str(writer).encode())

    with tt.LoggedBookmarkStore(tmp_path / "store") as store:
        store.on_resize(fork)
        parent = os.getpid()
        low = 1
        try:
            while not received:
                store.log("s", 7, numbers(low, low + 1_000)[::2])
                low += 1_000
        except BaseException as error:
            if os.getpid() != parent:
                os.write(int(received[0]), type(error).__name__.encode())
                os._exit(0)
            raise
        finally:
            if os.getpid() != parent:
                os._exit(1)
        assert received == [b"Forked"]
        before = store.undiscarded_count("s")
    with tt.LoggedBookmarkStore(tmp_path / "store") as store:
        assert store.undiscarded_count("s") == before


def test_conflating_adapter_in_forked_child_passes_nothing_on() -> None:
    read, write = os.pipe()

    class Notifying:
        def load(self) -> list[tuple[str, list[tt.Bookmark]]]:
            return []

        def update(self, sub_id: str, bookmarks: object) -> None:
            os.write(write, b"x")

        def purge(self, sub_id: str | None = None) -> None: ...

        def close(self) -> None: ...

    adapter = tt.ConflatingRecoveryPointAdapter(Notifying(), seconds=60)
    adapter.update("s", [tt.Bookmark(7, 1)])
    assert in_child(adapter.flush) == b"Forked"
    assert in_child(lambda: adapter.update("s", [])) == b"Forked"
    assert in_child(adapter.close) == b""
    adapter.close()
    os.close(write)
    assert os.read(read, 10) == b"x"
    os.close(read)
