"""Streaming source "tickertape": plans micro-batches and reports the lag of the query.

A micro-batch is a range of positions of one log. Spark stores its bounds in the checkpoint before the range
is read, and the same range always returns the same rows, so no persisted message is skipped or repeated.
Another log, or a gap in the log, is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tickertape.base.bookmarks import EPOCH
from tickertape.base.errors import BookmarkExpired, Disconnected, JournalError
from tickertape.spark.common.schema import ColumnSelection, record_batches
from tickertape.spark.source.offsets import Offset, Written, check_journal, read_offset
from tickertape.spark.source.options import SourceOptions
from tickertape.spark.source.partitions import LogPartition, ResolvedRange, parts_of
from tickertape.spark.source.task_reader import LOSS_HINT, connect, located, lost, pieces
from tickertape.wire.commands import Resolved

if TYPE_CHECKING:
    from tickertape.client.blocking.log_client import LogClient

T = TypeVar("T")

ANY_END: Final = 1 << 62
"""Position above the end of any log."""


class TickertapeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query. It keeps a connection on the driver. Tasks have their own."""

    def __init__(self, wanted: SourceOptions, columns: ColumnSelection) -> None:
        self._wanted = wanted
        self._columns = columns
        self._connected: tuple[LogClient, str] | None = None
        self._target: int | None = None
        """End of the log at the start of a query that reads the existing messages and stops."""
        self._planned = 0
        """Position up to which the query has planned to read."""

    # -- start and end ----------------------------------------------------------------------------------

    def initialOffset(self) -> Written:
        """Return the start of a new query: `startingBookmark` or `startingTimestamp`. Raises as a batch
        query."""
        answer = located(self._locate, self._wanted, "starts")
        return Offset(answer.journal, answer.start).written()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch from the options. `latestOffset` applies both limits."""
        rows, size = self._wanted.rows_per_trigger_max, self._wanted.bytes_per_trigger_max
        if rows is not None:
            return ReadMaxRows(rows)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def latestOffset(self, start: Written, limit: ReadLimit) -> Written:
        """Return the end of the micro-batch that starts at `start`.

        Raises `WrongJournal`, `BookmarkExpired` (retention has removed unread messages), `JournalError` (the
        log ends before `start`), `Disconnected`.
        """
        offset = read_offset(start)
        begin = max(offset.position, self._look(offset, offset).start)
        end = ANY_END if self._target is None else max(self._target, begin)
        bounds = self._bounds(limit)
        answer = self._ask(
            lambda client: client.locate(
                self._wanted.topic,
                positions=(begin, end),
                journal=offset.journal,
                messages_max=bounds[0],
                bytes_max=bounds[1],
            )
        )
        self._planned = answer.end
        return Offset(answer.journal, answer.end).written()

    def _bounds(self, limit: ReadLimit) -> tuple[int, int]:
        """Return the maximum rows and bytes of a micro-batch, 0 for no limit.

        Only Spark's request to read everything overrides the options."""
        rows, size = self._wanted.rows_per_trigger_max or 0, self._wanted.bytes_per_trigger_max or 0
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, size
        if isinstance(limit, ReadMaxBytes):
            return rows, limit.max_bytes
        return 0, 0

    def reportLatestOffset(self) -> Written | None:
        """Return the current end of the log, and the number of unplanned positions as `behind`."""
        answer = self._locate(EPOCH)
        behind = max(answer.end - max(self._planned, answer.start), 0)
        return Offset(answer.journal, answer.end).written() | {"behind": behind}

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run. Messages persisted from now on are not read by it."""
        self._target = self._locate(EPOCH).end

    # -- reading ----------------------------------------------------------------------------------------

    def partitions(self, start: Written, end: Written) -> list[InputPartition]:
        """Return the partitions of a micro-batch. Raises as `latestOffset`."""
        first, after = read_offset(start), read_offset(end)
        if first.position == after.position:
            return []
        answer = self._look(first, after)
        begin = min(max(first.position, answer.start), after.position)
        self._planned = max(self._planned, after.position)
        assert self._connected is not None
        parts = parts_of(
            self._wanted,
            ResolvedRange(self._connected[1], answer),
            begin,
            after.position,
            self._columns,
            connect_seconds=self._wanted.timeout_seconds,
        )
        return [*parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a partition. Raises the errors of `pieces`."""
        assert isinstance(partition, LogPartition)
        yield from record_batches(pieces(partition), self._columns)

    def commit(self, end: Written) -> None:
        """Do nothing: the checkpoint has the state of a query."""

    def stop(self) -> None:
        """Close the connection."""
        if self._connected is not None:
            self._connected[0].close()
            self._connected = None

    # -- internals --------------------------------------------------------------------------------------

    def _look(self, offset: Offset, planned: Offset) -> Resolved:
        """Return the state of the log if it is the log of `offset` and has the messages up to `planned`.

        A read beyond the end of a log would wait for new messages, which are different ones.
        """
        answer = self._locate(EPOCH)
        for place in (offset, planned):
            check_journal(place, answer.journal)
            if place.position > answer.end:
                raise JournalError(
                    f"Cannot continue the query: its checkpoint is at position {place.position} of the log "
                    f"{answer.journal!r}, but the log ends at position {answer.end}. Persisted messages are "
                    "missing, perhaps because the log was restored from a copy. Start with another "
                    "checkpointLocation."
                )
        first = answer.start
        if offset.position < first:
            if self._wanted.fail_on_data_loss:
                raise BookmarkExpired(
                    f"Cannot continue the query: it has read up to position {offset.position}, but the log "
                    f"{answer.journal!r} starts at position {first}. Retention has removed the "
                    f"{first - offset.position} positions in between. Start with another checkpointLocation. "
                    f"{LOSS_HINT}"
                )
            lost(offset.position, first)
        return answer

    def _locate(self, bookmark: str) -> Resolved:
        wanted = self._wanted
        return self._ask(lambda client: client.locate(wanted.topic, bookmark, filter=wanted.filter))

    def _ask(self, question: Callable[[LogClient], T]) -> T:
        """Return the answer of the server, or of the next one that answers before the timeout."""
        until = time.monotonic() + self._wanted.timeout_seconds
        while True:
            if self._connected is None:
                left = max(until - time.monotonic(), 0.0)
                self._connected = connect(self._wanted.servers, self._wanted.timeout_seconds, left)
            try:
                return question(self._connected[0])
            except Disconnected:
                self.stop()
                if time.monotonic() >= until:
                    raise
