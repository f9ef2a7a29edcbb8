"""Parquet writer: writes rows to files by day and topic, in log order, in prunable row groups.

Buffered rows are limited to `buffer_bytes_max`. Positions ascend within a file. Files become part of the
archive only with their commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.archive.limits import (
    archive_page_bytes,
    archive_page_messages_max,
    archive_row_group_bytes_max,
    buffer_bytes_max,
    file_bytes_target,
    files_open_max,
    row_group_rows_max,
)
from tickertape.archive.location import ArchiveLocation, new_file
from tickertape.archive.rows_to_batches import body_offsets, index_array, numbers
from tickertape.archive.schema import FILE_COLUMNS, day_of, file_path, file_schema, file_statistics
from tickertape.base.errors import ArchiveFailed
from tickertape.base.limits import message_cost_bytes

if TYPE_CHECKING:
    import pyarrow as pa

SETTINGS: Final[dict[str, Any]] = {
    # Level 1 writes twice as fast as level 3, at the same size.
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["publisher", "correlation_id", "key"],
    "column_encoding": dict.fromkeys(("position", "sequence", "timestamp"), "DELTA_BINARY_PACKED"),
    "write_statistics": ["position", "publisher", "sequence", "timestamp"],
    "write_page_checksum": True,
    "data_page_size": archive_page_bytes,
    "write_batch_size": archive_page_messages_max,
}
"""Parquet settings."""

_DAY: Final = 86_400_000_000

Int64s = npt.NDArray[np.int64]


class Added(msgspec.Struct, frozen=True):
    """A written file, as described in the table's log."""

    path: str
    bytes: int
    rows: int
    day: str
    topic: str
    statistics: str


class _Group(NamedTuple):
    """Partition of a file: a day and a topic."""

    day: int
    """Days since 1970."""
    topic: str


