"""File format of a ring bookmark store (docs/formats/bookmark-store.md).

The file has one section per subscription: its name, and pairs of slots. The first pair is for the start or
the last notice, each other pair for one publisher. The checksum of a slot covers its offset, its file and the
current subscription, so that slots of an earlier subscription are never valid.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from tickertape.base.bookmarks import Bookmark, is_place
from tickertape.base.checksum import crc32c
from tickertape.client.bookmark_store.progress import Progress

MAGIC: Final = b"ttbmring"
VERSION: Final = 0
HEADER: Final = struct.Struct("<8sHHIII16s")
"""Magic, version, flags, salt, subscriptions, publishers, boot id. The checksum follows."""
SYNCED: Final = 1
"""Flag of a file in which each write was synced before the next one started."""
HEADER_BYTES: Final = 64
NAME: Final = struct.Struct("<IIQ")
"""Checksum, length of the name, epoch (version at which the section was assigned). The name follows."""
NAME_BYTES: Final = 272
NAME_LENGTH_MAX: Final = 255
SLOT: Final = struct.Struct("<IIQQQQQ")
"""Checksum, zero, version, publisher, sequence, and two numbers.

Publisher slot: its ordinal and zero. Start slot: delivered messages before it and before the previous notice.
"""
BODY: Final = struct.Struct("<IQQQQQ")
SLOT_BYTES: Final = SLOT.size
EMPTY: Final = bytes(SLOT_BYTES)
_COUNT_MAX: Final = (1 << 63) - 1
"""Highest valid counter. A higher one would overflow its slot later."""
_SEED: Final = struct.Struct("<QQI")


class RingCell:
    """A pair of slots. `at` is the offset for the next value, `other` the offset of the current value."""

    __slots__ = ("at", "moved", "other", "other_seed", "publisher", "seed")

    def __init__(self, at: int, epoch: int, salt: int) -> None:
        self.at, self.other = at, at + SLOT_BYTES
        self.seed, self.other_seed = (crc32c(_SEED.pack(p, epoch, salt)) for p in (self.at, self.other))
        self.publisher = -1
        self.moved = -1

    def turn(self) -> None:
        """Swap the slots: the next value goes to the other one."""
        self.at, self.other = self.other, self.at
        self.seed, self.other_seed = self.other_seed, self.seed


class RingValue(NamedTuple):
    """Contents of a slot."""

    version: int
    publisher: int
    sequence: int
    third: int
    fourth: int


class RingSlot:
    """The section of the file for one subscription."""

    def __init__(self, number: int, publishers: int, epoch: int, salt: int) -> None:
        self.number = number
        self.start = place_at(number, publishers)
        first = self.start + NAME_BYTES
        self.base = RingCell(first, epoch, salt)
        self.base_written: tuple[object, ...] = ()
        self.spare = [RingCell(first + 2 * SLOT_BYTES * n, epoch, salt) for n in range(publishers, 0, -1)]
        self.cells: dict[int, RingCell] = {}

    def cell_for(self, publisher: int) -> RingCell:
        """Return the cell of a publisher. If none is free, reuse the cell of the least recent publisher."""
        cell = self.cells.get(publisher)
        if cell is None:
            if self.spare:
                cell = self.spare.pop()
            else:
                cell = self.cells.pop(min(self.cells.values(), key=lambda c: c.moved).publisher)
            cell.publisher = publisher
            self.cells[publisher] = cell
        return cell


class Ring(NamedTuple):
    """Contents of a file."""

    salt: int
    version: int
    subscriptions: int
    publishers: int
    flags: int
    held: dict[str, tuple[RingSlot, Progress]]
    mended: bytearray | None
    """Repaired contents that must replace the file before the first write, or None."""


def place_at(number: int, publishers: int) -> int:
    """Return the offset of a section."""
    return HEADER_BYTES + number * place_bytes(publishers)


def place_bytes(publishers: int) -> int:
    """Return the size of a section."""
    return NAME_BYTES + 2 * SLOT_BYTES * (publishers + 1)


def header(salt: int, subscriptions: int, publishers: int, boot: bytes, flags: int = 0) -> bytes:
    """Return the header of a file."""
    head = HEADER.pack(MAGIC, VERSION, flags, salt, subscriptions, publishers, boot)
    return (head + struct.pack("<I", crc32c(head))).ljust(HEADER_BYTES, b"\0")


def name(sub_id: bytes, epoch: int, at: int, salt: int) -> bytes:
    """Return the bytes of the name at the start of a section."""
    body = NAME.pack(0, len(sub_id), epoch)[4:] + sub_id
    return (struct.pack("<I", crc32c(body, crc32c(_SEED.pack(at, 0, salt)))) + body).ljust(NAME_BYTES, b"\0")


def read_ring(content: bytes, boot: bytes) -> Ring | str:
    """Return the contents of a file, or a description of the damage. The caller has called `check_owner`.

    `boot` is the current boot id. If the file has the same one, at most one slot can be torn.
    """
    if len(content) < HEADER_BYTES:
        return f"its header is truncated after {len(content)} bytes"
    if crc32c(content[: HEADER.size]) != int.from_bytes(content[HEADER.size : HEADER.size + 4], "little"):
        return "its header is damaged"
    _, _, flags, salt, subscriptions, publishers, its_boot = HEADER.unpack_from(content)
    if not subscriptions or not publishers:
        return f"its capacity is {subscriptions} subscriptions with {publishers} publishers"
    if len(content) != place_at(subscriptions, publishers):
        return f"it has {len(content)} bytes instead of {place_at(subscriptions, publishers)}"
    may_lose = its_boot != boot and not flags & SYNCED
    mended: bytearray | None = None
    held: dict[str, tuple[RingSlot, Progress]] = {}
    highest = bad = 0
    for number in range(subscriptions):
        at = place_at(number, publishers)
        if not any(content[at : at + place_bytes(publishers)]):
            continue
        named = _name_at(content, at, salt)
        if named is None:
            bad += any(content[at : at + NAME_BYTES])
            # Otherwise its old slots could become valid again.
            mended = _zeroed(content, mended, at, at + place_bytes(publishers))
            continue
        sub_id, epoch = named
        place = RingSlot(number, publishers, epoch, salt)
        found = _read_place(content, place)
        highest, bad = max(highest, epoch, found.newest), bad + found.bad
        if found.lost and may_lose:
            # Power loss has destroyed both slots of a cell. The lost value may be the point of the last
            # resume, and other cells may be ahead of it: the messages between them would be skipped.
            first = at + NAME_BYTES + (0 if place.base in found.lost else 2 * SLOT_BYTES)
            mended = _zeroed(content, mended, first, at + place_bytes(publishers))
            place = RingSlot(number, publishers, epoch, salt)
            found = _read_place(mended, place)
        held[sub_id] = place, found.progress
    if bad > 1 and its_boot == boot:
        return f"it is damaged in {bad} places"
    return Ring(salt, highest, subscriptions, publishers, flags, held, mended)


def _name_at(content: bytes, at: int, salt: int) -> tuple[str, int] | None:
    """Return the name and the epoch of a section, or None if they are invalid."""
    _, length, epoch = NAME.unpack_from(content, at)
    text = content[at + NAME.size : at + NAME.size + length]
    with suppress(UnicodeDecodeError):
        sub_id, bounded = text.decode(), length <= NAME_LENGTH_MAX and epoch <= _COUNT_MAX
        if bounded and name(text, epoch, at, salt) == content[at : at + NAME_BYTES]:
            return sub_id, epoch
    return None


def _zeroed(content: bytes, mended: bytearray | None, begin: int, end: int) -> bytearray:
    """Return `mended` (by default a copy of `content`) with zeros from `begin` to `end`."""
    if mended is None:
        mended = bytearray(content)
    mended[begin:end] = bytes(end - begin)
    return mended


class _Read(NamedTuple):
    progress: Progress
    newest: int
    """Highest version."""
    bad: int
    """Number of invalid slots."""
    lost: list[RingCell]
    """Cells with an invalid slot and no valid value in the other slot."""


def _read_place(content: bytes | bytearray, place: RingSlot) -> _Read:
    values: list[tuple[int, RingValue]] = []
    newest = bad = 0
    start = RingValue(0, 0, 0, 0, 0)
    spare = []
    lost = []
    for cell in [place.base, *reversed(place.spare)]:
        slots = list(_slots(content, cell))
        bad += slots.count(None)
        best = max((v for v in slots if v is not None and v.version), default=None)
        if best is None and None in slots:
            lost.append(cell)
        newest = max(newest, best.version if best else 0)
        if best is not None and SLOT.unpack_from(content, cell.at)[2:] == tuple(
            best
        ):  # where the next would go
            cell.turn()
        if cell is place.base:
            start = best or start
        elif best is None:
            spare.append(cell)
        else:
            cell.publisher, cell.moved = best.publisher, best.third
            place.cells[best.publisher] = cell
            values.append((best.third, best))
    place.spare = spare[::-1]
    places = [Bookmark(value.publisher, value.sequence) for _, value in values]
    places = [*filter(is_place, places)]
    values = [one for one in values if one[1].publisher not in {at.publisher for at in places}]
    progress = Progress(max([start.third, *(moved + 1 for moved, _ in values)]))
    progress.number = place.number
    progress.start(places)
    for moved, value in sorted(values):
        progress.restore(value.publisher, value.sequence, moved)
    if start.version:
        point = progress.point
        point.base = (Bookmark(start.publisher, start.sequence),)
        point.at, point.floor = start.third, start.fourth
    return _Read(progress, newest, bad, lost)


def _slots(content: bytes | bytearray, cell: RingCell) -> Iterator[RingValue | None]:
    """Yield the values of a cell: None for an invalid slot, a value of version 0 for an empty slot."""
    for at, seed in ((cell.at, cell.seed), (cell.other, cell.other_seed)):
        crc, _, *numbers = SLOT.unpack_from(content, at)
        if content[at : at + SLOT_BYTES] == EMPTY:
            yield RingValue(0, 0, 0, 0, 0)
        elif crc32c(memoryview(content)[at + 4 : at + SLOT_BYTES], seed) == crc:
            value = RingValue(*numbers)
            counted = max(value.version, value.third, value.fourth) <= _COUNT_MAX
            yield value if counted else None
        else:
            yield None
