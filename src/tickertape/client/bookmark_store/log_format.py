"""Record format of a logged bookmark store (docs/formats/bookmark-store.md).

A record has 16 bytes, or 16 bytes and a payload padded to a multiple of 8. Its checksum covers its offset and
the salt of its file, so that stale bytes are never read as a record. Bytes without a checksum are ignored.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tickertape.base.bookmarks import Bookmark
from tickertape.base.checksum import crc32c
from tickertape.base.text_format import said
from tickertape.client.bookmark_store.progress import (
    DELIVERED,
    DISCARDED,
    EXPECTED,
    MIXED,
    Numbers,
    Pending,
    Progress,
    ProgressBlock,
    Publishers,
    UInt64s,
)
from tickertape.client.limits import bookmark_window_messages_max

if TYPE_CHECKING:
    from tickertape.wire.link_rows import OpenHoles

MAGIC: Final = b"ttbmlog\0"
VERSION: Final = 1
PLACES_VERSION: Final = 1
"""First version with records of servers that replicate. Files without them have version 0."""
HEADER: Final = struct.Struct("<8sHHI16s")
"""Magic, version, zero, salt, boot id. The checksum and zeros up to `HEADER_BYTES` follow."""
HEADER_BYTES: Final = 64
RECORD: Final = struct.Struct("<IIQ")
"""Checksum, kind and subscription, value (an ordinal, or the length of the payload)."""
BODY: Final = struct.Struct("<IQ")
RECORD_BYTES: Final = RECORD.size
_U64: Final = struct.Struct("<Q")
_PAIR: Final = struct.Struct("<QQ")
_DELIVERY: Final = struct.Struct("<QIIQ")
_PROGRESS: Final = struct.Struct("<QQQIIII")
_PENDING: Final = struct.Struct("<QQQ")
_MIXED: Final = 1
_RANGE: Final = 2
_STATES: Final = 4
_LATE: Final = 8
_PLACED: Final = struct.Struct("<QQIIII")
"""Publisher and sequence of the bookmark, 1 if the point moves, 1 if holes are known, places, publishers."""
_OF_PUBLISHER: Final = struct.Struct("<QQQ")
"""Publisher, a sequence, and the number of rows."""
_MISSING: Final = struct.Struct("<IIIIII")
"""1 if deliveries are recorded, places of the point and of its two notices, publishers with holes, and
publishers with recent deliveries."""
_CRC_MASK: Final = 0xFFFFFFFF
_WITHOUT_EXPECTED: Final = bytes([DELIVERED, DISCARDED, DELIVERED]) + bytes(range(3, 256))
assert EXPECTED == 2
_NONE: Final = 2**64 - 1


class RecordKind(IntEnum):
    """Kind of a record of a subscription."""

    DISCARD = 1
    NAME = 2
    DELIVERY = 3
    DISCARDS = 4
    START = 5
    NOTICE = 6
    FORGET = 7
    PURGE = 8
    PROGRESS = 9
    PLACED = 10
    MISSING = 11


class BookmarkLog(NamedTuple):
    """Contents of a log file. `end`: offset behind the last record. `beyond`: offset of a later valid record,
    or None."""

    subscriptions: dict[str, Progress]
    end: int
    beyond: int | None


class BadRecord(Exception):
    """A record with a valid checksum and invalid contents: another program wrote it."""


# -- writing ------------------------------------------------------------------------------------------


def header(salt: int, boot: bytes, version: int = 0) -> bytes:
    """Return the header of a file."""
    head = HEADER.pack(MAGIC, version, 0, salt, boot)
    return (head + struct.pack("<I", crc32c(head))).ljust(HEADER_BYTES, b"\0")


def record(kind: RecordKind, number: int, payload: bytes, at: int, salt: int) -> bytes:
    """Return the bytes of a record for offset `at`."""
    body = BODY.pack(kind | number << 8, len(payload)) + payload + bytes(-len(payload) % 8)
    return struct.pack("<I", crc32c(body, (salt + at) & _CRC_MASK)) + body


def delivery(base: int, publishers: Publishers, sequences: UInt64s, *, late: bool = False) -> bytes:
    """Return the payload of `DELIVERY`."""
    count, first = len(sequences), int(sequences[0])
    mixed = not isinstance(publishers, int)
    ranged = int(sequences[-1]) - first == count - 1 and bool((np.diff(sequences) == 1).all())
    publisher = publishers if isinstance(publishers, int) else 0
    flags = mixed * _MIXED | ranged * _RANGE | late * _LATE
    parts = [_DELIVERY.pack(base, count, flags, publisher)]
    if not isinstance(publishers, int):
        parts.append(np.ascontiguousarray(publishers, np.uint64).tobytes())
    parts.append(_U64.pack(first) if ranged else np.ascontiguousarray(sequences, np.uint64).tobytes())
    return b"".join(parts)


def pairs(members: Iterable[tuple[int, int]]) -> bytes:
    """Return the payload of `DISCARDS` (ranges), or of `START` and `NOTICE` (bookmarks)."""
    return b"".join(_PAIR.pack(*member) for member in members)


def placed(bookmark: Bookmark | None, places: Sequence[Bookmark], holes: Sequence[OpenHoles] | None) -> bytes:
    """Return the payload of `PLACED`: a notice of a server that replicates."""
    found = holes or ()
    publisher, sequence = bookmark or (0, 0)
    counts = bookmark is not None, holes is not None, len(places), len(found)
    parts = [_PLACED.pack(publisher, sequence, *counts), pairs(places)]
    for one in found:
        parts += [_OF_PUBLISHER.pack(one.publisher, one.highest, len(one.ranges)), pairs(one.ranges)]
    return b"".join(parts)


def _missing(progress: Progress) -> bytes:
    """Return the payload of `MISSING`."""
    point, missing = progress.point, progress.missing
    places = [[*point.places.values()]]
    places += [[] if one is None else [*one.places] for one in (point.pending, point.newest)]
    parts = [_MISSING.pack(missing.exact, *map(len, places), len(missing.holes), len(missing.recent))]
    parts += [pairs(some) for some in places]
    for publisher, ranges in missing.holes.items():
        parts += [_OF_PUBLISHER.pack(publisher, 0, len(ranges)), pairs(ranges)]
    for publisher, recent in missing.recent.items():
        parts.append(_OF_PUBLISHER.pack(publisher, recent.mark + 1, len(recent.parts)))
        for part in recent.parts:
            if isinstance(part, range):
                parts.append(_PAIR.pack(part.start, len(part)))
            else:
                parts += [_PAIR.pack(_NONE, len(part)), np.array(part, np.uint64).tobytes()]
    return b"".join(parts)


def _block(block: ProgressBlock, low: int) -> bytes:
    """Return the payload of `DELIVERY` for the messages of a block from `low` on."""
    base, publisher, sequences = block.base + low, block.publisher, block.sequences[low:]
    publishers = None if block.publishers is None else block.publishers[low:]
    states = bytes(block.states[low:])
    ranged = isinstance(sequences, range)
    flags = (publishers is not None) * _MIXED | ranged * _RANGE | _STATES | block.late * _LATE
    parts = [_DELIVERY.pack(base, len(sequences), flags, 0 if publisher == MIXED else publisher)]
    if publishers is not None:
        parts.append(np.array(publishers, np.uint64).tobytes())
    parts.append(_U64.pack(sequences[0]) if ranged else np.array(sequences, np.uint64).tobytes())
    parts.append(states.translate(_WITHOUT_EXPECTED))
    return b"".join(parts)


def _pending(pending: Pending | None) -> bytes:
    if pending is None:
        return _PENDING.pack(_NONE, 0, 0)
    return _PENDING.pack(pending.delivered, *pending.bookmark)


def version_of(subscriptions: dict[str, Progress]) -> int:
    """Return the lowest version of a file of these subscriptions."""
    return PLACES_VERSION if any(one.has_places for one in subscriptions.values()) else 0


def snapshot(subscriptions: dict[str, Progress], salt: int, boot: bytes) -> bytes:
    """Return a compacted file with the current state of `subscriptions`."""
    parts = [header(salt, boot, version_of(subscriptions))]
    at = HEADER_BYTES

    def add(kind: RecordKind, number: int, payload: bytes) -> None:
        nonlocal at
        parts.append(record(kind, number, payload, at, salt))
        at += len(parts[-1])

    for sub_id, progress in subscriptions.items():
        add(RecordKind.NAME, progress.number, sub_id.encode())
        add(RecordKind.PROGRESS, progress.number, _state(progress))
        for block in progress.blocks:
            low = max(0, progress.head - block.base)
            add(RecordKind.DELIVERY, progress.number, _block(block, low))
        if progress.has_places:
            add(RecordKind.MISSING, progress.number, _missing(progress))
    return b"".join(parts)


def _state(progress: Progress) -> bytes:
    moved = list(progress.moved())
    point = progress.point
    point.reached(progress.head)
    head = _PROGRESS.pack(progress.head, point.at, point.floor, len(moved), len(point.base), 0, 0)
    rows = b"".join(_PENDING.pack(*entry) for entry in moved)
    return head + _pending(point.pending) + _pending(point.newest) + pairs(point.base) + rows


# -- reading ------------------------------------------------------------------------------------------


def read_header(content: bytes) -> tuple[int, bytes] | str:
    """Return salt and boot id, or a description of the damage. The caller has called `check_owner`."""
    if len(content) < HEADER_BYTES:
        return f"its header is truncated after {len(content)} bytes"
    if crc32c(content[: HEADER.size]) != int.from_bytes(content[HEADER.size : HEADER.size + 4], "little"):
        return "its header is damaged"
    _, _, _, salt, boot = HEADER.unpack_from(content)
    return salt, boot


def read_log(content: bytes, salt: int) -> BookmarkLog:
    """Return the contents up to the first incomplete record. Raises `BadRecord`."""
    subscriptions: dict[str, Progress] = {}
    names: dict[int, str] = {}
    at = HEADER_BYTES
    while (found := _record_at(content, at, salt)) is not None:
        kind, number, value, end = found
        try:
            if kind == RecordKind.NAME:
                name = content[at + RECORD_BYTES : at + RECORD_BYTES + value].decode()
                names[number] = name
                subscriptions[name] = Progress()
                subscriptions[name].number = number
            elif kind == RecordKind.DISCARD:
                subscriptions[names[number]].discard_ordinals(value, value + 1)
            elif kind == RecordKind.PURGE:
                del subscriptions[names.pop(number)]
            else:
                payload = content[at + RECORD_BYTES : at + RECORD_BYTES + value]
                progress = _apply(kind, payload, subscriptions[names[number]])
                subscriptions[names[number]] = progress
        except (KeyError, ValueError, IndexError, struct.error) as error:
            raise BadRecord(f"the record at byte {at} is invalid ({said(error, 200)})") from error
        at = end
    return BookmarkLog(subscriptions, at, _next_record(content, at, salt))


def _record_at(content: bytes, at: int, salt: int) -> tuple[int, int, int, int] | None:
    """Return kind, subscription, value and end of the record at `at`, or None if it is incomplete."""
    if at + RECORD_BYTES > len(content):
        return None
    crc, what, value = RECORD.unpack_from(content, at)
    kind = what & 0xFF
    if not RecordKind.DISCARD <= kind <= RecordKind.MISSING:
        return None
    end = at + RECORD_BYTES
    if kind != RecordKind.DISCARD:
        if value > len(content) - end:
            return None
        end += value + -value % 8
    if end > len(content) or crc32c(memoryview(content)[at + 4 : end], (salt + at) & _CRC_MASK) != crc:
        return None
    return kind, what >> 8, value, end


def _next_record(content: bytes, at: int, salt: int) -> int | None:
    for place in _starts(content, at + 8):
        if _record_at(content, place, salt) is not None:
            return place
    return None


def _starts(content: bytes, at: int) -> Iterator[int]:
    """Yield possible offsets of records, found by a valid kind."""
    words = np.frombuffer(content, np.uint8, (len(content) - at) // 8 * 8, at) if at < len(content) else None
    if words is not None:
        kinds = words[4::8]
        found = np.flatnonzero((kinds >= RecordKind.DISCARD) & (kinds <= RecordKind.MISSING))
        yield from (found * 8 + at).tolist()


def _apply(kind: int, payload: bytes, progress: Progress) -> Progress:
    if kind == RecordKind.DELIVERY:
        _deliver(payload, progress)
    elif kind == RecordKind.DISCARDS:
        for low, high in _PAIR.iter_unpack(payload):
            progress.discard_ordinals(low, high)
    elif kind == RecordKind.START:
        progress.start(_bookmarks(payload))
    elif kind == RecordKind.NOTICE:
        progress.point.notice(_bookmarks(payload)[0], progress.delivered, progress.head)
    elif kind == RecordKind.FORGET:
        progress.resume(forget=True)
    elif kind == RecordKind.PLACED:
        _place(payload, progress)
    elif kind == RecordKind.MISSING:
        _restore_missing(payload, progress)
    else:
        return _progress(payload, progress.number)
    return progress


def _bookmarks(payload: bytes) -> Sequence[Bookmark]:
    return [Bookmark(*pair) for pair in _PAIR.iter_unpack(payload)]


def _deliver(payload: bytes, progress: Progress) -> None:
    base, count, flags, publisher = _DELIVERY.unpack_from(payload)
    if base != progress.delivered:
        raise ValueError(f"message {base} follows {progress.delivered}")
    if count > bookmark_window_messages_max:  # a range is small in the file, but not in memory
        raise ValueError(f"{count:,} messages, above {bookmark_window_messages_max:,}")
    at = _DELIVERY.size
    publishers = None
    if flags & _MIXED:
        publishers = np.frombuffer(payload, "<u8", count, at)
        at += 8 * count
    if flags & _RANGE:
        sequences = np.arange(count, dtype=np.uint64) + np.uint64(_U64.unpack_from(payload, at)[0])
        at += 8
    else:
        sequences = np.frombuffer(payload, "<u8", count, at)
        at += 8 * count
    if count and flags & _LATE:
        mixed = np.full(count, publisher, np.uint64) if publishers is None else publishers
        progress.append_late(mixed, sequences)
    elif count:
        progress.append(MIXED if publishers is not None else publisher, publishers, sequences)
    if flags & _STATES:
        states = np.frombuffer(payload, np.uint8, count, at) == DISCARDED
        edges = np.flatnonzero(np.diff(np.concatenate(([0], states.view(np.int8), [0]))))
        for low, high in edges.reshape(-1, 2).tolist():
            progress.discard_ordinals(base + low, base + high)


def _ranges(payload: bytes, at: int, count: int) -> tuple[list[tuple[int, int]], int]:
    """Return a number of pairs, and the offset after them."""
    end = at + _PAIR.size * count
    if end > len(payload):
        raise ValueError(f"{count} pairs at byte {at} of {len(payload)}")
    return [(low, high) for low, high in _PAIR.iter_unpack(payload[at:end])], end


def _place(payload: bytes, progress: Progress) -> None:
    from tickertape.wire.link_rows import OpenHoles

    publisher, sequence, moves, known, count, publishers = _PLACED.unpack_from(payload)
    places, at = _ranges(payload, _PLACED.size, count)
    holes = []
    for _ in range(publishers):
        of, highest, rows = _OF_PUBLISHER.unpack_from(payload, at)
        ranges, at = _ranges(payload, at + _OF_PUBLISHER.size, rows)
        holes.append(OpenHoles(of, highest, tuple(ranges)))
    bookmark = Bookmark(publisher, sequence) if moves else None
    progress.take_notice(bookmark, [Bookmark(*one) for one in places], holes if known else None)


def _restore_missing(payload: bytes, progress: Progress) -> None:
    exact, *counts, publishers, recents = _MISSING.unpack_from(payload)
    point, missing, at = progress.point, progress.missing, _MISSING.size
    found = []
    for count in counts:
        rows, at = _ranges(payload, at, count)
        found.append(tuple(Bookmark(*row) for row in rows))
    point.places = {one.publisher: one for one in found[0]}
    if point.pending is not None:
        point.pending = point.pending._replace(places=found[1])
    if point.newest is not None:
        point.newest = point.newest._replace(places=found[2])
    for _ in range(publishers):
        of, _, count = _OF_PUBLISHER.unpack_from(payload, at)
        missing.holes[of], at = _ranges(payload, at + _OF_PUBLISHER.size, count)
    for _ in range(recents):
        of, mark, count = _OF_PUBLISHER.unpack_from(payload, at)
        at += _OF_PUBLISHER.size
        parts: list[Numbers] = []
        for _ in range(count):
            first, size = _PAIR.unpack_from(payload, at)
            at += _PAIR.size
            if first != _NONE:
                parts.append(range(first, first + size))
                continue
            part = array("Q", payload[at : at + 8 * size])
            if len(part) != size:
                raise ValueError(f"{size} sequences at byte {at} of {len(payload)}")
            parts.append(part)
            at += 8 * size
        missing.restore_recent(of, mark - 1, parts)
    missing.exact = bool(exact)


def _progress(payload: bytes, number: int) -> Progress:
    head, at, floor, publishers, members, _, _ = _PROGRESS.unpack_from(payload)
    progress = Progress(head)
    progress.number = number
    point = progress.point
    place = _PROGRESS.size
    notices: list[Pending | None] = []
    for _ in range(2):
        delivered, publisher, sequence = _PENDING.unpack_from(payload, place)
        notices.append(None if delivered == _NONE else Pending(delivered, Bookmark(publisher, sequence)))
        place += _PENDING.size
    point.at, point.floor = at, floor
    point.pending, point.newest = notices
    point.base = tuple(_bookmarks(payload[place : place + 16 * members]))
    place += 16 * members
    for moved, publisher, sequence in _PENDING.iter_unpack(payload[place : place + 24 * publishers]):
        progress.restore(publisher, sequence, moved)
    return progress