class PartitionFile:
    """One file of a day and a topic. Rows are written in log order."""

    def __init__(self, place: ArchiveLocation, day: int, topic: str) -> None:
        import pyarrow.parquet as pq

        self._date, self._topic = day_of(day * _DAY), topic
        self.path = file_path(self._date, uuid4().hex)
        self._stack = contextlib.ExitStack()
        self._file = self._stack.enter_context(new_file(place, self.path))
        self._writer = pq.ParquetWriter(self._file, file_schema(), **SETTINGS)
        self._bounds: list[tuple[int, int]] = []
        self._last = -1
        self.rows = 0

    @property
    def bytes(self) -> int:
        """Size of the written file."""
        return int(self._file.tell())

    def write(self, table: pa.Table) -> None:
        """Write one row group. Raises `ArchiveFailed` if positions do not ascend."""
        columns = {name: numbers(table.column(name)) for name in ("position", "timestamp", "sequence")}
        positions = columns["position"]
        if positions[0] <= self._last or (positions[1:] <= positions[:-1]).any():
            raise ArchiveFailed(
                f"Cannot add rows to {self.path!r}: their positions must ascend, and be above "
                f"position {self._last}. Report the defect."
            )
        self._last = int(positions[-1])
        found = [(int(values.min()), int(values.max())) for values in columns.values()]
        if self._bounds:
            found = [(min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(self._bounds, found, strict=True)]
        self._bounds = found
        self.rows += table.num_rows
        self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> Added:
        """Close the file durably and return its statistics. Raises `OSError`."""
        self._writer.close()
        size = self.bytes
        self._stack.close()
        positions, timestamps, sequences = self._bounds
        statistics = file_statistics(self.rows, positions, timestamps, sequences)
        return Added(self.path, size, self.rows, self._date.isoformat(), self._topic, statistics)

    def abandon(self, error: BaseException) -> None:
        """Discard the file, and remove it if possible."""
        with contextlib.suppress(OSError):
            self._writer.close()
        with contextlib.suppress(type(error)):
            self._stack.__exit__(type(error), error, error.__traceback__)


class _WaitingRows:
    """Buffered rows of a day and a topic."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.rows = 0
        self.body_bytes = 0

    @property
    def cost(self) -> int:
        """Approximate memory of the rows."""
        return self.body_bytes + self.rows * message_cost_bytes

    def fits(self, rows: int, body_bytes: int) -> bool:
        """Return whether these rows and the buffered ones fit in a row group."""
        return (
            self.rows + rows <= row_group_rows_max
            and self.body_bytes + body_bytes <= archive_row_group_bytes_max
        )

    def take(self) -> pa.Table:
        import pyarrow as pa

        table = pa.Table.from_batches(self.parts, file_schema()).combine_chunks()
        self.parts, self.rows, self.body_bytes = [], 0, 0
        return table


class FileWriter:
    """Writes rows in log order. `finish` returns the files, `abandon` discards them."""

    def __init__(self, place: ArchiveLocation) -> None:
        self._place = place
        self._waiting: dict[_Group, _WaitingRows] = {}
        self._open: dict[_Group, PartitionFile] = {}
        """Open files, least recently written first."""
        self._cost = 0
        self._added: list[Added] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows with all columns of the table except `date`. Raises `OSError`, `ArchiveFailed`."""
        for group, rows in _groups(batch):
            for part in _row_groups(rows):
                self._add(group, *part)

    def finish(self) -> list[Added]:
        """Write buffered rows and close all files. Raises `OSError`, `ArchiveFailed`."""
        for group in sorted(self._waiting):
            self._flush(group)
            self._close(group)
        for group in list(self._open):
            self._close(group)
        return self._added

    def abandon(self, error: BaseException) -> None:
        """Discard open files. Finished files are left to vacuum."""
        for file in self._open.values():
            file.abandon(error)
        self._open.clear()

    def _add(self, group: _Group, batch: pa.RecordBatch, body_bytes: int) -> None:
        waiting = self._waiting.get(group)
        if waiting is None:
            waiting = self._waiting[group] = _WaitingRows()
        if waiting.rows and not waiting.fits(batch.num_rows, body_bytes):
            self._flush(group)
        before = waiting.cost
        waiting.parts.append(batch)
        waiting.rows += batch.num_rows
        waiting.body_bytes += body_bytes
        self._cost += waiting.cost - before
        while self._cost > buffer_bytes_max:
            self._flush(max(self._waiting, key=lambda one: self._waiting[one].cost))

    def _flush(self, group: _Group) -> None:
        """Write the buffered rows of a group as a row group."""
        waiting = self._waiting[group]
        if not waiting.rows:
            return
        self._cost -= waiting.cost
        file = self._open.pop(group, None)
        if file is None:
            if len(self._open) >= files_open_max:
                self._close(next(iter(self._open)))
            file = PartitionFile(self._place, *group)
        self._open[group] = file
        file.write(waiting.take())
        if file.bytes >= file_bytes_target:
            self._close(group)

    def _close(self, group: _Group) -> None:
        file = self._open.pop(group, None)
        if file is not None:
            self._added.append(file.close())


def write_files(
    place: ArchiveLocation, batches: Iterable[pa.RecordBatch], wrote: Callable[[int], object] | None = None
) -> list[Added]:
    """Write all of `batches`, with all columns of the table except `date` and ascending positions.

    `wrote` is called with the number of rows written since the last call. Raises `OSError`, `ArchiveFailed`,
    and errors of `batches`. After an error no file is usable."""
    writer = FileWriter(place)
    try:
        for batch in batches:
            writer.write(batch)
            if wrote is not None:
                wrote(batch.num_rows)
        return writer.finish()
    except BaseException as error:
        writer.abandon(error)
        raise


# -- rows ---------------------------------------------------------------------------------------------


def _groups(batch: pa.RecordBatch) -> Iterator[tuple[_Group, pa.RecordBatch]]:
    """Yield the rows of each day and topic, in the columns of a file.

    The rows of a single group are not copied. Otherwise each group is a copy, so that a small one does not
    keep the whole batch in memory."""
    if not batch.num_rows:
        return
    topics = batch.column("topic").dictionary_encode()
    names = topics.dictionary.to_pylist()
    columns = batch.select(FILE_COLUMNS)
    days = numbers(batch.column("timestamp")) // _DAY
    if len(names) == 1 and days.min() == days.max():
        yield _Group(int(days[0]), names[0]), columns
        return
    key = (days - days.min()) * len(names) + topics.indices.to_numpy()
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.diff(key[order], prepend=-1, append=-1))
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        first = int(order[low])
        group = _Group(int(days[first]), names[topics.indices[first].as_py()])
        yield group, columns.take(index_array(order[low:high]))


def _row_groups(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield pieces of `batch` that fit a row group or have one row, each with its body bytes."""
    offsets, count, low = body_offsets(batch), batch.num_rows, 0
    while low < count:
        high = (
            int(np.searchsorted(offsets, int(offsets[low]) + archive_row_group_bytes_max, side="right")) - 1
        )
        high = min(max(high, low + 1), low + row_group_rows_max, count)
        whole = low == 0 and high == count
        yield batch if whole else batch.slice(low, high - low), int(offsets[high]) - int(offsets[low])
        low = high
