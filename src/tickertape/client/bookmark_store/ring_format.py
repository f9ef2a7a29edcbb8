"""File format of a ring bookmark store (docs/formats/bookmark-store.md).

A place is for one subscription: its name, and pairs of slots, the first pair for its start or last notice,
the others for one publisher each. The checksum of a slot covers its position, its file and the holder of the
place, so that what an earlier holder left there is never believed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from crc32c import crc32c

from tickertape.base.bookmarks import Bookmark
from tickertape.client.bookmark_store.progress import Progress

MAGIC: Final = b"ttbmring"
VERSION: Final = 0
HEADER: Final = struct.Struct("<8sHHIII16s")
"""Magic, version, flags, salt, subscriptions, publishers, the run of the machine; then its checksum."""
SYNCED: Final = 1
"""The flag of a file of which each write was synced before the next began."""
HEADER_BYTES: Final = 64
NAME: Final = struct.Struct("<IIQ")
"""Checksum, length of the name, epoch: the version at which the place was taken. The name follows."""
NAME_BYTES: Final = 272
NAME_LENGTH_MAX: Final = 255
SLOT: Final = struct.Struct("<IIQQQQQ")
"""Checksum, zero, version, publisher, sequence; of a publisher the ordinal and zero, of a start the messages
before it and before the one before it."""
BODY: Final = struct.Struct("<IQQQQQ")
SLOT_BYTES: Final = SLOT.size
EMPTY: Final = bytes(SLOT_BYTES)
_COUNT_MAX: Final = (1 << 63) - 1
"""Nobody has counted further: it would not fit into a slot when it goes on."""
_SEED: Final = struct.Struct("<QQI")


class RingCell:
    """A pair of slots. `at` is where the next value goes, `other` where the present one is."""

    __slots__ = ("at", "moved", "other", "other_seed", "publisher", "seed")

    def __init__(self, at: int, epoch: int, salt: int) -> None:
        self.at, self.other = at, at + SLOT_BYTES
        self.seed, self.other_seed = (crc32c(_SEED.pack(p, epoch, salt)) for p in (self.at, self.other))
        self.publisher = -1
        self.moved = -1

    def turn(self) -> None:
        """The next value goes into the other slot."""
        self.at, self.other = self.other, self.at
        self.seed, self.other_seed = self.other_seed, self.seed


class RingValue(NamedTuple):
    """What a slot says."""

    version: int
    publisher: int
    sequence: int
    third: int
    fourth: int


class RingSlot:
    """The part of the file that one subscription has."""

    def __init__(self, number: int, publishers: int, epoch: int, salt: int) -> None:
        self.number = number
        self.start = place_at(number, publishers)
        first = self.start + NAME_BYTES
        self.base = RingCell(first, epoch, salt)
        self.base_written: tuple[object, ...] = ()
        self.spare = [RingCell(first + 2 * SLOT_BYTES * n, epoch, salt) for n in range(publishers, 0, -1)]
        self.cells: dict[int, RingCell] = {}

    def cell_for(self, publisher: int) -> RingCell:
        """The cell of a publisher; of more publishers than there are, the one that came least lately gives
        its own up."""
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
    """What a file says."""

    salt: int
    version: int
    subscriptions: int
    publishers: int
    flags: int
    held: dict[str, tuple[RingSlot, Progress]]
    mended: bytearray | None
    """What has to be in the file, behind its header, before anything is written to it; None: what it has."""


def place_at(number: int, publishers: int) -> int:
    """Where a place begins."""
    return HEADER_BYTES + number * place_bytes(publishers)


def place_bytes(publishers: int) -> int:
    """The size of a place."""
    return NAME_BYTES + 2 * SLOT_BYTES * (publishers + 1)


def header(salt: int, subscriptions: int, publishers: int, boot: bytes, flags: int = 0) -> bytes:
    """The head of a file."""
    head = HEADER.pack(MAGIC, VERSION, flags, salt, subscriptions, publishers, boot)
    return (head + struct.pack("<I", crc32c(head))).ljust(HEADER_BYTES, b"\0")


def name(sub_id: bytes, epoch: int, at: int, salt: int) -> bytes:
    """What a place begins with."""
    body = NAME.pack(0, len(sub_id), epoch)[4:] + sub_id
    return (struct.pack("<I", crc32c(body, crc32c(_SEED.pack(at, 0, salt)))) + body).ljust(NAME_BYTES, b"\0")


def read_ring(content: bytes, boot: bytes) -> Ring | str:
    """What a file says, or what is damaged. It is ours: see `not_ours`. `boot` is the present run of the
    machine: if it is that of the file, no more than one slot can be half written."""
    if len(content) < HEADER_BYTES:
        return f"it ends in its header, after {len(content)} bytes"
    if crc32c(content[: HEADER.size]) != int.from_bytes(content[HEADER.size : HEADER.size + 4], "little"):
        return "its header is damaged"
    _, _, flags, salt, subscriptions, publishers, its_boot = HEADER.unpack_from(content)
    if not subscriptions or not publishers:
        return f"it says that it has room for {subscriptions} subscriptions of {publishers} publishers"
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
            # Else what it holds could come to life again.
            mended = _zeroed(content, mended, at, at + place_bytes(publishers))
            continue
        sub_id, epoch = named
        place = RingSlot(number, publishers, epoch, salt)
        found = _read_place(content, place)
        highest, bad = max(highest, epoch, found.newest), bad + found.bad
        if found.lost and may_lose:
            # A power loss has left a cell of which neither slot is whole. What it said may be where the
            # subscription went on last time, and others may be further: what lies between would be skipped.
            first = at + NAME_BYTES + (0 if place.base in found.lost else 2 * SLOT_BYTES)
            mended = _zeroed(content, mended, first, at + place_bytes(publishers))
            place = RingSlot(number, publishers, epoch, salt)
            found = _read_place(mended, place)
        held[sub_id] = place, found.progress
    if bad > 1 and its_boot == boot:
        return f"it is damaged in {bad} places"
    return Ring(salt, highest, subscriptions, publishers, flags, held, mended)


def _name_at(content: bytes, at: int, salt: int) -> tuple[str, int] | None:
    """The name and the epoch of a place; None when they are not whole."""
    _, length, epoch = NAME.unpack_from(content, at)
    text = content[at + NAME.size : at + NAME.size + length]
    with suppress(UnicodeDecodeError):
        sub_id, bounded = text.decode(), length <= NAME_LENGTH_MAX and epoch <= _COUNT_MAX
        if bounded and name(text, epoch, at, salt) == content[at : at + NAME_BYTES]:
            return sub_id, epoch
    return None


def _zeroed(content: bytes, mended: bytearray | None, begin: int, end: int) -> bytearray:
    """`mended`, which is copied from `content` once, with zeros there."""
    if mended is None:
        mended = bytearray(content)
    mended[begin:end] = bytes(end - begin)
    return mended


class _Read(NamedTuple):
    progress: Progress
    newest: int
    """The highest version."""
    bad: int
    """Slots that are not whole."""
    lost: list[RingCell]
    """Cells of which a slot is not whole, and the other says nothing."""


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
    progress = Progress(max([start.third, *(moved + 1 for moved, _ in values)]))
    progress.number = place.number
    for moved, value in sorted(values):
        progress.restore(value.publisher, value.sequence, moved)
    if start.version:
        point = progress.point
        point.base = (Bookmark(start.publisher, start.sequence),)
        point.at, point.floor = start.third, start.fourth
    return _Read(progress, newest, bad, lost)


def _slots(content: bytes | bytearray, cell: RingCell) -> Iterator[RingValue | None]:
    """The values of a cell; None for a slot that is not whole, a value of version 0 for an empty one."""
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
