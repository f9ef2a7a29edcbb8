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
    """Messages that follow one another in the archive."""

    batch: MessageBatch | None
    """None: no matching message is below `end`."""
    positions: Int64s
    """Of each message."""
    end: int
    """All matching messages below this position were returned."""


class ArchiveReader:
    """The archive at `location`, a path or the URI of an object store; `options` are delta-rs's for it.

    `journal` is the id of the journal that it must be of (None: any). May be used by several threads."""

    def __init__(
        self, location: str, journal: str | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        self.store = ArchiveTable(location, options)
        self._journal = journal
        self._table: DeltaTable | None = None
        self._looks_left = 0
        """How often it may be gone on from that table."""
        self._manifest: Manifest | None = None
        self._lock = Lock()

    def refresh(self, *, anew: bool = False) -> Coverage | None:
        """Read the newest version of the table and return its extent; None without a table.

        Now and then, and with `anew`, it is opened anew: it may be another one at the same place, whose
        changes say nothing of that. Raises `ArchiveFailed`, `WrongJournal`.
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
        """Return the table in its newest version; None when there never was one."""
        if not self.store.has_table():
            if self._manifest is None:
                return None
            raise ArchiveFailed(f"{self.store.location}: the table is gone; it had {self._manifest.coverage}")
        if self._table is not None and self._looks_left and not anew:
            self._looks_left -= 1
            try:
                with self.store.failing("the table"):
                    self._table.update_incremental()
            except ArchiveFailed:
                pass  # what it goes on from may be cleaned up by now
            else:
                return self._table
        self._looks_left = archive_looks_max
        return self.store.open_table()

    @property
    def table_id(self) -> str:
        """Which table it was when it was looked at last: one that was deleted and made anew is another."""
        manifest = self._manifest
        return "" if manifest is None else manifest.table_id

    @property
    def coverage(self) -> Coverage | None:
        """Extent at the last refresh; None before that, and without a table."""
        manifest = self._manifest
        return None if manifest is None else manifest.coverage

    def scan(self, begin: int, end: int, topic: str | None = None) -> ParquetScan:
        """Return the rows with positions in `[begin, end)` of a topic, of the topics that a pattern fits, or
        (None) of all. Raises `ArchiveFailed` when it does not cover them."""
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
        """Yield the messages with positions in `[begin, end)`, as they were published, in the order of the
        log.

        `topic` is a name, a pattern, or None for all; with `filter`, one that needs no context, only those
        that pass. A batch has bodies of `bytes_max` at most, or one message. The last one ends at `end`.
        Raises `ArchiveFailed`; when the table was compacted meanwhile it goes on in the newer version.
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
        """Position, below `end`, of the message of a bookmark; None: it has none. Raises `ArchiveFailed`."""
        return self._again(lambda manifest: lookup.find_bookmark(self.store, manifest, bookmark, end))

    def find_time(self, micros: int, begin: int, end: int) -> int | None:
        """Return the least position in `[begin, end)` of a message stamped at `micros` (microseconds since
        1970) or later; None when there is none. Raises `ArchiveFailed`."""
        return self._again(lambda manifest: lookup.find_time(self.store, manifest, micros, begin, end))

    def last_before(self, position: int) -> lookup.Last | None:
        """Return the last message before `position`; None: it has none. Raises `ArchiveFailed`."""
        return self._again(lambda manifest: lookup.last_before(self.store, manifest, position))

    def check(self, begin: int, end: int) -> None:
        """Check that the files with positions in `[begin, end)` exist with the sizes that the newest version
        of the table names. Raises `ArchiveFailed`, also when it does not cover these positions."""
        self.refresh()
        place = location_of(self.store.location, self.store.options)

        def check(_: Manifest) -> None:
            files = self._covering(begin, end).overlapping(begin, end)
            check_files(place, {file.path: file.bytes for file in files})

        self._again(check)

    def moved(self, error: ArchiveFailed) -> bool:
        """Return whether the error may be over with the newest version of the table: a file is gone, because
        others took its place. Raises what `refresh` raises."""
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
            raise ArchiveFailed(f"{self.store.location}: there is no table yet")
        return manifest

    def _covering(self, begin: int, end: int) -> Manifest:
        """Return a version that covers `[begin, end)`."""
        if self._manifest is None or self._manifest.coverage.end < end:
            self.refresh()
        manifest = self._known()
        coverage = manifest.coverage
        if not coverage.begin <= begin <= end <= coverage.end:
            raise ArchiveFailed(
                f"{self.store.location} has {coverage}; positions {begin} to below {end} were asked for"
            )
        return manifest


def fits(topic: str) -> Callable[[str], bool]:
    """Return whether a topic is `topic`, or fits it when that is a pattern."""
    if is_pattern(topic):
        return compile_topic_pattern(topic).search
    return topic.__eq__


def pieces(rows: Rows | None, end: int, bytes_max: int) -> Iterator[tuple[Rows | None, int]]:
    """Rows in pieces with bodies of `bytes_max` at most, or of one row, and the positions that they reach."""
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
