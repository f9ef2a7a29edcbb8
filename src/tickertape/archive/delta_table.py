"""The Delta table of an archive: opens it and its files, and lists the files of one version.

It is at a local path or in an object store. Library errors become `ArchiveFailed` with the name of the file.
Statistics exclude files from a read. A file without them may contain any row that its partition allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt

from tickertape.archive.limits import archive_buffer_bytes
from tickertape.archive.schema import Coverage
from tickertape.base.errors import ArchiveFailed
from tickertape.base.text_format import said

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import DeltaTable


_PIECE_BYTES_MIN: Final = 4096


class ArchiveTable:
    """Location and access options. `options` are delta-rs options for object stores (credentials,
    endpoints)."""

    def __init__(self, location: str, options: Mapping[str, str] | None = None) -> None:
        self.location = location
        self.options = dict(options or {})
        self.root = local_path(location)
        """The directory, or None in an object store."""
        self._files: Any = None
        self.files_opened = 0
        """Number of Parquet files opened."""
        self.groups_read = 0
        """Number of row groups started."""

    def has_table(self) -> bool:
        """Return whether the table exists now. Raises `ArchiveFailed`."""
        from deltalake import DeltaTable

        with self.failing("the table"):
            return bool(DeltaTable.is_deltatable(self.location, self.options or None))

    def open_table(self) -> DeltaTable:
        """Return the newest version of the table. Raises `ArchiveFailed`."""
        from deltalake import DeltaTable

        with self.failing("the table"):
            return DeltaTable(self.location, storage_options=self.options or None)

    def open_file(self, path: str) -> pq.ParquetFile:
        """Open one of its files. Page checksums are verified where present.

        In an object store a row group is fetched as a whole. Raises `ArchiveFailed`."""
        with self.failing(repr(path)):
            if self.root is None:
                return self._parquet(self._open_remote(path), pre_buffer=True)
            # Not mapped: a truncated file or an unreadable disk would end the process.
            return self._parquet(str(self.root / path), buffer_size=archive_buffer_bytes)

    def open_within(self, path: str, bytes_max: int) -> tuple[pq.ParquetFile, int]:
        """Open one of many files, and return it with the number of bytes that may be fetched but not read.

        In an object store a row group is fetched as a whole only if none exceeds `bytes_max`. Otherwise each
        column is fetched in pieces, with the same total. Raises `ArchiveFailed`."""
        if self.root is not None:
            return self.open_file(path), 0
        import pyarrow.parquet as pq

        with self.failing(repr(path)):
            source = self._open_remote(path)
            about = pq.read_metadata(source)
            groups = [about.row_group(number) for number in range(about.num_row_groups)]
            largest = max([_stored_bytes(group) for group in groups], default=0)
            if largest <= bytes_max:
                return self._parquet(source, metadata=about, pre_buffer=True), largest
            piece = max(bytes_max // about.num_columns, _PIECE_BYTES_MIN)
            return self._parquet(source, metadata=about, buffer_size=piece), piece * about.num_columns

    def _parquet(self, source: Any, *, pre_buffer: bool = False, **how: Any) -> pq.ParquetFile:
        import pyarrow.parquet as pq

        self.files_opened += 1
        return pq.ParquetFile(
            source,
            read_dictionary=["publisher"],
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
            pre_buffer=pre_buffer,
            **how,
        )

    def rows(
        self, file: pq.ParquetFile, path: str, group: int, columns: Sequence[str], rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """Read a row group in batches of `rows_max` rows. Raises `ArchiveFailed`."""
        self.groups_read += 1
        left = file.metadata.row_group(group).num_rows
        with self.failing(repr(path)):
            for batch in file.iter_batches(rows_max, [group], list(columns), use_threads=False):
                left -= batch.num_rows
                yield batch
        if left:  # the library takes the end of a truncated file for the end of the group
            raise ArchiveFailed(
                f"Cannot read {path!r} of archive {self.location!r}: {left} rows are missing. Restore the "
                "file."
            )

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Convert library errors to `ArchiveFailed`."""
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (OSError, pa.ArrowException, DeltaError) as error:
            missing = isinstance(error, FileNotFoundError) or "not found" in str(error).lower()
            raise ArchiveFailed(
                f"Cannot read {what} of archive {self.location!r}: {said(error).rstrip('.')}. Check the "
                "location and its access.",
                missing=missing,
            ) from error

    def _open_remote(self, path: str) -> Any:
        import pyarrow.fs as pafs
        from deltalake.fs import DeltaStorageHandler

        if self._files is None:
            self._files = pafs.PyFileSystem(DeltaStorageHandler(self.location, self.options or None))
        return self._files.open_input_file(path)


