"""Owns where in a segment which sequences of which publisher stand.

Rows of (zone, lowest, highest sequence) for each publisher; a zone is all blocks that begin in a stretch of
the file. Must never grow above its bound: then zones get longer, and when that does not help it is given up
(None = read everything).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from tickertape.base.limits import index_zone_bytes

KEY_BYTES: Final = 200
"""What a publisher costs in memory beside its rows: an entry of a dictionary and an array."""
_STORED_KEY_BYTES: Final = 16
_ROW: Final = 3
_ROW_BYTES: Final = 8 * _ROW


class StoredPublishers(msgspec.Struct, array_like=True):
    """What a seal keeps of the table."""

    zone_bytes: int
    rows: dict[int, bytes] | None
    """By publisher id: three u64 a row; None when it was given up."""


class Stretch(NamedTuple):
    """Bytes of a segment file: blocks that begin in it may hold what is looked for."""

    begin: int
    end: int


class PublisherTable:
    """The table of one segment, grown commit by commit. `bytes_max` bounds what it takes in memory."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._zone_bytes = index_zone_bytes
        self._rows: dict[int, array[int]] | None = {}
        self._count = 0

    def add(self, offset: int, spans: Iterable[tuple[int, int, int]]) -> None:
        """The block at `offset`, the last one or a new one, holds `spans` of publisher, lowest, highest
        sequence."""
        if self._rows is None:
            return
        zone = offset // self._zone_bytes
        for publisher, low, high in spans:
            rows = self._rows.get(publisher)
            if rows is None:
                rows = self._rows[publisher] = array("Q")
            if rows and rows[-_ROW] == zone:
                rows[-1] = max(high, rows[-1])
            else:
                rows.extend((zone, low, high))
                self._count += 1
        if self.nbytes > self._bytes_max:
            self._fit(offset)

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return _ROW_BYTES * self._count + KEY_BYTES * len(self._rows or ())

    @property
    def stored_bytes_max(self) -> int:
        """What `stored` takes, encoded, is not larger."""
        return _ROW_BYTES * self._count + _STORED_KEY_BYTES * len(self._rows or ())

    @staticmethod
    def growth_bytes_max(publishers: int) -> int:
        """By how much `stored_bytes_max` may rise by an `add` of so many publishers."""
        return (_STORED_KEY_BYTES + _ROW_BYTES) * publishers

    def stretches(self, publisher: int, sequence: int, end: int) -> Iterator[Stretch]:
        """Where in a file of `end` bytes this message may stand, in order."""
        if self._rows is None:
            yield Stretch(0, end)
            return
        rows = self._rows.get(publisher, ())
        # Sequences of a publisher rise, and so do the highest ones of its rows.
        at = bisect_left(range(len(rows) // _ROW), sequence, key=lambda row: rows[_ROW * row + 2])
        for row in range(_ROW * at, len(rows), _ROW):
            if rows[row + 1] > sequence:
                return
            begin = rows[row] * self._zone_bytes
            yield Stretch(begin, begin + self._zone_bytes)

    def highest(self) -> dict[int, int] | None:
        """Highest sequence of each publisher; None when that was given up and must be read."""
        if self._rows is None:
            return None
        return {publisher: rows[-1] for publisher, rows in self._rows.items()}

    def bounds(self, publisher: int) -> tuple[int, int] | None:
        """Lowest and highest sequence of a publisher; None when there is none, or nobody knows."""
        rows = self._rows.get(publisher) if self._rows is not None else None
        return None if rows is None else (rows[1], rows[-1])

    def coarsen(self) -> None:
        """Halve the resolution."""
        self._zone_bytes *= 2
        self._count = 0
        for publisher, rows in (self._rows or {}).items():
            assert self._rows is not None
            halved = self._rows[publisher] = _halved(rows)
            self._count += len(halved) // _ROW

    def give_up(self) -> None:
        """Know nothing any more."""
        self._rows, self._count = None, 0

    def _fit(self, offset: int) -> None:
        """Get well below the bound, which makes it rare, or give up."""
        while self.nbytes > self._bytes_max // 4 * 3:
            if self._zone_bytes > offset:
                self.give_up()
                return
            self.coarsen()

    # -- storing --------------------------------------------------------------------------------------

    def stored(self) -> StoredPublishers:
        """What a seal keeps."""
        rows = None if self._rows is None else {key: row.tobytes() for key, row in self._rows.items()}
        return StoredPublishers(zone_bytes=self._zone_bytes, rows=rows)

    @staticmethod
    def of(stored: StoredPublishers, bytes_max: int) -> PublisherTable:
        """The table that was stored. Raises `ValueError` when it is none."""
        table = PublisherTable(bytes_max)
        if stored.zone_bytes < 1:
            raise ValueError("index has no resolution")
        table._zone_bytes = stored.zone_bytes
        if stored.rows is None:
            table.give_up()
            return table
        table._rows = {key: array("Q", row) for key, row in stored.rows.items()}
        if any(not row or len(row) % _ROW for row in table._rows.values()):
            raise ValueError("index rows of a publisher are incomplete")
        table._count = sum(len(row) // _ROW for row in table._rows.values())
        return table


def _halved(rows: array[int]) -> array[int]:
    """A publisher's rows at half the resolution."""
    merged = array("Q")
    for row in range(0, len(rows), _ROW):
        zone, low, high = rows[row] // 2, rows[row + 1], rows[row + 2]
        if merged and merged[-_ROW] == zone:
            merged[-1] = max(high, merged[-1])
        else:
            merged.extend((zone, low, high))
    return merged
