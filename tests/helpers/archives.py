"""Writer of archives for tests, as documented in docs/formats/archive.md.

Must never share code with the product's writer, so that both can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction

from tests.helpers.logs import Commit
from tickertape.archive import schema
from tickertape.batch import MessageBatch, slice_batch
from tickertape.batch.format import Int64s
from tickertape.journal.disk import SystemDisk
from tickertape.journal.offline.range_reader import read_range

Parts = Iterable[tuple[Sequence[int] | Int64s, MessageBatch]]
"""Positions and their messages."""
_MAPS = {"sow_key": "key"}


class ArchiveWriter:
    """Writes the archive of `journal` at `location`."""

    def __init__(self, location: Path | str, journal: str, begin: int = 0, topics: str = "") -> None:
        self.location = Path(location)
        self.journal = journal
        self.table = DeltaTable.create(
            str(location),
            Schema.from_arrow(schema.arrow_schema()),
            partition_by=list(schema.PARTITION_COLUMNS),
            configuration=schema.table_properties(journal, begin, topics),
            raise_if_key_not_exists=False,
        )

    def add(
        self,
        parts: Parts,
        end: int,
        *,
        rows_per_file: int | None = None,
        rows_per_group: int = 1 << 20,
        statistics: bool = True,
    ) -> list[str]:
        """Archive messages: everything below `end` is archived then. Gives the paths of the new files."""
        actions: list[Any] = []
        for day, topic, rows in split(rows_of(parts)):
            size = rows_per_file or rows.num_rows
            actions += [
                self._write(day, topic, rows.slice(at, size), rows_per_group, statistics)
                for at in range(0, rows.num_rows, size)
            ]
        self.commit(actions, end)
        return [action.path for action in actions]

    def commit(self, actions: list[Any], end: int | None) -> None:
        """Change the files of the table. With `end`, the change includes the transaction of that end."""
        transactions = [] if end is None else [Transaction(schema.app_id(self.journal), end)]
        self.table.create_write_transaction(
            actions,
            "append",
            self.table.schema(),
            list(schema.PARTITION_COLUMNS),
            commit_properties=CommitProperties(app_transactions=transactions),
        )
        self.table.update_incremental()

    def _write(
        self, day: date, topic: str, rows: pa.Table, rows_per_group: int, statistics: bool
    ) -> AddAction:
        path = schema.file_path(day, uuid4().hex)
        target = self.location / path
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            rows.select(schema.FILE_COLUMNS),
            target,
            row_group_size=rows_per_group,
            write_page_checksum=True,
            use_dictionary=["publisher", "correlation_id", "key"],
            write_batch_size=4,
        )
        numbers = {name: rows.column(name).cast(pa.int64()).to_numpy() for name in ("position", "sequence")}
        stamps = rows.column("timestamp").cast(pa.int64()).to_numpy()
        text = schema.file_statistics(
            rows.num_rows,
            (int(numbers["position"].min()), int(numbers["position"].max())),
            (int(stamps.min()), int(stamps.max())),
            (int(numbers["sequence"].min()), int(numbers["sequence"].max())),
        )
        return AddAction(
            path,
            target.stat().st_size,
            {"date": day.isoformat(), "topic": topic},
            0,
            True,
            text if statistics else "{}",
        )


def rows_of(parts: Parts) -> pa.Table:
    """Return the rows of messages, without control records."""
    names = [
        "topic", "publisher", "sequence", "timestamp", "data", "expiration_ms", "correlation_id", "sow_key",
        "kind",
    ]  # fmt: skip
    tables = []
    for positions, batch in parts:
        rows = pa.Table.from_batches([batch.to_arrow(names)])
        rows = rows.append_column("position", pa.array(np.asarray(positions, np.int64)))
        rows = rows.filter(pa.compute.equal(rows.column("kind"), 0))
        rows = rows.set_column(0, "topic", rows.column("topic").cast(pa.string()))
        tables.append(rows)
    rows = pa.concat_tables(tables)
    columns = {_MAPS.get(name, name): rows.column(name) for name in rows.column_names}
    columns["publisher"] = columns["publisher"].cast(pa.string())
    bits = columns["sequence"].to_numpy().view(np.int64)
    columns["sequence"] = pa.chunked_array([bits])
    columns["date"] = columns["timestamp"].cast(pa.date32())
    return pa.table({name: columns[name] for name in schema.COLUMNS}).cast(schema.arrow_schema())


def split(rows: pa.Table) -> list[tuple[date, str, pa.Table]]:
    """Return the rows of each day and topic, by position."""
    found = []
    keys = rows.select(["date", "topic"]).group_by(["date", "topic"]).aggregate([]).to_pylist()
    for key in keys:
        own = pa.compute.and_(
            pa.compute.equal(rows.column("date"), key["date"]),
            pa.compute.equal(rows.column("topic"), key["topic"]),
        )
        found.append((key["date"], key["topic"], rows.filter(own).sort_by("position")))
    return found


def commits_of(data: Path, journal: str, start: int, end: int, topics: Iterable[str]) -> list[Commit]:
    """Return commits of a journal with messages of some topics at the positions `[start, end)`, cut to
    these.
    """
    disk = SystemDisk(data)
    found: dict[int, Commit] = {}
    try:
        for topic in topics:
            for stored in read_range(disk, journal, start, end, topic):
                first, batch = stored.header.first_position, stored.batch()
                low, high = max(start - first, 0), min(end - first, batch.count)
                if low < high:
                    found[first] = Commit(np.arange(first + low, first + high), slice_batch(batch, low, high))
    finally:
        disk.close_all()
    return [found[first] for first in sorted(found)]
