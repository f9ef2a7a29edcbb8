"""Owns what both bookmark stores with a file do the same way: options, taking the file, whether it is theirs.

Must never know a format beyond its magic and its version.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from tickertape.base.errors import BadOption, StoreCorrupt, StoreOfAnother
from tickertape.client.bookmark_store.base import ProgressStore
from tickertape.client.bookmark_store.heads import check_owner
from tickertape.client.bookmark_store.owner import OWNER_AT, OWNER_END, mark, owner_named
from tickertape.client.bookmark_store.protocol import RecoveryPointAdapter
from tickertape.client.bookmark_store.store_file import StoreFile

Sync = Literal["never", "always"]


class FileBackedStore(ProgressStore, ABC):
    """A bookmark store in one file. Its constructor ends with `_take`."""

    _kind: ClassVar[str]
    """What the store is, for error texts."""
    _again: ClassVar[str]
    """Which messages come again when the file is moved away."""

    def __init__(self, adapter: RecoveryPointAdapter | None, sync: Sync) -> None:
        super().__init__(adapter)
        if sync not in ("never", "always"):
            raise BadOption(f"sync={sync!r}: use 'never' or 'always'")
        self._always = sync == "always"
        self._owner = b""
        self._salt = 0

    @property
    def path(self) -> str:
        """The file."""
        return str(self._file.path)

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of the file in use."""

    def bind_client_name(self, name: str) -> None:
        """The client `name` uses it, and no other one from now on; one without subscriptions is free for
        each. Raises `StoreOfAnother`, `StoreFailed`, `Closed`."""
        owner = owner_named(name)
        with self._lock:
            self._check()
            if owner == self._owner:
                return
            if self._owner and self._progress:
                raise StoreOfAnother(
                    f"Cannot use {self._kind} {self.path} for client {name!r}: it has the positions of "
                    "another client name. Use a file of its own for each name, or forget these positions "
                    "with purge()."
                )
            self._owner = owner
            self._file.map[OWNER_AT:OWNER_END] = mark(owner, self._salt)
            self._file.sync(OWNER_AT, OWNER_END)

    def sync(self) -> None:
        """Make durable what was recorded."""
        with self._lock:
            self._check()
            self._file.sync(0, self.size_bytes)

    @abstractmethod
    def _open(self) -> None:
        """Begin with what the file has."""

    def _take(self, path: str | os.PathLike[str]) -> None:
        self._file = StoreFile(path)
        try:
            self._open()
        except BaseException:
            self._file.close()
            raise

    def _content(self, magic: bytes, version: int, kind: str) -> bytes:
        """What the file has. Raises `StoreCorrupt` when it is not this store's to write over."""
        content = self._file.read() if self._file.exists else b""
        foreign = check_owner(content, magic, version, kind)
        if foreign is not None:
            raise self._unusable(foreign, "")
        return content

    def _unusable(self, why: str, remedy: str) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self.path} cannot be used as {self._kind}: {why}; take another path, {remedy}or move it "
            f"away ({self._again})"
        )
