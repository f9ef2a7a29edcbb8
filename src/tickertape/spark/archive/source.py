"""Streaming source of the archive job: tasks write log ranges to files and return their names.

Rows of the log are not passed to Spark, because they would go through the JVM to another Python process.
Files become part of the archive only with the driver's commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StructType

from tickertape.archive.location import ArchiveLocation
from tickertape.archive.parquet_writer import write_files
from tickertape.archive.schema import COLUMNS, arrow_schema
from tickertape.base.bookmarks import EPOCH
from tickertape.base.errors import ArchiveFailed, BookmarkExpired, JournalError
from tickertape.spark.common.column_block import ColumnBlock, ColumnBlocks
from tickertape.spark.common.schema import ColumnSelection, gathered, record_batch
from tickertape.spark.source.offsets import Offset, Written, read_offset
from tickertape.spark.source.options import Query, SourceOptions, read_options
from tickertape.spark.source.partitions import ROWS_WORTH_A_TASK, LogPartition
from tickertape.spark.source.stream_reader import TickertapeStreamReader
from tickertape.spark.source.task_reader import pieces
from tickertape.wire.commands import Resolved

FORMAT: Final = "tickertape_archive"
ORDER: Final = "archiveSecret"
"""Option with an `ArchiveScanOptions`. It may contain store credentials: Spark hides options with such a
name."""

SCHEMA: Final = "start long, end long, files string"
"""Result of a task: the positions it read, and its files as JSON."""
_ARROW: Final = pa.schema([("start", pa.int64()), ("end", pa.int64()), ("files", pa.string())])

_READ: Final = ColumnSelection(
    pa.schema([field for field in arrow_schema() if field.name not in ("sequence", "date")])
)
"""All columns of the archive except two: Spark cannot represent sequences above 2**63, and `date` follows
from the timestamp."""


class ArchiveScanOptions(msgspec.Struct, frozen=True):
    """Target and start of an archive query."""

    place: ArchiveLocation
    journal: str
    begin: int
    """Current end of the archive."""
    tasks: int
    """Maximum number of partitions of a batch."""


class ArchiveSource(DataSource):
    """`spark.readStream.format("tickertape_archive")`, for internal use by `tickertape.spark.archive.job`.

    Its options are the options of the streaming source, and `ORDER`."""

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns: a row per part of the log."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> ArchiveStreamReader:  # noqa: ARG002 - the schema is fixed
        """Return a reader that writes files. Raises the errors of `read_options`."""
        given = {name: value for name, value in self.options.items() if name.lower() != ORDER.lower()}
        order = msgspec.json.decode(self.options[ORDER], type=ArchiveScanOptions)
        wanted = read_options(given, Query.STREAM)
        return ArchiveStreamReader(wanted, order)


class ArchiveStreamReader(TickertapeStreamReader):
    """One query. It starts at the end of the archive and ignores the checkpoint."""

    def __init__(self, wanted: SourceOptions, order: ArchiveScanOptions) -> None:
        super().__init__(wanted, _READ)
        self._order = order

    def initialOffset(self) -> Written:
        """Return the end of the archive."""
        return Offset(self._order.journal, self._order.begin).written()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Write the messages of a partition and return its files. Raises errors of `pieces`, `ArchiveFailed`,
        `OSError`."""
        assert isinstance(partition, LogPartition)
        files = write_files(self._order.place, archive_batches(pieces(partition)))
        told = msgspec.json.encode(files).decode()
        yield pa.RecordBatch.from_arrays(
            [pa.array([partition.start]), pa.array([partition.end]), pa.array([told])], schema=_ARROW
        )

    def partitions(self, start: Written, end: Written) -> list[InputPartition]:
        """Return the partitions of a batch: few, because each one writes separate files. Raises as
        `latestOffset`."""
        size = read_offset(end).position - read_offset(start).position
        worth = max(1, min(self._order.tasks, -(-size // ROWS_WORTH_A_TASK)))
        self._wanted = msgspec.structs.replace(
            self._wanted, partitions_min=worth, rows_per_partition_max=max(1, size)
        )
        return super().partitions(start, end)

    def _look(self, offset: Offset, planned: Offset) -> Resolved:
        try:
            return super()._look(offset, planned)
        except BookmarkExpired as error:
            raise gap(self._order.place, offset.position, self._locate(EPOCH).start) from error
        except JournalError as error:
            raise shortened(self._order.place, offset.position, self._locate(EPOCH).end) from error


def gap(place: ArchiveLocation, archived: int, first: int) -> ArchiveFailed:
    """Return the error for a gap: retention removed positions before they were archived."""
    return ArchiveFailed(
        f"Cannot continue archive {place.location!r}: it ends at position {archived}, and the log starts "
        f"at {first}. "
        f"Positions {archived} to {first} were removed before they were archived. Create a new archive at "
        "another location. Configure the server to keep unarchived messages (retain)."
    )


def shortened(place: ArchiveLocation, archived: int, end: int) -> ArchiveFailed:
    """Return the error for a log that has lost its end and would assign positions again."""
    return ArchiveFailed(
        f"Cannot continue archive {place.location!r}: it ends at position {archived}, but the log ends at "
        f"{end}. The "
        "log has lost archived messages, perhaps because it was restored from a copy. Nothing was added. "
        "Create a new archive at another location."
    )


def archive_batches(found: Iterable[ColumnBlock]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of blocks as record batches with all columns of the archive except `date`."""
    yield from map(archive_batch, gathered(found))


def archive_batch(found: list[ColumnBlock]) -> pa.RecordBatch:
    """Return one record batch. Raises `BadBatch` for an inconsistent block."""
    batch = record_batch(found, _READ)
    sequences = np.ascontiguousarray(ColumnBlocks(found).sequences)
    bits = pa.Array.from_buffers(pa.int64(), len(sequences), [None, pa.py_buffer(sequences)])
    return batch.append_column("sequence", bits).select([name for name in COLUMNS if name != "date"])
