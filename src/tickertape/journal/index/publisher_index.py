"""Publisher index: maps publishers and sequences to zones of a segment.

It has rows of (zone, lowest, highest sequence) per publisher. A zone is all blocks that start in one byte
range of the file. Above the memory limit zones become longer. If one zone for the whole segment is still too
large, the index is disabled, and lookups read everything.

Late runs have sequences below the highest one of their publisher. They have rows of their own, so that the
other rows ascend.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.journal.limits import index_zone_bytes

NEW_KEY_BYTES: Final = 200
"""Memory of a publisher besides its rows before sorting: an entry of a dictionary and an array."""
_KEY_BYTES: Final = 12
"""Memory of a publisher after sorting: its id and the end of its rows."""
_LATE_BYTES: Final = 300
"""Memory of a row of late runs: entries of two dictionaries and their values."""
_STORED_KEY_BYTES: Final = 16
_LATE_ROW: Final = 4
_LATE_ROW_BYTES: Final = 8 * _LATE_ROW
_ROW: Final = 3
_ROW_BYTES: Final = 8 * _ROW
publisher_growth_bytes_max: Final = _STORED_KEY_BYTES + _ROW_BYTES
"""The most by which adding a publisher raises `PublisherIndex.stored_bytes_max`."""
_U4: Final = np.dtype("<u4")
_U8: Final = np.dtype("<u8")
_NO_IDS: Final = np.empty(0, _U8)
_NO_ENDS: Final = np.empty(0, _U4)
_NO_ROWS: Final = np.empty((0, _ROW), _U8)

Rows = npt.NDArray[np.uint64]
"""Zone, lowest and highest sequence in each row. All three ascend."""


class StoredPublishers(msgspec.Struct, array_like=True):
    """The table as stored in a seal."""

    zone_bytes: int
    rows: dict[int, bytes] | None
    """By publisher id: three u64 per row. None if the index is disabled."""


class ByteRange(NamedTuple):
    """A byte range of a segment file. Blocks that start in it may hold the message."""

    begin: int
    end: int


class PublisherIndex:
    """The index of one segment, built commit by commit. `bytes_max` limits its memory."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._zone_bytes = index_zone_bytes
        self._given_up = False
        self._ids = _NO_IDS
        self._ends = _NO_ENDS
        self._rows: Rows = _NO_ROWS
        self._recent: dict[int, array[int]] = {}
        """Unsorted rows, by publisher."""
        self._recent_count = 0
        self._late: dict[int, dict[int, tuple[int, int]]] = {}
        """Lowest and highest sequence of late runs, by publisher and zone."""
        self._late_count = 0

    def add(self, offset: int, spans: Iterable[tuple[int, int, int]]) -> bool:
        """Add `spans` of (publisher, lowest, highest sequence) of the block at `offset`, the last block or a
        new one, without late runs. Return whether `stored_bytes_max` changed."""
        if self._given_up:
            return False
        before = self._recent_count
        zone = offset // self._zone_bytes
        for publisher, low, high in spans:
            rows = self._recent.get(publisher)
            if rows is None:
                rows = self._recent[publisher] = array("Q")
            if rows and rows[-_ROW] == zone:
                rows[-1] = max(high, rows[-1])
            else:
                rows.extend((zone, low, high))
                self._recent_count += 1
        if self._recent_count == before:
            return False
        if self.nbytes > self._bytes_max:
            self._fit(offset)
        return True

    def add_late(self, offset: int, spans: Iterable[tuple[int, int, int]]) -> bool:
        """Add spans of late runs. Arguments and result are those of `add`."""
        if self._given_up:
            return False
        before = self._late_count
        zone = offset // self._zone_bytes
        for publisher, low, high in spans:
            self._take_late(publisher, zone, low, high)
        if self._late_count == before:
            return False
        if self.nbytes > self._bytes_max:
            self._fit(offset)
        return True

    @property
    def known(self) -> bool:
        """Whether the index knows its publishers. False if it is disabled."""
        return not self._given_up

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        rows = len(self._rows) + self._recent_count
        table = _ROW_BYTES * rows + _KEY_BYTES * len(self._ids) + NEW_KEY_BYTES * len(self._recent)
        return table + _LATE_BYTES * self._late_count

    @property
    def stored_bytes_max(self) -> int:
        """Upper bound of the encoded size of `stored` and `stored_late`."""
        rows = len(self._rows) + self._recent_count
        keys = _STORED_KEY_BYTES * (len(self._ids) + len(self._recent))
        return _ROW_BYTES * rows + keys + _LATE_ROW_BYTES * self._late_count

    def stretches(self, publisher: int, low: int, high: int, end: int) -> Iterator[ByteRange]:
        """Yield the ranges of a file of `end` bytes that may hold a message from `low` to `high`, in
        order."""
        if self._given_up:
            yield ByteRange(0, end)
            return
        rows = self._rows_of(publisher)
        # Sequences of a publisher ascend, and so do the lowest and the highest sequences of its rows.
        first = int(rows[:, 2].searchsorted(np.uint64(low)))
        stop = int(rows[:, 1].searchsorted(np.uint64(high), side="right"))
        zones = rows[first:stop, 0].tolist()
        late = self._late.get(publisher)
        if late is not None:
            zones = sorted(
                {*zones, *(zone for zone, span in late.items() if span[0] <= high and low <= span[1])}
            )
        for zone in zones:
            yield ByteRange(zone * self._zone_bytes, (zone + 1) * self._zone_bytes)

    def may_have_late(self, publisher: int, low: int, high: int) -> bool:
        """Return whether late runs may have a message from `low` to `high`."""
        late = self._late.get(publisher, {}).values()
        return self._given_up or any(span[0] <= high and low <= span[1] for span in late)

    def highest(self) -> dict[int, int] | None:
        """Return the highest sequence of each publisher. None if the index is disabled and the log must be
        read."""
        if self._given_up:
            return None
        lasts = self._rows[self._ends.astype(np.int64) - 1, 2]
        highest = dict(zip(self._ids.tolist(), lasts.tolist(), strict=True))
        highest.update((publisher, rows[-1]) for publisher, rows in self._recent.items())
        return highest

    def highest_columns(self) -> tuple[Rows, Rows] | None:
        """Return the same as `highest`, as two columns: ascending publishers and their sequences."""
        if self._given_up:
            return None
        self.settle()
        return self._ids, self._rows[self._ends.astype(np.int64) - 1, 2]

    def bounds(self, publisher: int) -> tuple[int, int] | None:
        """Return the lowest and highest sequence of a publisher. None without one or (see `known`) if
        unknown."""
        rows = self._rows_of(publisher)
        spans = [(int(rows[0, 1]), int(rows[-1, 2]))] if len(rows) else []
        spans += self._late.get(publisher, {}).values()
        return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None

    def coarsen(self) -> None:
        """Halve the resolution."""
        self.settle()
        if not self._given_up:
            rows = self._rows.copy()
            rows[:, 0] >>= np.uint64(1)
            self._zone_bytes *= 2
            self._coarsen_late()
            self._take(np.repeat(self._ids, self._counts()), rows)

    def settle(self) -> None:
        """Sort recent rows into the table, where they take less memory."""
        if not self._recent:
            return
        ids = np.fromiter(self._recent, _U8, len(self._recent))
        counts = np.fromiter(map(len, self._recent.values()), np.int64, len(self._recent)) // _ROW
        recent = np.frombuffer(b"".join(self._recent.values()), _U8).reshape(-1, _ROW)
        self._recent, self._recent_count = {}, 0
        ids = np.concatenate((np.repeat(self._ids, self._counts()), np.repeat(ids, counts)))
        rows = np.concatenate((self._rows, recent))
        order = np.argsort(ids, kind="stable")
        self._take(ids[order], rows[order])

    def give_up(self) -> None:
        """Disable the index."""
        self._given_up = True
        self._ids, self._ends, self._rows = _NO_IDS, _NO_ENDS, _NO_ROWS
        self._recent, self._recent_count = {}, 0
        self._late, self._late_count = {}, 0

    # -- rows -----------------------------------------------------------------------------------------

    def _counts(self) -> npt.NDArray[np.uint32]:
        return np.diff(self._ends, prepend=np.zeros(1, _U4))

    def _rows_of(self, publisher: int) -> Rows:
        recent: Rows = np.array(self._recent.get(publisher, ()), _U8).reshape(-1, _ROW)
        at = int(self._ids.searchsorted(np.uint64(publisher)))
        if at == len(self._ids) or int(self._ids[at]) != publisher:
            return recent
        rows = self._rows[int(self._ends[at - 1]) if at else 0 : int(self._ends[at])]
        return np.concatenate((rows, recent)) if len(recent) else rows

    def _take(self, ids: npt.NDArray[np.uint64], rows: Rows) -> None:
        """Build the table from rows sorted by publisher, merging rows of the same publisher and zone."""
        if not len(rows):
            return
        another = ids[1:] != ids[:-1]
        starts = np.flatnonzero(np.concatenate(([True], another | (rows[1:, 0] != rows[:-1, 0]))))
        merged = rows[starts]
        merged[:, 2] = np.maximum.reduceat(rows[:, 2], starts)
        ids = ids[starts]
        lasts = np.flatnonzero(np.append(ids[1:] != ids[:-1], True))
        self._ids, self._ends, self._rows = ids[lasts], (lasts + 1).astype(_U4), merged

    def _coarsen_late(self) -> None:
        late, self._late, self._late_count = self._late, {}, 0
        for publisher, zones in late.items():
            for zone, (low, high) in zones.items():
                self._take_late(publisher, zone // 2, low, high)

    def _take_late(self, publisher: int, zone: int, low: int, high: int) -> None:
        zones = self._late.setdefault(publisher, {})
        known = zones.get(zone)
        self._late_count += known is None
        zones[zone] = (low, high) if known is None else (min(low, known[0]), max(high, known[1]))

    def _fit(self, offset: int) -> None:
        """Reduce to well below the limit, so that this is rare, or disable the index."""
        self.settle()
        while self.nbytes > self._bytes_max // 4 * 3:
            if self._zone_bytes > offset:
                self.give_up()
                return
            self.coarsen()

    def reduce(self, end: int) -> None:
        """Reduce the memory in a segment of `end` bytes: halve the resolution, or disable the index."""
        if self._zone_bytes >= end:
            self.give_up()
        else:
            self.coarsen()

    # -- storing --------------------------------------------------------------------------------------

    def stored(self) -> StoredPublishers:
        """Return the table as stored in a seal."""
        if self._given_up:
            return StoredPublishers(zone_bytes=self._zone_bytes, rows=None)
        self.settle()
        data = self._rows.tobytes()
        ends = [0, *(self._ends.astype(np.int64) * _ROW_BYTES).tolist()]
        rows = {
            publisher: data[begin:end]
            for publisher, begin, end in zip(self._ids.tolist(), ends, ends[1:], strict=False)
        }
        return StoredPublishers(zone_bytes=self._zone_bytes, rows=rows)

    def stored_late(self) -> bytes | None:
        """Return the rows of late runs as stored in a seal. None without one."""
        rows = [
            (publisher, zone, *span)
            for publisher, zones in sorted(self._late.items())
            for zone, span in sorted(zones.items())
        ]
        return np.array(rows, _U8).tobytes() if rows else None

    @staticmethod
    def of(stored: StoredPublishers, bytes_max: int, late: bytes | None = None) -> PublisherIndex:
        """Return the index from its stored forms. Raises `ValueError` if they are invalid."""
        table = PublisherIndex(bytes_max)
        if stored.zone_bytes < 1:
            raise ValueError("index has no resolution")
        table._zone_bytes = stored.zone_bytes
        if stored.rows is None:
            if late:
                raise ValueError("index has late runs but no publishers")
            table.give_up()
            return table
        count = len(stored.rows)
        sizes = np.fromiter(map(len, stored.rows.values()), np.int64, count)
        if (sizes == 0).any() or (sizes % _ROW_BYTES).any():
            raise ValueError("index rows of a publisher are incomplete")
        try:
            ids = np.fromiter(stored.rows, _U8, count)
        except OverflowError:
            raise ValueError("index has an invalid publisher id") from None
        order = np.argsort(ids, kind="stable")
        chunks = list(stored.rows.values())
        rows = np.frombuffer(b"".join([chunks[at] for at in order.tolist()]), _U8).reshape(-1, _ROW)
        table._ids, table._rows = ids[order], rows
        table._ends = np.cumsum(sizes[order] // _ROW_BYTES).astype(_U4)
        if not _rising(rows, table._ends):
            raise ValueError("index rows of a publisher are out of order")
        table._read_late(late or b"")
        return table

    def _read_late(self, data: bytes) -> None:
        if len(data) % _LATE_ROW_BYTES:
            raise ValueError("index rows of late runs are incomplete")
        rows = np.frombuffer(data, _U8).reshape(-1, _LATE_ROW)
        places = list(map(tuple, rows[:, :2].tolist()))
        if places != sorted(set(places)) or (rows[:, 2] > rows[:, 3]).any():
            raise ValueError("index rows of late runs are out of order")
        for row in rows.tolist():
            self._take_late(*row)


def _rising(rows: Rows, ends: npt.NDArray[np.uint32]) -> bool:
    """Return whether zones ascend within each publisher, and sequences do not descend, as lookups require."""
    falls = (rows[1:, 0] <= rows[:-1, 0]) | (rows[1:, 1] < rows[:-1, 1]) | (rows[1:, 2] < rows[:-1, 2])
    falls[ends[:-1].astype(np.int64) - 1] = False
    return not falls.any()
