"""Merge scan: reads the Parquet files of an archive side by side in log order.

Files overlap where several topics were recorded at the same time. Each file is read one chunk at a time, and
rows are returned up to the lowest position that the next chunks can have. Buffered rows are limited to
`archive_scan_bytes_max` plus one chunk. Further rows are put back and read again. Prefetching from an object
store is limited to `archive_fetched_bytes_max`. Each open file also takes the memory of one page.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tickertape.archive.delta_table import ArchiveFile, ArchiveTable
from tickertape.archive.limits import (
    archive_chunk_bytes_max,
    archive_fetched_bytes_max,
    archive_files_open_max,
    archive_scan_bytes_max,
)
from tickertape.archive.rows_to_batches import OUT_OF_ORDER, Rows, merged, rows_of
from tickertape.archive.schema import FILE_COLUMNS
from tickertape.base.errors import ArchiveFailed

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_END: Final = (1 << 63) - 1
_NOTHING: Final = -1
_CHUNK_ROWS_MAX: Final = 1 << 16
_ROW_BYTES: Final = 64
"""Memory of the numbers and offsets of a row, which may take almost no space in a file."""


class ParquetPiece(NamedTuple):
    """The next rows."""

    rows: Rows | None
    """None if no matching row is below `end`."""
    end: int
    """All matching rows below this position were returned."""


class ParquetScan:
    """The rows of `files` with positions in `[begin, end)`. `files` are ordered by their lowest positions."""

    def __init__(
        self,
        store: ArchiveTable,
        files: list[ArchiveFile],
        begin: int,
        end: int,
        *,
        memory_bytes: int = archive_scan_bytes_max,
        fetched_bytes: int = archive_fetched_bytes_max,
    ) -> None:
        self._store = store
        self._waiting = deque(files)
        self._begin = begin
        self._end = end
        self._memory = memory_bytes
        self._fetched = fetched_bytes
        self._open: list[_Stream] = []

    def __iter__(self) -> Iterator[ParquetPiece]:
        """Yield all pieces in order. The last one ends at the end of the range. Raises `ArchiveFailed`."""
        while (piece := self._next()) is not None:
            yield piece
        yield ParquetPiece(None, self._end)

    def close(self) -> None:
        """Close the files."""
        self._waiting.clear()
        for stream in self._open:
            stream.close()
        self._open = []

    def _next(self) -> ParquetPiece | None:
        """Return the rows below the position up to which all rows are known. None at the end."""
        self._begin_files()
        if not self._open:
            return None
        self._fetch_first()
        reach = min(stream.reach for stream in self._open)
        if self._waiting:
            reach = min(reach, self._waiting[0].low)
        reach = min(reach, self._end)
        found = [rows for stream in self._open if (rows := stream.take_below(reach)) is not None]
        self._fill()
        return ParquetPiece(merged(found) if found else None, reach)

    def _begin_files(self) -> None:
        """Open the files that may hold the next rows."""
        while self._waiting:
            first = min((stream.first for stream in self._open), default=None)
            if first is not None and self._waiting[0].low > first:
                return
            low = self._waiting[0].low if first is None else first
            while self._waiting and self._waiting[0].low <= max(low, self._begin):
                file = self._waiting.popleft()
                self._open.append(_Stream(self._store, file, self._begin, self._end))
            self._fill()

    def _fill(self) -> None:
        """Read more where all buffered rows were returned, and drop files that were read to their end."""
        held = sum(stream.held_bytes for stream in self._open)
        for stream in self._open:
            if not stream.waits:
                self._read(stream)
                held = self._put_back(held + stream.held_bytes)
                if len(self._open) > archive_files_open_max:
                    stream.close()  # reopened when its next rows are needed
        self._open = [stream for stream in self._open if stream.waits]

    def _fetch_first(self) -> None:
        """Read the next rows again if they were put back."""
        first = min(stream.first for stream in self._open)
        for stream in self._open:
            if stream.first == first and not stream.held_bytes:
                self._read(stream)
                self._put_back(sum(other.held_bytes for other in self._open))

    def _put_back(self, held: int) -> int:
        """Drop the rows that are returned last until the memory limit is met. Return the remaining bytes."""
        while held > self._memory:
            holding = [stream for stream in self._open if stream.held_bytes]
            last = max(holding, key=lambda stream: stream.first)
            if last.first == min(stream.first for stream in self._open if stream.waits):
                break  # its rows are next
            held -= last.held_bytes
            last.put_back()
        return held

    def _read(self, stream: _Stream) -> None:
        """Read a chunk of half the allowed size, because rows may take more memory than in the file."""
        count = len(self._open)
        stream.fill(min(archive_chunk_bytes_max, self._memory // (2 * count)), self._fetched // count)
        fetched = sum(other.fetched_bytes for other in self._open)
        while fetched > self._fetched:  # earlier files were opened with larger shares
            most = max(self._open, key=lambda other: other.fetched_bytes)
            fetched -= most.fetched_bytes
            most.close()


class _Stream:
    """One file: its buffered chunk, and the position of the following rows."""

    def __init__(self, store: ArchiveTable, file: ArchiveFile, begin: int, end: int) -> None:
        self._store = store
        self._file = file
        self._begin = begin
        """Rows below it were returned, or are not requested."""
        self._end = end
        self._rows: Rows | None = None
        self._at = 0
        self.held_bytes = 0
        """Bytes of the buffered rows."""
        self.fetched_bytes = 0
        """Bytes that may be fetched but not decoded yet."""
        self._back: int | None = None
        """Position of the first pending row after its rows were put back."""
        self._left: int | None = None
        """Upper bound of the rows that are not read yet. None before the file is opened."""
        self._chunks: Iterator[Rows] | None = None

    @property
    def waits(self) -> bool:
        """Whether rows are pending."""
        return self._rows is not None or self._back is not None

    @property
    def first(self) -> int:
        """Position of the first pending row."""
        if self._back is not None:
            return self._back
        assert self._rows is not None
        return int(self._rows.positions[self._at])

    @property
    def reach(self) -> int:
        """Position below which all rows are known."""
        if self._back is not None:
            return self._back
        assert self._rows is not None
        return int(self._rows.positions[-1]) + 1 if self._left else _END

    def take_below(self, position: int) -> Rows | None:
        """Return and consume the rows below `position`."""
        rows = self._rows
        if rows is None:
            return None  # put back: no row is below
        upto = int(rows.positions.searchsorted(position))
        if upto <= self._at:
            return None
        taken = rows.slice(self._at, upto)
        self._at = upto
        if upto == len(rows.positions):
            self._rows, self.held_bytes = None, 0
        return taken

    def put_back(self) -> None:
        """Drop the buffered rows. `fill` reads them again."""
        self._begin = self._back = self.first
        self._rows, self.held_bytes, self._left = None, 0, None
        self.close()

    def fill(self, chunk_bytes: int, fetched_bytes: int) -> None:
        """Read the next chunk, if any. A file that is opened for it fetches `fetched_bytes` at a time.

        Raises `ArchiveFailed`."""
        if self._left == 0:
            self.close()
            return
        with self._store.failing(repr(self._file.path)):
            if self._chunks is None:
                self._chunks = self._read(chunk_bytes, fetched_bytes)
            try:
                rows = next(self._chunks, None)
            except ArchiveFailed as error:
                if self._file.path in str(error):
                    raise
                raise ArchiveFailed(
                    f"Cannot read {self._file.path!r} of archive {self._store.location!r}: {error}. "
                    "Restore the file."
                ) from error
        self._back = None
        if rows is None:
            self._left = 0
            self.close()
            return
        self._rows, self._at = rows, 0
        self.held_bytes = rows.table.get_total_buffer_size()
        self._begin = int(rows.positions[-1]) + 1
        if self._left == 0:
            self.close()

    def close(self) -> None:
        """Close the file. It is reopened for the remaining rows."""
        self._chunks, self.fetched_bytes = None, 0

    def _read(self, chunk_bytes: int, fetched_bytes: int) -> Iterator[Rows]:
        """Yield the rows in `[begin, end)` in chunks of about `chunk_bytes`."""
        file, self.fetched_bytes = self._store.open_within(self._file.path, fetched_bytes)
        expected = self._file.rows
        if expected not in (None, file.metadata.num_rows):
            raise ArchiveFailed(f"it has {file.metadata.num_rows} rows, but the table records {expected}")
        groups = groups_between(file, self._begin, self._end)
        self._left = sum(file.metadata.row_group(group).num_rows for group in groups)
        before = _NOTHING
        for group in groups:
            about = file.metadata.row_group(group)
            row_bytes = about.total_byte_size // max(about.num_rows, 1) + _ROW_BYTES
            count = min(max(chunk_bytes // row_bytes, 1), _CHUNK_ROWS_MAX)
            for batch in self._store.rows(file, self._file.path, group, FILE_COLUMNS, count):
                self._left -= batch.num_rows
                rows = rows_of(batch, self._file.topic)
                if int(rows.positions[0]) <= before:
                    raise ArchiveFailed(OUT_OF_ORDER)
                before = int(rows.positions[-1])
                low, high = np.searchsorted(rows.positions, (self._begin, self._end)).tolist()
                if low < high:
                    yield rows.slice(low, high)
        self._left = 0


def groups_between(file: pq.ParquetFile, begin: int, end: int) -> list[int]:
    """Return the row groups that may hold positions in `[begin, end)`."""
    return [
        group
        for group in range(file.metadata.num_row_groups)
        if not outside(file, group, "position", begin, end - 1)
    ]


def outside(file: pq.ParquetFile, group: int, column: str, low: object, high: object) -> bool:
    """Return whether the statistics exclude `[low, high]` for a column of a row group. False without
    statistics."""
    number = file.schema_arrow.get_field_index(column)
    if number < 0:
        raise ArchiveFailed(f"it has no column {column}")
    statistics = file.metadata.row_group(group).column(number).statistics
    if statistics is None or not statistics.has_min_max:
        return False
    try:
        return bool(statistics.max < low or statistics.min > high)
    except TypeError:  # the writer used another type
        return False
