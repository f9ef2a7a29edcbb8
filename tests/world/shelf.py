"""Disk of one application's machine: the files of its stores, and their remains.

Must never know the published or read messages. The stores work on real files. Written data survives the end
of a process. After a power loss, a `Platter` decides.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, Literal
from unittest.mock import patch

import tickertape as tt
from tests.simulation.store_disk import Platter, StrictDirectory
from tickertape.client.publish_store import file

SEGMENT_BYTES: Final = 64 << 10
"""Of a publish store, which has a few of them then."""
NEVER: Final = 1 << 40
"""A platter that stops no operation: power is lost between two steps."""


class Shelf:
    """A directory through any number of restarts of one process."""

    def __init__(self, room: Path, name: str, rng: Random) -> None:
        self._room = room
        self._name = name
        self._rng = rng
        self._life = 0
        self._platter: Platter | None = None
        self._open: list[Callable[[], None]] = []
        """Calls that release the stores as a forked child does."""

    @property
    def _path(self) -> Path:
        return self._room / f"{self._name}-{self._life}"

    def publish_store(self, sync: Literal["never", "always"]) -> tt.FilePublishStore:
        """Return the publish store. Power may be lost under one that always syncs."""
        self._path.mkdir(exist_ok=True)
        path = self._path / "publishes"
        if sync == "never":
            store = tt.FilePublishStore(path, sync="never")
        else:
            self._platter = platter = Platter(NEVER)
            if path.exists():
                platter.look(path)
                platter.names, platter.known = set(platter.durable), True
            with patch.object(file, "SegmentDirectory", partial(StrictDirectory, platter=platter)):
                store = tt.FilePublishStore(path, sync="always")
        self._open.append(store._refuse_in_child)
        return store

    def bookmark_store(self, kind: str, number: int) -> tt.BookmarkStore:
        """Return the `number`-th bookmark store: `logged` or `ring`."""
        self._path.mkdir(exist_ok=True)
        path = self._path / f"bookmarks-{number}"
        make = tt.LoggedBookmarkStore if kind == "logged" else tt.RingBookmarkStore
        store = make(path)
        self._open += [store._refuse_in_child, store._file.forked]
        return store

    def killed(self) -> None:
        """End the process: the system keeps the written data."""
        self._let_go()

    def power_lost(self) -> None:
        """End the machine: the publish store keeps the synced data, and perhaps some of the rest."""
        old = self._path
        self._life += 1
        self._path.mkdir()
        if self._platter is not None:
            self._platter.remains(old / "publishes", self._path / "publishes", self._rng)
        self._let_go()
        shutil.rmtree(old, ignore_errors=True)

    def _let_go(self) -> None:
        """Release the locks of an ended process, without a write."""
        for release in self._open:
            release()
        self._open.clear()
        self._platter = None
