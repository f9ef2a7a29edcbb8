"""Owns the batch source "tickertape" of Spark: planning on the driver, reading on the executors.

Must never publish, nor read anything twice or not at all: the driver asks one log for the positions of the
range and cuts them into parts, and each part is read by position from that log only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from tickertape.base.errors import BookmarkUnknown
from tickertape.spark.filters import Narrowing, narrow
from tickertape.spark.options import Wanted, read_options
from tickertape.spark.partitions import LogPart, split
from tickertape.spark.reading import connect, pieces
from tickertape.spark.schema import DEFAULT_SCHEMA, arrow_schema, record_batches

if TYPE_CHECKING:
    from tickertape.client.blocking import Client


class TickertapeSource(DataSource):
    """`spark.read.format("tickertape")`: a range of a topic's log as a table (docs/howto/spark.md)."""

    @classmethod
    def name(cls) -> str:
        """The short name."""
        return "tickertape"

    def schema(self) -> str:
        """All columns; give `spark.read.schema(...)` for fewer. Raises what `read_options` raises."""
        read_options(self.options)
        return DEFAULT_SCHEMA

    def reader(self, schema: StructType) -> TickertapeReader:
        """A reader of the columns of `schema`. Raises what `read_options` and `arrow_schema` raise."""
        wanted = read_options(self.options)
        # Spark refuses a reader that can push filters down in a session that does not allow it.
        kind = PushingReader if wanted.push_down else TickertapeReader
        return kind(wanted, arrow_schema(schema))


class TickertapeReader(DataSourceReader):
    """One read: planned once on the driver, then sent to the executors."""

    def __init__(self, wanted: Wanted, schema: Any) -> None:
        self._wanted = wanted
        self._schema = schema
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        """The parts of the range as the log stands now.

        Raises `Disconnected` (no server answers), `TopicNotRecorded`, `BookmarkUnknown`, `TimedOut`,
        `BadOption`.
        """
        wanted = self._wanted
        client, uri = connect(wanted.servers, wanted.timeout_seconds)
        with client:
            journal, start, end = client.resolve(wanted.topic, wanted.bookmark)
            start, end = self._narrowed(client, start, end)
        others = tuple(server for server in wanted.servers if server != uri)
        return [
            LogPart(
                (uri, *others), journal, wanted.topic, first, after, wanted.timeout_seconds, wanted.directory
            )
            for first, after in split(
                start, end, partitions_min=wanted.partitions_min, rows_max=wanted.rows_per_partition_max
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of a part.

        Raises what `pieces` raises.
        """
        assert isinstance(partition, LogPart)
        if partition.start == partition.end:
            return
        yield from record_batches(pieces(partition), self._schema)

    def _narrowed(self, client: Client, start: int, end: int) -> tuple[int, int]:
        """The positions that the pushed filters leave of `start` to `end`."""
        if self._narrowing.nothing:
            return start, start
        for text in self._narrowing.ranges():
            try:
                _, low, high = client.resolve(self._wanted.topic, text)
            except BookmarkUnknown:
                return start, start
            start, end = max(start, low), min(end, high)
        return start, max(start, end)


class PushingReader(TickertapeReader):
    """A read that answers some filters of the query by reading less of the log."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Take the filters that the log answers exactly; those returned are left to Spark."""
        self._narrowing, left = narrow(filters, self._wanted.topic)
        return left
