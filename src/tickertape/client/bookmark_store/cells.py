"""Owns the layout of a ring bookmark store (docs/formats/bookmark-store.md): places, slots, their meaning.

Must never touch a file. A place is for one subscription: its name, and pairs of slots, the first pair for its
start or last notice, the others for one publisher each. The checksum of a slot covers where it stands, in
which file, and for which holder of the place, so that what an earlier one left there is never believed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from tickertape.base.bookmarks import Bookmark
from tickertape.client.bookmark_store.progress import Progress

MAGIC: Final = b"ttbmring"
VERSION: Final = 0
HEADER: Final = struct.Struct("<8sHHIII16s")
"""Magic, version, zero, salt, subscriptions, publishers, the run of the machine; then its checksum."""
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


class Cell:
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


class Value(NamedTuple):
    """What a slot says."""

    version: int
    publisher: int
    sequence: int
    third: int
    fourth: int


class Place:
    """The part of the file that one subscription has."""

    def __init__(self, number: int, publishers: int, epoch: int, salt: int) -> None:
        self.number = number
        self.start = place_at(number, publishers)
        first = self.start + NAME_BYTES
        self.base = Cell(first, epoch, salt)
        self.base_written: tuple[object, ...] = ()
        self.spare = [Cell(first + 2 * SLOT_BYTES * n, epoch, salt) for n in range(publishers, 0, -1)]
        self.cells: dict[int, Cell] = {}

    def cell_for(self, publisher: int) -> Cell:
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
    held: dict[str, tuple[Place, Progress]]


def place_at(number: int, publishers: int) -> int:
    """Where a place begins."""
    return HEADER_BYTES + number * place_bytes(publishers)


def place_bytes(publishers: int) -> int:
    """The size of a place."""
    return NAME_BYTES + 2 * SLOT_BYTES * (publishers + 1)


def header(salt: int, subscriptions: int, publishers: int, boot: bytes) -> bytes:
    """The head of a file."""
    head = HEADER.pack(MAGIC, VERSION, 0, salt, subscriptions, publishers, boot)
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
    _, _, _, salt, subscriptions, publishers, its_boot = HEADER.unpack_from(content)
    if not subscriptions or not publishers:
        return f"it says that it has room for {subscriptions} subscriptions of {publishers} publishers"
    if len(content) != place_at(subscriptions, publishers):
        return f"it has {len(content)} bytes instead of {place_at(subscriptions, publishers)}"
    held: dict[str, tuple[Place, Progress]] = {}
    highest = bad = 0
    for number in range(subscriptions):
        at = place_at(number, publishers)
        if not any(content[at : at + NAME_BYTES]):
            continue
        _, length, epoch = NAME.unpack_from(content, at)
        text = content[at + NAME.size : at + NAME.size + length]
        sub_id = _text(text)
        if (
            sub_id is None
            or length > NAME_LENGTH_MAX
            or epoch > _COUNT_MAX
            or name(text, epoch, at, salt) != content[at : at + NAME_BYTES]
        ):
            bad += 1
            continue
        place = Place(number, publishers, epoch, salt)
        progress, newest, wrong = _read_place(content, place)
        highest, bad = max(highest, epoch, newest), bad + wrong
        held[sub_id] = place, progress
    if bad > 1 and its_boot == boot:
        return f"it is damaged in {bad} places"
    return Ring(salt, highest, subscriptions, publishers, held)


def _text(name: bytes) -> str | None:
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None


def _read_place(content: bytes, place: Place) -> tuple[Progress, int, int]:
    values: list[tuple[int, Value]] = []
    newest = bad = 0
    start = Value(0, 0, 0, 0, 0)
    spare = []
    for cell in [place.base, *reversed(place.spare)]:
        found = []
        for value in _slots(content, cell):
            bad += value is None
            found += [value] if value is not None else []
        best = max((v for v in found if v.version), default=None)
        newest = max(newest, best.version if best else 0)
        if best is not None and _is_at(content, cell, best):
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
    return progress, newest, bad


def _slots(content: bytes, cell: Cell) -> Iterator[Value | None]:
    """The values of a cell; None for a slot that is not whole, a value of version 0 for an empty one."""
    for at, seed in ((cell.at, cell.seed), (cell.other, cell.other_seed)):
        crc, _, *numbers = SLOT.unpack_from(content, at)
        if content[at : at + SLOT_BYTES] == EMPTY:
            yield Value(0, 0, 0, 0, 0)
        elif crc32c(memoryview(content)[at + 4 : at + SLOT_BYTES], seed) == crc:
            value = Value(*numbers)
            counted = max(value.version, value.third, value.fourth) <= _COUNT_MAX
            yield value if counted else None
        else:
            yield None


def _is_at(content: bytes, cell: Cell, value: Value) -> bool:
    """Whether the present value lies where the next one would go."""
    return SLOT.unpack_from(content, cell.at)[2:] == tuple(value)
