"""Power loss for bookmark stores: the durable and the possible contents of the store file.

Must never judge. The store works on a real file. For each sector, the model keeps the last synced content and
all contents since then: any of them may have reached the disk. The model keeps the possible lengths of the
file too and, until the directory is synced, the previous file.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from random import Random
from typing import Final

from tests.simulation.store_disk import PowerLoss
from tickertape.client.bookmark_store.store_file import StoreFile

SECTOR: Final = 512


class Versions:
    """The contents that one file may have after a power loss."""

    def __init__(self, content: bytes) -> None:
        """`content` is durable."""
        self.lengths = [len(content)]
        self.sectors: dict[int, list[bytes]] = {}
        for at in range(0, len(content), SECTOR):
            self.sectors[at] = [content[at : at + SECTOR]]

    def look(self, content: bytes) -> None:
        """Record the current contents: the system may write them out at any time."""
        if self.lengths[-1] != len(content):
            self.lengths.append(len(content))
        for at in range(0, len(content), SECTOR):
            sector = content[at : at + SECTOR]
            versions = self.sectors.setdefault(at, [bytes(SECTOR)])
            if versions[-1] != sector:
                versions.append(sector)

    def synced(self, begin: int, end: int) -> None:
        """These bytes are on the disk as they are now, and the rest of their pages, and the length."""
        self.lengths = self.lengths[-1:]
        for at in range(begin - begin % mmap.PAGESIZE, end + -end % mmap.PAGESIZE, SECTOR):
            if at in self.sectors:
                self.sectors[at] = self.sectors[at][-1:]

    def remains(self, rng: Random) -> bytes:
        """Return one of the possible remains."""
        how = rng.choice(("old", "new", "any", "any"))
        pick = {"old": 0, "new": -1}.get(how)
        length = rng.choice(self.lengths) if pick is None else self.lengths[pick]
        content = bytearray(length)
        for at, versions in self.sectors.items():
            if at < length:
                chosen = (rng.choice(versions) if pick is None else versions[pick])[: length - at]
                content[at : at + len(chosen)] = chosen
        return bytes(content)


class Sheet:
    """The disk of one file through one life. `fails_at`: the operation before which power is lost."""

    def __init__(self, path: Path, fails_at: int) -> None:
        self._path = path
        self._left = fails_at
        self._before: list[Versions | None] = []
        """Previous files that may still be present because the directory was not synced. None: no file."""
        self._now = Versions(path.read_bytes()) if path.exists() else None
        self.syncs = 0

    def tick(self) -> None:
        """Count an operation of the disk, and lose power before the last one."""
        self.look()
        self._left -= 1
        if self._left < 0:
            raise PowerLoss

    def look(self) -> None:
        if self._now is not None:
            self._now.look(self._path.read_bytes())

    def replaced(self) -> None:
        """Another file, which was synced, has the name."""
        self._before.append(self._now)
        self._now = Versions(self._path.read_bytes())

    def directory_synced(self) -> None:
        self._before.clear()

    def synced(self, begin: int, end: int) -> None:
        assert self._now is not None
        self.syncs += 1
        self._now.synced(begin, end)

    def remains(self, rng: Random) -> None:
        """Leave in the file one of the things that may be left."""
        self.look()
        left = rng.choice([*self._before, self._now])
        if left is None:
            self._path.unlink(missing_ok=True)
        else:
            self._path.write_bytes(left.remains(rng))


class StrictFile(StoreFile):
    """The file of a store, on a sheet. Nothing is really synced."""

    def __init__(self, path: str | os.PathLike[str], sheet: Sheet) -> None:
        self._sheet = sheet
        super().__init__(path)

    def reserve(self, keep: int, size: int) -> None:
        self._sheet.tick()
        super().reserve(keep, size)

    def grow(self, size: int) -> None:
        self._sheet.tick()
        super().grow(size)

    def replace(self, content: bytes, size: int) -> None:
        self._sheet.tick()
        super().replace(content, size)

    def _sync_directory(self) -> None:
        self._sheet.replaced()
        self._sheet.tick()
        self._sheet.directory_synced()

    def sync(self, low: int, high: int) -> None:
        self._sheet.tick()
        self._sheet.synced(low, high)

    def close(self, keep: int | None = None) -> None:
        super().close(keep)
        self._sheet.look()
