"""Compaction: merges small files into large ones, and deletes files that the table no longer uses.

Invariants:
* Rows and their order do not change. * A file is removed only in the commit that adds its rows again.
delta-rs allows two commits to remove the same file, so each compaction builds on the table version that it
read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from tickertape.archive.archive_writer import ArchiveWriter, add_action
from tickertape.archive.limits import (
    commit_attempts_max,
    compact_files_min,
    file_bytes_target,
    keep_seconds_min,
    unknown_seconds_min,
)
from tickertape.archive.location import ArchiveLocation
from tickertape.archive.parquet_writer import Added, write_files
from tickertape.archive.schema import FILE_COLUMNS
from tickertape.base.errors import ArchiveFailed, BadOption
from tickertape.base.text_format import said

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Wrote = Callable[[int], object]
"""Callback with the number of rows written since the last call."""

_READ_ROWS: Final = 64 * 1024


class StoredFile(NamedTuple):
    """A file of the archive, as the table's log describes it."""

    day: str
    topic: str
    first: int
    """Lowest position."""
    last: int
    path: str
    bytes: int
    rows: int


class Compacted(msgspec.Struct):
    """Result of a compaction."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


def stored_files(archive: ArchiveWriter) -> list[StoredFile]:
    """Return the files of the loaded version, by day, topic and position. Files without statistics are
    omitted."""
    import pyarrow as pa

    table = pa.table(archive.table.get_add_actions(flatten=True))
    if not table.num_rows or "min.position" not in table.column_names:
        return []
    days = [str(day) for day in table.column("partition.date").to_pylist()]
    rest = [
        table.column(name).to_pylist()
        for name in (
            "partition.topic", "min.position", "max.position", "path", "size_bytes", "num_records",
        )
    ]  # fmt: skip
    found = [StoredFile(*row) for row in zip(days, *rest, strict=True)]
    return sorted(file for file in found if None not in (file.first, file.last, file.rows))


def plan(
    files: Iterable[StoredFile], *, meanwhile: bool = False, target: int = file_bytes_target
) -> list[list[StoredFile]]:
    """Return the groups of files to merge: neighbours of a day and topic, about `target` bytes per group.

    Overlapping files, which this package never writes, are not merged. With `meanwhile` (the archive is being
    written) a group has at least `compact_files_min` files, none larger than the others together. This limits
    how often a row is rewritten.
    """
    plans: list[list[StoredFile]] = []
    for _, group in groupby(sorted(files), key=attrgetter("day", "topic")):
        run: list[StoredFile] = []
        size = 0
        for file in group:
            apart = run and file.first <= run[-1].last
            if run and (apart or size + file.bytes > target):
                plans.append(run)
                run, size = [], 0
            run.append(file)
            size += file.bytes
        plans.append(run)
    if meanwhile:
        plans = [_alike(run) for run in plans]
    return [run for run in plans if len(run) >= (compact_files_min if meanwhile else 2)]


def _alike(run: list[StoredFile]) -> list[StoredFile]:
    """Return the end of `run` in which no file is larger than the others together."""
    while run:
        largest = max(range(len(run)), key=lambda at: run[at].bytes)
        if 2 * run[largest].bytes <= sum(file.bytes for file in run):
            return run
        run = run[largest + 1 :]
    return run


def compact(archive: ArchiveWriter, *, meanwhile: bool = False, wrote: Wrote | None = None) -> Compacted:
    """Merge small files of `archive` by day and topic, with one commit per group. Others may add and read
    meanwhile.

    For `meanwhile` see `plan`. Raises `ArchiveFailed`, `OSError`."""
    done = Compacted()
    archive.reload()
    for run in plan(stored_files(archive), meanwhile=meanwhile):
        added = write_files(archive.place, _rows_of(archive.place, run), wrote)
        rows = sum(file.rows for file in run)
        if sum(file.rows for file in added) != rows:
            raise ArchiveFailed(
                f"Cannot compact {archive.place.location!r}: the files {run[0].path!r} to "
                f"{run[-1].path!r} should contain {rows:,} rows, but contain another number. "
                "These files were not changed. Restore them from a copy."
            )
        if _replace(archive, run, added):
            done.files_before += len(run)
            done.files_after += len(added)
            done.rows += rows
            done.bytes_before += sum(file.bytes for file in run)
            done.bytes_after += sum(file.bytes for file in added)
    return done


def vacuum(archive: ArchiveWriter, keep_seconds: float) -> int:
    """Delete files that have not been part of the archive for `keep_seconds`. Return their number.

    These are compacted files, and files of failed attempts, which are kept for at least
    `unknown_seconds_min`. Raises `BadOption` below one hour, `ArchiveFailed`."""
    if keep_seconds < keep_seconds_min:
        raise BadOption(
            f"Cannot keep replaced files for only {keep_seconds:g} s: readers of older versions of the table "
            "may still use them. Keep them for at least one hour."
        )
    removed = set(_vacuumed(archive, keep_seconds, full=False))
    # No commit names the files of a batch in progress either.
    removed |= set(_vacuumed(archive, max(keep_seconds, unknown_seconds_min), full=True))
    return len(removed)


def _vacuumed(archive: ArchiveWriter, keep_seconds: float, *, full: bool) -> list[str]:
    """Delete files that a commit replaced `keep_seconds` ago. With `full` also files of that age that no
    commit names.

    Return their paths. Raises `ArchiveFailed`."""
    hours = -int(-keep_seconds // 3600)
    try:
        removed = archive.table.vacuum(
            retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=full
        )
    except Exception as error:
        raise ArchiveFailed(
            f"Cannot delete old files of archive {archive.place.location!r}: {said(error).rstrip('.')}. "
            "Check the location and its access."
        ) from error
    archive.reload()
    return removed


def _rows_of(place: ArchiveLocation, run: Sequence[StoredFile]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of consecutive files, with the topic as a column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = place.file_system()
    for stored in run:
        with files.open_input_file(stored.path) as opened:
            file = pq.ParquetFile(opened, page_checksum_verification=True)
            for batch in batches_of(file):
                topics = pa.array([stored.topic], pa.string()).take(_zeros(batch.num_rows))
                yield batch.select(FILE_COLUMNS).append_column("topic", topics)


def batches_of(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, one row group at a time, because the bodies of several have no size limit."""
    for group in range(file.metadata.num_row_groups):
        yield from file.iter_batches(_READ_ROWS, [group], list(FILE_COLUMNS), use_threads=False)


def _zeros(count: int) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))])


def _replace(archive: ArchiveWriter, run: Sequence[StoredFile], added: Sequence[Added]) -> bool:
    """Replace old files by new ones. False if another process replaced one of them meanwhile."""
    from deltalake.transaction import RemoveAction

    for _ in range(commit_attempts_max):
        if not set(run) <= set(stored_files(archive)):
            return False  # vacuum removes the new files
        moment = int(time.time() * 1000)
        actions: list[Any] = [add_action(file, data_change=False) for file in added]
        actions += [
            RemoveAction(
                path=file.path,
                data_change=False,
                deletion_timestamp=moment,
                size=file.bytes,
                partition_values={"date": file.day, "topic": file.topic},
            )
            for file in run
        ]
        if archive.commit(added, actions, {"tickertape.compacted": str(len(run))}, []):
            return True
    raise ArchiveFailed(
        f"Cannot compact {archive.place.location!r}: other writers keep changing the table. Try again later."
    )
