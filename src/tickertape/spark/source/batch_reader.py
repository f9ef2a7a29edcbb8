"""Batch reader of Spark: plans on the driver and reads on the executors.

The driver resolves the range to positions of one log and cuts it into partitions. Tasks read by position from
that log only, so each message is read exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tickertape.spark.common.schema import ColumnSelection, record_batches
from tickertape.spark.source.options import SourceOptions
from tickertape.spark.source.partitions import LogPartition, ResolvedRange, parts_of
from tickertape.spark.source.task_reader import connect, located, pieces


class TickertapeReader(DataSourceReader):
    """One read, planned once on the driver and then sent to the executors.

    It has no `pushFilters`: Spark 4.3.0 reuses a read narrowed by a filter for all later queries of the same
    frame, so rows would be missing silently.
    """

    def __init__(self, wanted: SourceOptions, columns: ColumnSelection) -> None:
        self._wanted = wanted
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Plan the partitions of the range at the current state of the log.

        Raises `Disconnected` (no server answers), `TopicNotRecorded`, `BookmarkUnknown`, `BookmarkExpired`,
        `TimedOut`, `BadOption`.
        """
        wanted = self._wanted
        client, uri = connect(wanted.servers, wanted.timeout_seconds)
        with client:
            ask = partial(client.locate, wanted.topic, filter=wanted.filter)
            answer = located(ask, wanted, "continues")
        return [*parts_of(wanted, ResolvedRange(uri, answer), answer.start, answer.end, self._columns)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a partition. Raises the errors of `pieces`."""
        assert isinstance(partition, LogPartition)
        if partition.start == partition.end:
            return
        yield from record_batches(pieces(partition), self._columns)
