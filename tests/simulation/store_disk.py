"""Power loss for publish stores: the durable and the possible contents of the disk.

Must never judge. The store works on real files. For each sector, the model keeps the last synced content and
all contents written since: any of them may have reached the disk. The same holds for each name created or
removed since the directory was synced.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from random import Random
from typing import Final

from tickertape.client.publish_store.segments import SegmentDirectory

SECTOR: Final = 512
_SUFFIX: Final = ".segment"


class PowerLoss(BaseException):
    """Power loss: the process is gone, and unsynced data may be lost."""


class Platter:
    """The contents of the disk. `fails_at` is the number of the operation before which power is lost."""

    def __init__(self, fails_at: int) -> None:
        self.left = fails_at
        self.names: set[str] = set()
        """Names that are certainly on the disk."""
        self.durable: dict[str, bytearray] = {}
        self.perhaps: dict[str, dict[int, list[bytes]]] = {}
        """By file and offset of a sector: contents written since its last sync."""
        self._seen: dict[str, bytes] = {}
        self.known = False
        """Whether the name of the directory itself is durable."""

    def tick(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise PowerLoss

    def look(self, path: Path) -> None:
        """Record the current contents of the files: the system may write them out at any time."""
        for name in _segments(path):
            data = (path / name).read_bytes()
            if name not in self.durable:
                # It was synced before it got its name.
                self.durable[name], self.perhaps[name] = bytearray(data), {}
                continue
            if self._seen.get(name) == data:
                continue
            self._seen[name] = data
            before, perhaps = self.durable[name], self.perhaps[name]
            for at in range(0, len(data), SECTOR):
                sector = data[at : at + SECTOR]
                versions = perhaps.get(at)
                last = versions[-1] if versions else before[at : at + SECTOR]
                if sector != last:
                    perhaps.setdefault(at, []).append(sector)

    def flushed(self, name: str, data: bytes, begin: int, end: int) -> None:
        """These bytes of a file are on the disk, and the rest of their pages."""
        begin -= begin % mmap.PAGESIZE
        end = min(end + -end % mmap.PAGESIZE, len(data))
        self.durable[name][begin:end] = data[begin:end]
        for at in range(begin, end, SECTOR):
            self.perhaps[name].pop(at, None)

    def remains(self, path: Path, target: Path, rng: Random) -> None:
        """Write the remaining store of `path` to `target`."""
        self.look(path)
        present = set(_segments(path))
        if not self.known and rng.random() < 0.5:
            return
        target.mkdir()
        how = rng.choice(("old", "new", "any", "any"))
        for name in sorted(self.names | present):
            if name in self.names & present or _chosen(how, rng):
                data = self.durable[name][:]
                for at, versions in self.perhaps[name].items():
                    if how == "any":
                        chosen = rng.choice([data[at : at + SECTOR], *versions])
                        data[at : at + len(chosen)] = chosen
                    elif how == "new":
                        data[at : at + len(versions[-1])] = versions[-1]
                (target / name).write_bytes(data)


def _chosen(how: str, rng: Random) -> bool:
    return {"old": False, "new": True}.get(how, rng.random() < 0.5)


def _segments(path: Path) -> list[str]:
    return [name for name in os.listdir(path) if name.endswith(_SUFFIX)] if path.exists() else []


class StrictDirectory(SegmentDirectory):
    """A store's directory that syncs to a platter."""

    def __init__(self, path: str | Path, platter: Platter) -> None:
        self._platter = platter
        self._mapped: list[tuple[mmap.mmap, str]] = []
        super().__init__(path)

    def create(self, number: int, size: int, header: bytes, *, durable: bool) -> mmap.mmap:
        assert durable
        self._step()
        memory = super().create(number, size, header, durable=False)
        self._mapped.append((memory, Path(self.file(number)).name))
        self.sync()
        return memory

    def open(self, number: int) -> mmap.mmap:
        memory = super().open(number)
        self._mapped.append((memory, Path(self.file(number)).name))
        return memory

    def remove(self, number: int) -> None:
        self._step()
        super().remove(number)

    def sync(self) -> None:
        self._step()
        self._platter.names = set(_segments(self.path))
        self._platter.known = True

    def flush(self, memory: mmap.mmap, begin: int, end: int) -> None:
        self._step()
        name = next(name for mapped, name in self._mapped if mapped is memory)
        self._platter.flushed(name, memory[:], begin, end)

    def _step(self) -> None:
        self._platter.look(self.path)
        self._platter.tick()