def _stored_bytes(group: pq.RowGroupMetaData) -> int:
    """Return the size of a row group in its file."""
    return sum(int(group.column(number).total_compressed_size) for number in range(group.num_columns))


def local_path(location: str) -> Path | None:
    """Return the directory of `location`. None if it is the URI of an object store."""
    if "://" not in location:
        return Path(location)
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


# -- files of one version -----------------------------------------------------------------------------


Int64s = npt.NDArray[np.int64]

_LEAST: Final = -(1 << 63)
_GREATEST: Final = (1 << 63) - 1
_MILLI: Final = 1000
"""Statistics of timestamps may be truncated to whole milliseconds."""


class ArchiveFile(NamedTuple):
    """One Parquet file."""

    path: str
    """Path below the table."""
    topic: str
    low: int
    """Lower bound of its positions."""
    high: int
    """Upper bound of its positions."""
    rows: int | None
    """Rows recorded in the table, or None."""
    bytes: int
    """Size recorded in the table."""


class Manifest:
    """The files of one version, ordered by their lowest positions."""

    def __init__(self, coverage: Coverage, version: int, table: DeltaTable, table_id: str) -> None:
        import pyarrow as pa

        self.coverage = coverage
        self.version = version
        self.table_id = table_id
        actions = pa.table(table.get_add_actions(flatten=True))
        order = np.argsort(_column(actions, "min.position", _LEAST), kind="stable")
        self._paths = [unquote(path) for path in actions.column("path").take(order).to_pylist()]
        self._rows = _column(actions, "num_records", -1)[order]
        self._bytes = _column(actions, "size_bytes", -1)[order]
        topics = actions.column("partition.topic").cast(pa.string()).combine_chunks().dictionary_encode()
        self.topics: list[str] = topics.dictionary.to_pylist()
        """All topics with a file."""
        self._topic = topics.indices.to_numpy(zero_copy_only=False)[order]
        self.low = _column(actions, "min.position", _LEAST)[order]
        self.high = _column(actions, "max.position", _GREATEST)[order]
        self.since = _widened(_column(actions, "min.timestamp", _LEAST)[order], -_MILLI)
        self.until = _widened(_column(actions, "max.timestamp", _GREATEST)[order], _MILLI)
        self.first_sequence = _column(actions, "min.sequence", _LEAST)[order]
        self.last_sequence = _column(actions, "max.sequence", _GREATEST)[order]

    def __len__(self) -> int:
        return len(self._paths)

    def file(self, number: int) -> ArchiveFile:
        """Return file `number`, in order of lowest positions."""
        return ArchiveFile(
            self._paths[number],
            self.topics[int(self._topic[number])],
            int(self.low[number]),
            int(self.high[number]),
            rows if (rows := int(self._rows[number])) >= 0 else None,
            int(self._bytes[number]),
        )

    def overlapping(
        self, begin: int, end: int, fits: Callable[[str], bool] | None = None
    ) -> list[ArchiveFile]:
        """Return the files that may hold positions in `[begin, end)` of topics accepted by `fits` (None:
        all)."""
        mask = (self.low < end) & (self.high >= begin)
        if fits is not None:
            mask &= np.array([fits(topic) for topic in self.topics], np.bool_)[self._topic]
        return self.files(mask)

    def with_sequence(self, bits: int, end: int) -> list[ArchiveFile]:
        """Return the files that may hold a sequence, given as stored in the table, below the position
        `end`."""
        return self.files((self.low < end) & (self.first_sequence <= bits) & (self.last_sequence >= bits))

    def files(self, mask: npt.NDArray[np.bool_]) -> list[ArchiveFile]:
        """Return the files of a mask, ordered by their lowest positions."""
        return [self.file(number) for number in mask.nonzero()[0].tolist()]


def _column(actions: pa.Table, name: str, missing: int) -> Int64s:
    """Return a column of numbers, with `missing` where the table has no value."""
    import pyarrow as pa

    if name not in actions.column_names:
        return np.full(len(actions), missing, np.int64)
    column = actions.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC"))
    values: Any = column.cast(pa.int64()).fill_null(missing).combine_chunks().to_numpy(zero_copy_only=False)
    return np.asarray(values, np.int64)


def _widened(stamps: Int64s, by: int) -> Int64s:
    known = (stamps != _LEAST) & (stamps != _GREATEST)
    return np.where(known, stamps + by, stamps)
