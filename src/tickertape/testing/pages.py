"""Contents of one simulated file: visible, durable and unsynced data.

Contents are dictionaries of immutable 4 KiB pages. Clones share them until one of them writes, so a crash
clone copies only unsynced data. Zeros that were never written take no memory. All random numbers come from
the caller.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final, NamedTuple

from tickertape.base.interfaces import Buffer

SECTOR_BYTES: Final = 512
"""Bytes that a disk writes atomically."""
PAGE_BYTES: Final = 4096
_ZERO_PAGE: Final = bytes(PAGE_BYTES)
_ZERO_SECTOR: Final = bytes(SECTOR_BYTES)


class DiskPages:
    """Bytes of a file, sparse and copied on write. Bytes beyond `size` are zeros, except during a crash."""

    __slots__ = ("_pages", "_shared", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pages: dict[int, bytes] = {}
        self._shared = False

    def fork(self) -> DiskPages:
        """Return an independent copy that shares memory until either side changes."""
        twin = DiskPages()
        twin.size = self.size
        twin._pages = self._pages
        twin._shared = self._shared = True
        return twin

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end of the file."""
        stop = min(offset + size, self.size)
        if stop <= offset:
            return b""
        first, last = offset // PAGE_BYTES, (stop - 1) // PAGE_BYTES
        start = offset - first * PAGE_BYTES
        get = self._pages.get
        if first == last:
            return get(first, _ZERO_PAGE)[start : start + stop - offset]
        whole = b"".join([get(i, _ZERO_PAGE) for i in range(first, last + 1)])
        return whole if len(whole) == stop - offset else whole[start : start + stop - offset]

    def put(self, offset: int, data: Buffer) -> list[bytes]:
        """Store `data` at `offset` without a change of `size`. Return the changed pages."""
        if self._shared:
            self._pages = dict(self._pages)
            self._shared = False
        pages = self._pages
        touched = []
        view = memoryview(data)
        index, start = divmod(offset, PAGE_BYTES)
        done = 0
        while done < len(view):
            piece = view[done : done + PAGE_BYTES - start]
            if len(piece) == PAGE_BYTES:
                page = bytes(piece)
            else:
                old = pages.get(index, _ZERO_PAGE)
                page = b"".join((old[:start], piece, old[start + len(piece) :]))
            pages[index] = page
            touched.append(page)
            done += len(piece)
            index += 1
            start = 0
        return touched

    def resize(self, size: int) -> None:
        """Set the size and remove all bytes beyond it."""
        if size < self.size:
            self.cut(size)
        self.size = size

    def cut(self, size: int) -> None:
        """Remove all bytes at and beyond `size`."""
        keep, rest = divmod(size, PAGE_BYTES)
        pages = {i: page for i, page in self._pages.items() if i < keep or (i == keep and rest)}
        if rest and keep in pages:
            pages[keep] = pages[keep][:rest] + bytes(PAGE_BYTES - rest)
        self._pages = pages
        self._shared = False
        self.size = min(self.size, size)

    def place(self, index: int, images: list[bytes]) -> None:
        """Store whole pages from page `index` without a change of `size`."""
        if self._shared:
            self._pages = dict(self._pages)
            self._shared = False
        self._pages.update(enumerate(images, index))

    def sector(self, number: int) -> bytes:
        """Return the 512 bytes of a sector, independent of `size`."""
        page = self._pages.get(number * SECTOR_BYTES // PAGE_BYTES)
        if page is None:
            return _ZERO_SECTOR
        start = number * SECTOR_BYTES % PAGE_BYTES
        return page[start : start + SECTOR_BYTES]


class _Change(NamedTuple):
    """One unsynced change. A write keeps its pages for sectors that survive a crash."""

    start: int
    stop: int
    """Equal to `start` if only the size changed."""
    images: list[bytes]
    size: int | None
    """New size of the file, or None if unchanged."""

    def sectors(self) -> range:
        return range(self.start // SECTOR_BYTES, -(-self.stop // SECTOR_BYTES))

    def image(self, first: int, stop: int) -> bytes:
        """Return the sectors `first` up to `stop` after this write."""
        base = self.start // PAGE_BYTES * PAGE_BYTES
        return b"".join(self.images)[first * SECTOR_BYTES - base : stop * SECTOR_BYTES - base]


class Harm(NamedTuple):
    """Damage of a file, independent of syncs."""

    how: str
    start: int
    stop: int
    """End of the unreadable bytes, for damage of that kind."""
    before: FileState
    """The undamaged file, for a later repair."""


class FileState:
    """One file: reads return `view`, a crash keeps `durable`, and `changes` lead from one to the other."""

    __slots__ = ("allocated", "changes", "dropped", "durable", "harm", "view")

    def __init__(self, contents: DiskPages | None = None) -> None:
        self.durable = contents or DiskPages()
        self.view = self.durable.fork()
        self.changes: list[_Change] = []
        self.dropped: dict[int, bytes] = {}
        """Sectors that a failed sync marked as clean: readable, but no later sync writes them."""
        self.allocated = self.view.size
        self.harm: Harm | None = None

    def suffer(self, how: str, start: int, stop: int) -> None:
        """Apply the damage: `zeros` and `empty` replace the contents, `unreadable` keeps them."""
        self.harm = Harm(how, start, stop, self.kill_clone())
        if how != "unreadable":
            pages = DiskPages()
            pages.size = self.view.size if how == "zeros" else 0
            self.become(FileState(pages))

    def become(self, other: FileState) -> None:
        """Copy the contents of `other`, with their durability."""
        self.durable, self.view = other.durable.fork(), other.view.fork()
        self.changes, self.dropped = list(other.changes), dict(other.dropped)

    def kill_clone(self) -> FileState:
        """Return a copy of the file for the next process, with its unsynced changes."""
        twin = FileState(self.durable.fork())
        twin.view = self.view.fork()
        twin.changes = list(self.changes)
        twin.dropped = dict(self.dropped)
        twin.allocated = self.allocated
        twin.harm = self.harm
        return twin

    def write(self, offset: int, data: Buffer) -> None:
        stop = offset + len(data)
        size = None
        if stop > self.view.size:
            self.view.size = size = stop
        self.changes.append(_Change(offset, stop, self.view.put(offset, data), size))
        harm = self.harm
        if harm is not None and (harm.how != "unreadable" or self._covered(harm, offset, stop)):
            self.harm = None  # the drive stores new data in other sectors

    def _covered(self, harm: Harm, offset: int, stop: int) -> bool:
        return offset <= harm.start and min(harm.stop, self.view.size) <= stop

    def resize(self, size: int) -> None:
        if size != self.view.size:
            if self.harm is not None and self.harm.how != "unreadable":
                self.harm = None
            self.view.resize(size)
            self.changes.append(_Change(0, 0, [], size))

    def sync(self) -> None:
        """Make every change durable, except sectors that an earlier failed sync dropped."""
        durable = self.durable
        for change in self.changes:
            if change.size is not None:
                durable.resize(change.size)
                if self.dropped:
                    end = -(-change.size // SECTOR_BYTES)
                    self.dropped = {n: image for n, image in self.dropped.items() if n < end}
            if not change.images:
                continue
            if not self.dropped:
                durable.place(change.start // PAGE_BYTES, change.images)
                continue
            sectors = change.sectors()
            durable.put(sectors.start * SECTOR_BYTES, change.image(sectors.start, sectors.stop))
            for number in sectors:
                self.dropped.pop(number, None)
        self.changes.clear()

    def fail_sync(self) -> int:
        """Simulate a failed write-back: pages count as clean. Return the number of dropped sectors."""
        sizes = []
        before = len(self.dropped)
        for change in self.changes:
            if change.images:
                self.dropped.update((number, self.view.sector(number)) for number in change.sectors())
            if change.size is not None:
                sizes.append(_Change(0, 0, [], change.size))
        self.changes = sizes
        return len(self.dropped) - before

    def crash(self, rng: Random, counts: Counter[str]) -> DiskPages:
        """Return possible contents after power loss. This file stays unchanged."""
        pages = self.durable.fork()
        if self.dropped:
            chance = _chance(rng)
            for number, image in self.dropped.items():
                kept = rng.random() < chance
                counts["dropped_sector_kept" if kept else "dropped_sector_lost"] += 1
                if kept:
                    pages.put(number * SECTOR_BYTES, image)
        sizes = sum(change.size is not None for change in self.changes)
        # the file system journals sizes in order: a later one never survives without the earlier ones
        surviving = rng.choice((0, sizes, rng.randint(0, sizes))) if sizes else 0
        for change in self.changes:
            if change.size is not None:
                counts["size_new" if surviving > 0 else "size_old"] += 1
                if surviving > 0:
                    pages.resize(change.size)
                surviving -= 1
            if change.images:
                self._crash_write(pages, change, rng, counts)
        if sizes or self.dropped:
            pages.cut(pages.size)
        return pages

    def _crash_write(self, pages: DiskPages, change: _Change, rng: Random, counts: Counter[str]) -> None:
        sectors = change.sectors()
        chance = _chance(rng)
        if chance >= 1.0:
            counts["sector_kept"] += len(sectors)
            pages.put(sectors.start * SECTOR_BYTES, change.image(sectors.start, sectors.stop))
            return
        if chance <= 0.0:
            counts["sector_lost"] += len(sectors)
            return
        bound = int(chance * 256)
        image = change.image(sectors.start, sectors.stop)
        for i, draw in enumerate(rng.randbytes(len(sectors))):
            number = sectors.start + i
            if draw < bound:
                counts["sector_kept"] += 1
                pages.put(number * SECTOR_BYTES, image[i * SECTOR_BYTES : (i + 1) * SECTOR_BYTES])
            elif draw & 1 and self.durable.sector(number) == _ZERO_SECTOR:
                # allocated, never synced: an earlier unsynced write of this sector is lost too
                counts["sector_zeroed"] += 1
                pages.put(number * SECTOR_BYTES, _ZERO_SECTOR)
            else:
                counts["sector_lost"] += 1


def _chance(rng: Random) -> float:
    """Return the probability that a sector of a write survives. All, none and mixtures must be common."""
    return rng.choice((0.0, 1.0, 0.5, rng.uniform(0.05, 0.95)))
