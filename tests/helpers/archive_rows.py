"""Rows for tests of the archive, and an independent reader of archives (deltalake and pyarrow).

The rows are like those of a log, as written batches. Must never share code with the writer of the archive,
beyond the names of columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tickertape.journal.disk import SystemDisk
from tickertape.journal.offline.snapshot import SnapshotReader, take_snapshot

JOURNAL = "0123456789abcdef0123456789abcdef"
NOON = 1_790_000_000_000_000
"""Microseconds since 1970: some day at about noon."""

SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("topic", pa.string()),
        ("publisher", pa.string()),
        ("sequence", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("data", pa.binary()),
        ("expiration_ms", pa.int64()),
        ("correlation_id", pa.string()),
        ("key", pa.string()),
    ]
)


def batch_of(
    positions: Sequence[int],
    topics: Sequence[str] = ("flights",),
    *,
    body: bytes = b"",
    micros_each: int = 1000,
) -> pa.RecordBatch:
    """Return one row at each position: topics take turns, bodies contain the position, some rows have
    labels.
    """
    rows = [
        {
            "position": at,
            "topic": topics[at % len(topics)],
            "publisher": str(2**64 - 1 - at % 3),
            "sequence": at - 5,
            "timestamp": NOON + at * micros_each,
            "data": b"%d " % at + body,
            "expiration_ms": at if at % 4 == 0 else None,
            "correlation_id": f"c{at}" if at % 5 == 0 else None,
            "key": f"k{at % 7}" if at % 2 else None,
        }
        for at in positions
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Return the rows of batches, in order of position."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: int(row["position"]))


def archived(location: Path | str, options: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the rows of an archive, in order of position, without the date. `options` are an object
    store's.
    """
    table = DeltaTable(location, storage_options=options).to_pyarrow_table()
    return rows_of(table.select(SCHEMA.names).to_batches())


def check_files(location: Path | str) -> list[pq.FileMetaData]:
    """Check that every file matches the table's log, with rows in order, of one day and topic."""
    table = DeltaTable(location)
    found = []
    for add in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        path = Path(table.table_uri.removeprefix("file://")) / add["path"]
        file = pq.ParquetFile(path, page_checksum_verification=True)
        positions = file.read(["position"]).column(0).to_pylist()
        stamps = file.read(["timestamp"]).column(0).to_pylist()
        assert positions == sorted(set(positions)), path
        assert (positions[0], positions[-1]) == (add["min.position"], add["max.position"])
        assert add["min.timestamp"] <= min(stamps)
        assert max(stamps) <= add["max.timestamp"]
        assert {stamp.date() for stamp in stamps} == {add["partition.date"]}
        assert add["num_records"] == len(positions)
        assert add["size_bytes"] == path.stat().st_size
        found.append(file.metadata)
    return found


def log_rows(directory: Path, begin: int = 0) -> list[dict[str, Any]]:
    """Return the contents of a log's segment files from position `begin` on, as rows of the archive."""
    disk = SystemDisk(directory)
    snapshot = take_snapshot(disk, unsynced=True)
    reader = SnapshotReader(disk, snapshot.view)
    rows = []
    for positions, batch in reader.selected(begin, snapshot.view.end_position):
        for index, position in enumerate(positions.tolist()):
            sequence = batch.sequence(index)
            rows.append(
                {
                    "position": position,
                    "topic": batch.topic(index),
                    "publisher": str(batch.publisher(index)),
                    "sequence": sequence - 2**64 if sequence >= 2**63 else sequence,
                    "timestamp": datetime.fromtimestamp(0, UTC)
                    + timedelta(microseconds=batch.timestamp(index)),
                    "data": bytes(batch.body(index)),
                    "expiration_ms": batch.expiration(index),
                    "correlation_id": batch.correlation_id(index),
                    "key": batch.key(index),
                }
            )
    reader.close()
    return rows


def log_end(directory: Path) -> int:
    """Return the end of a log."""
    return take_snapshot(SystemDisk(directory), unsynced=True).view.end_position
