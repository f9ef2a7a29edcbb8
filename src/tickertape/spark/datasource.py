"""Data source of the Spark format "tickertape": creates its readers and writers.

Readers and writers are imported at their first use, because Spark starts a Python process for the schema and
another one for each plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tickertape.base.errors import UsageError
from tickertape.spark.common.schema import DEFAULT_SCHEMA
from tickertape.spark.queues.options import names_queue, queue_options
from tickertape.spark.source.options import Query, read_options

if TYPE_CHECKING:
    from tickertape.spark.queues.stream_reader import QueueStreamReader
    from tickertape.spark.sink.writer import TickertapeStreamWriter, TickertapeWriter
    from tickertape.spark.source.batch_reader import TickertapeReader
    from tickertape.spark.source.stream_reader import TickertapeStreamReader


class TickertapeSource(DataSource):
    """`format("tickertape")`: a topic as a table or a stream (docs/howto/spark.md)."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format, `"tickertape"`."""
        return "tickertape"

    def schema(self) -> str:
        """Return the default columns with their types, as DDL text.

        Use `.schema(...)` of the Spark reader for other columns. Raises `BadOption`, `BadTopic` or
        `BadBookmark` for an invalid option.
        """
        if names_queue(self.options):
            queue_options(self.options, Query.ANY)
        else:
            read_options(self.options, Query.ANY)
        return DEFAULT_SCHEMA

    def reader(self, schema: StructType) -> TickertapeReader:
        """Return a batch reader of the columns of `schema`.

        Raises `UsageError` for an invalid column, and `BadOption`, `BadTopic` or `BadBookmark` for an invalid
        option.
        """
        from tickertape.spark.common.schema import columns_of
        from tickertape.spark.source.batch_reader import TickertapeReader

        if names_queue(self.options):
            queue_options(self.options, Query.BATCH)
        wanted = read_options(self.options)
        return TickertapeReader(wanted, columns_of(schema, strict=wanted.strict))

    def streamReader(self, schema: StructType) -> TickertapeStreamReader | QueueStreamReader:
        """Return a streaming reader of the columns of `schema`.

        Raises the errors of `reader`."""
        from tickertape.spark.common.schema import columns_of

        if names_queue(self.options):
            from tickertape.spark.queues.stream_reader import QueueStreamReader

            of_queue = queue_options(self.options)
            return QueueStreamReader(of_queue, columns_of(schema, strict=of_queue.strict))

        from tickertape.spark.source.stream_reader import TickertapeStreamReader

        wanted = read_options(self.options, Query.STREAM)
        return TickertapeStreamReader(wanted, columns_of(schema, strict=wanted.strict))

    def writer(self, schema: StructType, overwrite: bool) -> TickertapeWriter:
        """Return a writer of rows of `schema`, for `df.write` with `.mode("append")`.

        Raises `UsageError` for `overwrite`, for an unknown column or type, and if the column `data` is
        missing. Raises `BadOption`, `BadTopic` or `BadName` for an invalid option, and for a topic that the
        server refuses in a transaction, for example a replicated one."""
        from tickertape.spark.sink.options import sink_options
        from tickertape.spark.sink.writer import TickertapeWriter, check_sink

        if overwrite:
            raise UsageError('Cannot overwrite a topic: its log only grows. Write with .mode("append").')
        outgoing = sink_options(self.options, schema, stream=False)
        check_sink(outgoing)
        return TickertapeWriter(outgoing)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TickertapeStreamWriter:
        """Return a writer of the batches of a streaming query, for rows of `schema`.

        Raises the errors of `writer`."""
        from tickertape.spark.sink.options import sink_options
        from tickertape.spark.sink.writer import TickertapeStreamWriter, check_sink

        if overwrite:
            raise UsageError(
                'Cannot overwrite a topic: its log only grows. Write with .outputMode("append").'
            )
        outgoing = sink_options(self.options, schema, stream=True)
        check_sink(outgoing)
        return TickertapeStreamWriter(outgoing)
