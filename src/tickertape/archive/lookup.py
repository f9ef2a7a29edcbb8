"""Lookups of positions in the archive: by bookmark, by time, and the last message before a position.

Statistics of files and row groups exclude most data. Only the needed columns of the rest are read. A lookup
without a match returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tickertape.archive.delta_table import ArchiveFile, ArchiveTable, Int64s, Manifest
from tickertape.archive.parquet_scan import groups_between, outside
from tickertape.archive.schema import sequence_bits
from tickertape.base.bookmarks import Bookmark

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_ROWS_MAX: Final = 1 << 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_SIGN: Final = 1 << 63
_LAST_COLUMNS: Final = ("position", "publisher", "sequence", "timestamp")


def find_bookmark(store: ArchiveTable, manifest: Manifest, bookmark: Bookmark, end: int) -> int | None:
    """Return the position, below `end`, of the message of a bookmark. None if the archive has none."""
    publisher, bits = str(bookmark.publisher), sequence_bits(bookmark.sequence)

    def may_hold(file: pq.ParquetFile, group: int) -> bool:
        return not (
            outside(file, group, "sequence", bits, bits)
            or outside(file, group, "publisher", publisher, publisher)
        )

    for found in manifest.with_sequence(bits, end):
        for batch in _columns(store, found, ("position", "sequence", "publisher"), may_hold):
            rows = (_integers(batch, "sequence") == bits).nonzero()[0]
            for row in rows.tolist():
                if _publisher(batch, row) == publisher:
                    position = int(_integers(batch, "position")[row])
                    return position if position < end else None
    return None


def find_time(store: ArchiveTable, manifest: Manifest, micros: int, begin: int, end: int) -> int | None:
    """Return the lowest position in `[begin, end)` of a message with a timestamp of at least `micros`, or
    None.

    Log time never decreases, so later rows of a file have later timestamps too.
    """
    best: int | None = None
    since = _moment(micros)
    wanted = (manifest.until >= micros) & (manifest.low < end) & (manifest.high >= begin)
    for found in manifest.files(wanted):
        stop = end if best is None else best
        if found.low >= stop:
            break  # files are sorted by their lowest positions

        def may_hold(file: pq.ParquetFile, group: int, stop: int = stop) -> bool:
            return not (
                outside(file, group, "timestamp", since, _LATEST)
                or outside(file, group, "position", begin, stop - 1)
            )

        for batch in _columns(store, found, ("position", "timestamp"), may_hold):
            positions = _integers(batch, "position")
            later = (_integers(batch, "timestamp") >= micros) & (positions >= begin) & (positions < stop)
            if later.any():
                best = int(positions[later.argmax()])
                break
    return best


class Last(NamedTuple):
    """A last message."""

    position: int
    bookmark: Bookmark
    timestamp: int
    """Microseconds since 1970 UTC."""


def last_before(store: ArchiveTable, manifest: Manifest, position: int) -> Last | None:
    """Return the last message before `position`. None if the archive has none."""
    best, found = -1, None
    candidates = manifest.files(manifest.low < position)
    for file in sorted(candidates, key=lambda file: file.high, reverse=True):
        if min(file.high, position - 1) <= best:
            break

        opened = store.open_file(file.path)
        for group in reversed(groups_between(opened, best + 1, position)):
            last = _last_row(store, opened, file.path, group, position)
            if last is not None:
                if last.position > best:
                    best, found = last.position, last
                break
    return found


def _last_row(
    store: ArchiveTable, opened: pq.ParquetFile, path: str, group: int, position: int
) -> Last | None:
    """Return the last row of a row group below `position`."""
    found = None
    for batch in store.rows(opened, path, group, _LAST_COLUMNS, _ROWS_MAX):
        positions = _integers(batch, "position")
        row = int(positions.searchsorted(position)) - 1
        if row >= 0:
            sequence = int(_integers(batch, "sequence")[row]) % (2 * _SIGN)
            bookmark = Bookmark(int(_publisher(batch, row)), sequence)
            found = Last(int(positions[row]), bookmark, int(_integers(batch, "timestamp")[row]))
    return found


def _columns(
    store: ArchiveTable,
    file: ArchiveFile,
    columns: tuple[str, ...],
    may_hold: Callable[[pq.ParquetFile, int], bool],
) -> Iterator[pa.RecordBatch]:
    """Yield columns of the row groups of a file that may hold the result. Raises `ArchiveFailed`."""
    opened = store.open_file(file.path)
    for group in range(opened.metadata.num_row_groups):
        if may_hold(opened, group):
            yield from store.rows(opened, file.path, group, columns, _ROWS_MAX)


def _publisher(batch: pa.RecordBatch, row: int) -> str:
    """Return the publisher of a row, as stored in the table."""
    value = batch.column("publisher")[row].as_py()
    return value.decode() if isinstance(value, bytes) else str(value)


def _integers(batch: pa.RecordBatch, name: str) -> Int64s:
    """Return a column of integers or times as 64-bit integers."""
    import pyarrow as pa

    column = batch.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC"))
    values: Any = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return np.asarray(values, np.int64)


def _moment(micros: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return _LATEST
