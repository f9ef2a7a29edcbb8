"""Archive reader: the archived range of a journal, its messages in log order, and lookups.

All calls block and run on worker threads. A covered message that cannot be read raises `ArchiveFailed` with
the name of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from tickertape.archive import lookup
from tickertape.archive.delta_table import ArchiveTable, Int64s, Manifest
from tickertape.archive.limits import archive_looks_max
from tickertape.archive.location import check_files, location_of
from tickertape.archive.parquet_scan import ParquetScan
from tickertape.archive.rows_to_batches import Rows
from tickertape.archive.schema import Coverage, coverage_of
from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import ArchiveFailed
from tickertape.base.limits import archive_answer_bytes_max
from tickertape.base.names import is_pattern
from tickertape.batch import MessageBatch
from tickertape.filter import Filter, compile_topic_pattern

if TYPE_CHECKING:
    from deltalake import DeltaTable

T = TypeVar("T")


class ArchiveExtent(NamedTuple):
    """Consecutive messages of the archive."""

    batch: MessageBatch | None
    """None if no matching message is below `end`."""
    positions: Int64s
    """Position of each message."""
    end: int
    """All matching messages below this position were returned."""


class ArchiveReader:
    """The archive at `location`, a path or the URI of an object store.

    `options` are delta-rs options. `journal` is the required journal id (None: any). Thread-safe."""

    def __init__(
        self, location: str, journal: str | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        self.store = ArchiveTable(location, options)
        self._journal = journal
        self._table: DeltaTable | None = None
        self._looks_left = 0
        """Remaining incremental refreshes of the table."""
        self._manifest: Manifest | None = None
        self._lock = Lock()

    def refresh(self, *, anew: bool = False) -> Coverage | None:
        """Read the newest version of the table and return its coverage. None without a table.

        With `anew`, and after `archive_looks_max` refreshes, the table is opened again, because another table
        may be at the same location. Raises `ArchiveFailed`, `WrongJournal`.
        """
        with self._lock:
            table = self._newest(anew=anew)
            if table is None:
                return None
            with self.store.failing("the table"):
                known, version, table_id = self._manifest, table.version(), str(table.metadata().id)
                if known is None or (known.version, known.table_id) != (version, table_id):
                    coverage = coverage_of(table, self._journal)
                    self._manifest = known = Manifest(coverage, version, table, table_id)
            self._table = table
            return known.coverage

    def _newest(self, *, anew: bool) -> DeltaTable | None:
        """Return the newest version of the table. None if it never existed."""
        if not self.store.has_table():
            if self._manifest is None:
                return None
            raise ArchiveFailed(
                f"Cannot read archive {self.store.location!r}: the table was deleted. It had "
                f"{self._manifest.coverage}. Restore the table."
            )
        if self._table is not None and self._looks_left and not anew:
            self._looks_left -= 1
            try:
                with self.store.failing("the table"):
                    self._table.update_incremental()
            except ArchiveFailed:
                pass  # the log entries it continues from may be cleaned up
            else:
                return self._table
        self._looks_left = archive_looks_max
        return self.store.open_table()

    @property
    def table_id(self) -> str:
        """Id of the table at the last refresh. A table that is deleted and created again has a new id."""
        manifest = self._manifest
        return "" if manifest is None else manifest.table_id

    @property
    def coverage(self) -> Coverage | None:
        """Coverage at the last refresh. None before it, and without a table."""
        manifest = self._manifest
        return None if manifest is None else manifest.coverage

    def scan(self, begin: int, end: int, topic: str | None = None) -> ParquetScan:
        """Scan the rows with positions in `[begin, end)` of a topic, of the topics of a pattern, or (None) of
        all.

        Raises `ArchiveFailed` if the archive does not cover them."""
        manifest = self._covering(begin, end)
        files = manifest.overlapping(begin, end, None if topic is None else fits(topic))
        return ParquetScan(self.store, files, begin, end)

    def messages(
        self,
        begin: int,
        end: int,
        topic: str | None = None,
        *,
        filter: Filter | None = None,
        bytes_max: int = archive_answer_bytes_max,
    ) -> Iterator[ArchiveExtent]:
        """Yield the messages with positions in `[begin, end)` as published, in log order.

        `topic` is a name, a pattern, or None for all. `filter`, which must not need a context, selects
        messages. A batch has at most `bytes_max` body bytes, or one message. The last batch ends at `end`. If
        the table is compacted meanwhile, reading continues in the newer version. Raises `ArchiveFailed`.
        """
        at = begin
        while True:
            scan = self.scan(at, end, topic)
            try:
                for piece in scan:
                    for rows, reached in pieces(piece.rows, piece.end, bytes_max):
                        yield _archived(rows, reached, filter)
                        at = reached
                return
            except ArchiveFailed as error:
                if not self.moved(error):
                    raise
            finally:
                scan.close()

    def find_bookmark(self, bookmark: Bookmark, end: int) -> int | None:
        """Return the position, below `end`, of the message of a bookmark, or None. Raises `ArchiveFailed`."""
        return self._again(lambda manifest: lookup.find_bookmark(self.store, manifest, bookmark, end))

    def find_time(self, micros: int, begin: int, end: int) -> int | None:
        """Return the lowest position in `[begin, end)` of a message with a timestamp of at least `micros`, or
        None.

        `micros` are microseconds since 1970. Raises `ArchiveFailed`."""
        return self._again(lambda manifest: lookup.find_time(self.store, manifest, micros, begin, end))

    def last_before(self, position: int) -> lookup.Last | None:
        """Return the last message before `position`, or None. Raises `ArchiveFailed`."""
        return self._again(lambda manifest: lookup.last_before(self.store, manifest, position))

    def check(self, begin: int, end: int) -> None:
        """Check that the files with positions in `[begin, end)` exist with the sizes recorded in the newest
        version.

        Raises `ArchiveFailed`, also if the archive does not cover these positions."""
        self.refresh()
        place = location_of(self.store.location, self.store.options)

        def check(_: Manifest) -> None:
            files = self._covering(begin, end).overlapping(begin, end)
            check_files(place, {file.path: file.bytes for file in files})

        self._again(check)

    def moved(self, error: ArchiveFailed) -> bool:
        """Return whether a retry with the newest version may succeed, because a missing file was replaced.

        Raises the errors of `refresh`."""
        before = self._manifest
        if not error.missing:
            return False
        self.refresh(anew=True)
        return self._manifest is not before

    def _again(self, find: Callable[[Manifest], T]) -> T:
        while True:
            manifest = self._manifest
            if manifest is None:
                self.refresh()
                manifest = self._known()
            try:
                return find(manifest)
            except ArchiveFailed as error:
                if not self.moved(error):
                    raise

    def _known(self) -> Manifest:
        manifest = self._manifest
        if manifest is None:
            raise ArchiveFailed(
                f"Cannot read archive {self.store.location!r}: it has no table yet. Create it with "
                "`tickertape pipeline archive`."
            )
        return manifest

    def _covering(self, begin: int, end: int) -> Manifest:
        """Return a version that covers `[begin, end)`."""
        if self._manifest is None or self._manifest.coverage.end < end:
            self.refresh()
        manifest = self._known()
        coverage = manifest.coverage
        if not coverage.begin <= begin <= end <= coverage.end:
            raise ArchiveFailed(
                f"Cannot read positions {begin} to {end} (exclusive) of archive {self.store.location!r}: it "
                f"has {coverage}. Use positions in this range."
            )
        return manifest


def fits(topic: str) -> Callable[[str], bool]:
    """Return a function that tests whether a topic is `topic`, or matches it if it is a pattern."""
    if is_pattern(topic):
        return compile_topic_pattern(topic).search
    return topic.__eq__


def pieces(rows: Rows | None, end: int, bytes_max: int) -> Iterator[tuple[Rows | None, int]]:
    """Yield pieces with at most `bytes_max` body bytes, or one row, and the position that each reaches."""
    if rows is None:
        yield None, end
        return
    offsets = rows.offsets
    count, low = len(rows.positions), 0
    while low < count:
        high = int(offsets.searchsorted(int(offsets[low]) + bytes_max, "right")) - 1
        high = min(max(high, low + 1), count)
        reached = end if high == count else int(rows.positions[high - 1]) + 1
        yield rows.slice(low, high), reached
        low = high


def _archived(rows: Rows | None, end: int, filter: Filter | None) -> ArchiveExtent:
    if rows is not None and filter is not None:
        passed = np.array(filter.select(rows.bodies()), np.int64)
        rows = rows.take(passed) if len(passed) else None
    if rows is None:
        return ArchiveExtent(None, np.empty(0, np.int64), end)
    return ArchiveExtent(rows.batch(), rows.positions, end)
