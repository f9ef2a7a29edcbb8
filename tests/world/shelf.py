"""Owns the disk of one application's machine in a world: the files of its stores, and what is left of them.

Must never know what is published or read. The stores work on real files, as they do anywhere; what survives
the end of a process is what stands in them, and what survives a loss of power is what a `Platter` keeps.
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
    """A directory through any number of lives of one process."""

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
        """The one that it has; power may be lost under one that syncs always."""
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
        """The `number`-th that it has: `logged` or `ring`."""
        self._path.mkdir(exist_ok=True)
        path = self._path / f"bookmarks-{number}"
        make = tt.LoggedBookmarkStore if kind == "logged" else tt.RingBookmarkStore
        store = make(path)
        self._open += [store._refuse_in_child, store._file.forked]
        return store

    def killed(self) -> None:
        """The process ended: the system has what was written."""
        self._let_go()

    def power_lost(self) -> None:
        """The machine ended: the publish store has what was synced, and perhaps some of the rest."""
        old = self._path
        self._life += 1
        self._path.mkdir()
        if self._platter is not None:
            self._platter.remains(old / "publishes", self._path / "publishes", self._rng)
        self._let_go()
        shutil.rmtree(old, ignore_errors=True)

    def _let_go(self) -> None:
        """What the system does when a process is gone: its locks are free, and nothing is written."""
        for release in self._open:
            release()
        self._open.clear()
        self._platter = None
