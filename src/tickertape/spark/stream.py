"""Owns the streaming source "tickertape" of Spark: what a query has to read next, and how far behind it is.

Must never skip a persisted message or give one twice: a micro-batch is a range of positions of one log, Spark
keeps its ends in the checkpoint before it is read, and the same range is the same rows however often it is
read. Must never go on in another log, nor behind a gap without saying so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tickertape.base.errors import BookmarkExpired, Disconnected, JournalError
from tickertape.spark.offsets import Offset, Written, check_journal, read_offset
from tickertape.spark.options import Wanted
from tickertape.spark.partitions import LogPart
from tickertape.spark.planning import Found, parts_of
from tickertape.spark.reading import LOSS_HINT, connect, lost, pieces
from tickertape.spark.schema import record_batches

if TYPE_CHECKING:
    from tickertape.client.blocking import Client

T = TypeVar("T")


class Log(NamedTuple):
    """The log as it stood when the server was asked."""

    journal: str
    first: int
    """The first position that it has."""
    end: int
    """The position after the last persisted message."""


class TickertapeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query. On the driver it keeps a connection; tasks have their own."""

    def __init__(self, wanted: Wanted, schema: Any) -> None:
        self._wanted = wanted
        self._schema = schema
        self._connected: tuple[Client, str] | None = None
        self._target: int | None = None
        """Where the log ended when a query that reads what is there, and stops, began."""
        self._planned = Offset("", 0)
        """Up to where the query has planned to read."""

    # -- where to begin and to end ----------------------------------------------------------------------

    def initialOffset(self) -> Written:
        """Where a new query begins: `startingBookmark` or `startingTimestamp`. Raises as a batch does."""
        wanted = self._wanted
        try:
            journal, start, _ = self._ask(lambda client: client.resolve(wanted.topic, wanted.asked.whole))
        except BookmarkExpired as error:
            if wanted.fail_on_data_loss:
                raise BookmarkExpired(f"{error}; {LOSS_HINT}", available=error.available) from error
            journal, start, _ = self._ask(lambda client: client.resolve(wanted.topic, wanted.asked.rest))
        return Offset(journal, start).written()

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say of the size of a micro-batch; where both do, `latestOffset` keeps both."""
        rows, size = self._wanted.rows_per_trigger_max, self._wanted.bytes_per_trigger_max
        if rows is not None:
            return ReadMaxRows(rows)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def latestOffset(self, start: Written, limit: ReadLimit) -> Written:
        """Where the micro-batch ends that begins at `start`.

        Raises `WrongJournal`, `BookmarkExpired` (retention has removed what was not read yet), `JournalError`
        (the log ends before `start`), `Disconnected`.
        """
        offset = read_offset(start)
        log = self._look(offset)
        begin = max(offset.position, log.first)
        end = log.end if self._target is None else max(min(log.end, self._target), begin)
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        self._planned = Offset(log.journal, end)
        return self._planned.written()

    def reportLatestOffset(self) -> Written | None:
        """The end of the log now, and how much of it is not planned yet: `behind`, in positions."""
        log = self._log()
        behind = max(log.end - self._planned.position, 0)
        return Offset(log.journal, log.end).written() | {"behind": behind}

    def prepareForTriggerAvailableNow(self) -> None:
        """What is persisted from now on is not read by this run."""
        self._target = self._log().end

    # -- reading ----------------------------------------------------------------------------------------

    def partitions(self, start: Written, end: Written) -> list[InputPartition]:
        """The parts of a micro-batch. Raises as `latestOffset`."""
        first, after = read_offset(start), read_offset(end)
        if first.position == after.position:
            return []
        log = self._look(first)
        check_journal(after, log.journal)
        begin = min(max(first.position, log.first), after.position)
        assert self._connected is not None
        found = Found(self._connected[1], log.journal)
        patience = self._wanted.timeout_seconds
        stop = after.position
        return [*parts_of(self._wanted, found, begin, stop, self._schema, patience_seconds=patience)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The record batches of a part. Raises what `pieces` raises."""
        assert isinstance(partition, LogPart)
        yield from record_batches(pieces(partition), self._schema)

    def commit(self, end: Written) -> None:
        """Nothing: where a query stands is in its checkpoint."""

    def stop(self) -> None:
        """Close the connection."""
        if self._connected is not None:
            self._connected[0].close()
            self._connected = None

    # -- inside -----------------------------------------------------------------------------------------

    def _look(self, offset: Offset) -> Log:
        """The log, when it is that of `offset` and has what comes after it."""
        log = self._log()
        check_journal(offset, log.journal)
        if offset.position > log.end:
            raise JournalError(
                f"the checkpoint is at position {offset.position} of the log {log.journal}, which ends at "
                f"{log.end}: messages that were persisted are gone, perhaps it was restored from a copy. "
                f"Begin anew with another checkpointLocation"
            )
        if offset.position < log.first:
            gone = log.first - offset.position
            if self._wanted.fail_on_data_loss:
                raise BookmarkExpired(
                    f"the query has read up to position {offset.position}, and the log {log.journal} begins "
                    f"with {log.first} now: retention has removed the {gone} positions "
                    f"between. Begin anew with another checkpointLocation, or take the loss: {LOSS_HINT}"
                )
            lost(offset.position, log.first)
        return log

    def _log(self) -> Log:
        return Log(*self._ask(lambda client: client.resolve(self._wanted.topic, "0")))

    def _ask(self, question: Callable[[Client], T]) -> T:
        """The answer of the server, or of the next one to which it can be put before the timeout."""
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
