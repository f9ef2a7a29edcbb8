"""Owns where the archive is: opening its table and its files, on a local path or in an object store.

Must never hand out an error of a library: what cannot be read is `ArchiveFailed`, with the file's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tickertape.base.errors import ArchiveFailed
from tickertape.base.texts import said

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import DeltaTable


class Store:
    """A place and how it is reached. `options` are delta-rs's for object stores (credentials, endpoints)."""

    def __init__(self, location: str, options: Mapping[str, str] | None = None) -> None:
        self.location = location
        self.options = dict(options or {})
        self.root = local_path(location)
        """The directory; None in an object store."""
        self._files: Any = None
        self.files_opened = 0
        """Parquet files opened so far."""
        self.groups_read = 0
        """Row groups begun so far."""

    def has_table(self) -> bool:
        """Whether there is a table now. Raises `ArchiveFailed`."""
        from deltalake import DeltaTable

        with self.failing("the table"):
            return bool(DeltaTable.is_deltatable(self.location, self.options or None))

    def open_table(self) -> DeltaTable:
        """The newest version of the table. Raises `ArchiveFailed`."""
        from deltalake import DeltaTable

        with self.failing("the table"):
            return DeltaTable(self.location, storage_options=self.options or None)

    def open_file(self, path: str) -> pq.ParquetFile:
        """One of its files; checksums of pages are checked where there are any. Raises `ArchiveFailed`."""
        import pyarrow.parquet as pq

        self.files_opened += 1
        with self.failing(path):
            source: Any = str(self.root / path) if self.root is not None else self._open_remote(path)
            return pq.ParquetFile(
                source,
                memory_map=self.root is not None,
                pre_buffer=self.root is None,
                read_dictionary=["publisher"],
                coerce_int96_timestamp_unit="us",
                page_checksum_verification=True,
            )

    def rows(
        self, file: pq.ParquetFile, path: str, group: int, columns: Sequence[str], rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """A row group, so many rows at a time. Raises `ArchiveFailed`."""
        self.groups_read += 1
        with self.failing(path):
            yield from file.iter_batches(rows_max, [group], list(columns), use_threads=False)

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Errors of the libraries as ours."""
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (OSError, pa.ArrowException, DeltaError) as error:
            missing = isinstance(error, FileNotFoundError) or "not found" in str(error).lower()
            raise ArchiveFailed(
                f"{self.location}: {what} cannot be read: {said(error)}", missing=missing
            ) from error

    def _open_remote(self, path: str) -> Any:
        import pyarrow.fs as pafs
        from deltalake.fs import DeltaStorageHandler

        if self._files is None:
            self._files = pafs.PyFileSystem(DeltaStorageHandler(self.location, self.options or None))
        return self._files.open_input_file(path)


def local_path(location: str) -> Path | None:
    """The directory that `location` names; None when it is the URI of something else."""
    if "://" not in location:
        return Path(location)
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
