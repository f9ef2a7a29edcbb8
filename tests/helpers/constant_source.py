"""Spark data source that yields one Arrow batch again and again, and reads nothing.

Its time is the price of the Python data source itself, which a source that reads a log pays too. Must be
importable in the Python processes of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

ROWS_OF_A_BATCH: Final = 40_000


class ConstantReader(DataSourceReader):
    """A reader of `rows` bodies of `size` bytes each, divided between `tasks` tasks."""

    def __init__(self, rows: int, size: int, tasks: int) -> None:
        self._rows = rows
        self._size = size
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task. The value is its number of rows."""
        rows, more = divmod(self._rows, self._tasks)
        return [InputPartition(rows + (task < more)) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the batches of a task."""
        left: int = partition.value
        batch = self._batch(min(left, ROWS_OF_A_BATCH))
        while left:
            part = batch.slice(0, min(left, ROWS_OF_A_BATCH))
            left -= part.num_rows
            yield part

    def _batch(self, rows: int) -> pa.RecordBatch:
        bodies = pa.array([bytes(self._size)] * rows, pa.binary())
        return pa.RecordBatch.from_arrays([bodies], ["data"])


class ConstantSource(DataSource):
    """`format("constant")` with the options `rows`, `size` and `tasks`."""

    @classmethod
    def name(cls) -> str:
        return "constant"

    def schema(self) -> str:
        return "data binary"

    def reader(self, schema: StructType) -> ConstantReader:
        return ConstantReader(*(int(self.options[name]) for name in ("rows", "size", "tasks")))
