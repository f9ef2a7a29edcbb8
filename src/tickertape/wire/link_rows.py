"""Packed rows of replication, in the frames of links and in notices to subscriptions.

All numbers are little-endian. Functions check the values that one row table must have by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tickertape.base.bookmarks import Bookmark, is_place
from tickertape.base.errors import BadCommand, BadLink
from tickertape.batch.format import Int64s, UInt64s
from tickertape.wire.link import link_name_bytes, link_place_bytes, link_position_bytes

_U8: Final = np.dtype("<u8")
_NOTICE_PLACE: Final = struct.Struct("<QQ")
_NOTICE_HOLE: Final = struct.Struct("<QQQ")
_NAME: Final = np.dtype(
    [("publisher", "<u8"), ("first", "<u8"), ("last", "<u8"), ("origin", "<u4"), ("stamp", "<i8")]
)
assert _NAME.itemsize == link_name_bytes


class PlaceRows(NamedTuple):
    """Starts of a server, each with a position of its log."""

    starts: UInt64s
    positions: UInt64s


class HoleRows(NamedTuple):
    """Publishers, each with the highest sequence number that retention removed."""

    publishers: UInt64s
    highest: UInt64s


class NameRows(NamedTuple):
    """Named runs: publisher, first and last sequence number, origin and order stamp of each."""

    publishers: UInt64s
    firsts: UInt64s
    lasts: UInt64s
    origins: npt.NDArray[np.uint32]
    stamps: Int64s


def encode_pairs(lefts: npt.ArrayLike, rights: npt.ArrayLike) -> bytes:
    """Return rows of two u64: places (start, position), or first holes (publisher, highest)."""
    return np.column_stack((np.asarray(lefts, _U8), np.asarray(rights, _U8))).tobytes()


def decode_starts(data: bytes) -> PlaceRows:
    """Return the starts of a server with their first positions. Raises `BadLink` unless they are in order."""
    rows = decode_places(data)
    if not len(rows.starts):
        raise _bad("a server has no start in it")
    if (rows.positions[1:] < rows.positions[:-1]).any():
        raise _bad("first positions of starts are not ascending")
    return rows


def decode_places(data: bytes) -> PlaceRows:
    """Return places of different starts. Raises `BadLink` for a start with two places."""
    rows = PlaceRows(*_pairs(data, "places"))
    if len(np.unique(rows.starts)) != len(rows.starts):
        raise _bad("a start occurs twice")
    return rows


def decode_holes(data: bytes) -> HoleRows:
    """Return the first holes of different publishers. Raises `BadLink` unless they ascend."""
    rows = HoleRows(*_pairs(data, "first holes"))
    if not (rows.publishers.all() and rows.highest.all()):
        raise _bad("a first hole has publisher or sequence number 0")
    if (rows.publishers[1:] <= rows.publishers[:-1]).any():
        raise _bad("publishers of first holes are not ascending")
    return rows


def encode_names(rows: NameRows) -> bytes:
    """Return the rows of `LinkNames`."""
    table = np.empty(len(rows.publishers), _NAME)
    for field, column in zip(_NAME.fields or (), rows, strict=True):
        table[field] = column
    return table.tobytes()


def decode_names(data: bytes) -> NameRows:
    """Return the rows of `LinkNames`. Raises `BadLink` for a row without a run."""
    _check_size(data, link_name_bytes, "names")
    table = np.frombuffer(data, _NAME)
    rows = NameRows(*(table[field] for field in _NAME.fields or ()))
    if not (rows.publishers.all() and rows.firsts.all()):
        raise _bad("a name has publisher or sequence number 0")
    if (rows.lasts < rows.firsts).any():
        raise _bad("a name ends before its first sequence number")
    return rows


def encode_positions(positions: npt.ArrayLike) -> bytes:
    """Return the positions of named rows."""
    return np.asarray(positions, _U8).tobytes()


def decode_positions(data: bytes) -> UInt64s:
    """Return the positions of named rows. Raises `BadLink` unless they ascend."""
    _check_size(data, link_position_bytes, "positions")
    positions = np.frombuffer(data, _U8)
    if (positions[1:] <= positions[:-1]).any():
        raise _bad("positions of named rows are not ascending")
    return positions


def _pairs(data: bytes, noun: str) -> tuple[UInt64s, UInt64s]:
    _check_size(data, link_place_bytes, noun)
    rows = np.frombuffer(data, _U8).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def _check_size(data: bytes, row_bytes: int, noun: str) -> None:
    if len(data) % row_bytes:
        raise _bad(f"{noun} of {len(data):,} bytes do not consist of rows of {row_bytes} bytes")


def _bad(cause: str) -> BadLink:
    return BadLink(f"Invalid link frame: {cause}. Report the defect of its sender.")


# -- notices to subscriptions --------------------------------------------------------------------------


class OpenHoles(NamedTuple):
    """The holes of a publisher at a position of a log."""

    publisher: int
    highest: int
    """The log has all messages up to this sequence, except those in `ranges`."""
    ranges: tuple[tuple[int, int], ...]
    """First and last sequence of each hole, ascending and disjoint."""


def encode_open_holes(found: Iterable[OpenHoles]) -> bytes:
    """Return the rows of the holes of publishers."""
    rows = []
    for publisher, highest, ranges in found:
        rows.append(_NOTICE_HOLE.pack(publisher, highest, highest))
        rows += [_NOTICE_HOLE.pack(publisher, first - 1, last) for first, last in ranges]
    return b"".join(rows)


def decode_open_holes(data: bytes) -> list[OpenHoles]:
    """Return the holes of publishers in a notice. Raises `BadCommand`."""
    if len(data) % _NOTICE_HOLE.size:
        raise _bad_notice(f"{len(data)} bytes of holes are not whole rows")
    return [*_open_holes(_NOTICE_HOLE.iter_unpack(data))]


def _open_holes(rows: Iterable[tuple[int, ...]]) -> Iterator[OpenHoles]:
    publisher = highest = low = 0
    ranges: list[tuple[int, int]] = []
    started = False
    for of, after, through in rows:
        if after == through:
            if started:
                yield OpenHoles(publisher, highest, tuple(ranges))
            publisher, highest, low, ranges, started = of, through, 0, [], True
        elif started and of == publisher and low <= after < through <= highest:
            ranges.append((after + 1, through))
            low = through
        else:
            raise _bad_notice(f"the hole from {after + 1} to {through} is out of order")
    if started:
        yield OpenHoles(publisher, highest, tuple(ranges))


def encode_notice_places(places: Iterable[Bookmark]) -> bytes:
    """Return the rows of places."""
    return b"".join([_NOTICE_PLACE.pack(*place) for place in places])


def decode_notice_places(data: bytes) -> list[Bookmark]:
    """Return the places of a notice. Raises `BadCommand`."""
    if len(data) % _NOTICE_PLACE.size:
        raise _bad_notice(f"{len(data)} bytes of places are not whole rows")
    places = [Bookmark(*row) for row in _NOTICE_PLACE.iter_unpack(data)]
    if not all(map(is_place, places)):
        raise _bad_notice("a bookmark is not a place")
    return places


def _bad_notice(why: str) -> BadCommand:
    """Return the error of an invalid notice."""
    return BadCommand(f"Invalid notice from the server: {why}. Update the server.")
