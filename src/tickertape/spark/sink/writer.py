"""Spark sink "tickertape": tasks stage their rows at the server and the driver commits them.

A micro-batch is one transaction named by query id and batch number, so all of its rows are in the log exactly
once, however often Spark repeats it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tickertape.base.errors import (
    Disconnected,
    LimitReached,
    NotReady,
    TickertapeError,
    TransactionBusy,
    UsageError,
)
from tickertape.base.limits import publish_messages_max, transaction_parts_max
from tickertape.batch import MessageBatch
from tickertape.batch.builders.columns import OutColumns, batches_from_columns
from tickertape.client.limits import stage_frame_bytes
from tickertape.client.protocol.transactions import ConnectionPin, aborting, staging
from tickertape.spark.sink.options import SinkOptions
from tickertape.spark.source.task_reader import connect
from tickertape.wire.commands import Commit, Committed, Transaction

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_PAUSE_SECONDS: Final = 0.2
_AGAIN: Final = (Disconnected, NotReady, TransactionBusy, LimitReached)
"""Errors after which a commit is repeated."""


@dataclass
class StagedTask(WriterCommitMessage):
    """Staged rows of a task: `part` (empty: no rows) of a transaction of `space`."""

    space: str
    name: str
    part: str


class TickertapeWriter(DataSourceArrowWriter):
    """A batch write: one transaction, under the name of option `transactionId`."""

    def __init__(self, outgoing: SinkOptions) -> None:
        self._outgoing = outgoing

    def write(self, iterator: Iterator[Any]) -> StagedTask:
        """Stage the rows of a task. Raises what staging raises."""
        return _stage(self._outgoing, "", self._outgoing.transaction, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Put them into the log, unless that was done before."""
        _commit(self._outgoing, "", self._outgoing.transaction, _written(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the staged rows."""
        _abort(self._outgoing, _written(messages))


class TickertapeStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write: each batch is one transaction."""

    def __init__(self, outgoing: SinkOptions) -> None:
        self._outgoing = outgoing

    def write(self, iterator: Iterator[Any]) -> StagedTask:
        """Stage the rows of a task of a batch. Raises what staging raises."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY)
        batch = None if context is None else context.getLocalProperty(_BATCH)
        if not query or not batch:
            raise UsageError("Spark does not say which batch of which query this is: nothing is written")
        return _stage(self._outgoing, query, batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Put the batch into the log, unless it is there already."""
        written = _written(messages)
        if written:
            # An empty batch, too: when it is tried again and has rows, it was committed without them.
            _commit(self._outgoing, written[0].space, str(batchId), written)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Discard the staged rows of the batch."""
        _abort(self._outgoing, _written(messages))


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[StagedTask]:
    return [message for message in messages if isinstance(message, StagedTask)]


def _stage(outgoing: SinkOptions, space: str, name: str, rows: Iterator[Any]) -> StagedTask:
    """Stage the rows of a task under a part of its own: a second attempt may have other rows, or another
    order."""
    key = Transaction(publisher=outgoing.publisher, space=space, name=name)
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    part = f"{partition:06d}.{uuid4().hex}"
    frames = _frames(outgoing, rows)
    first = next(frames, None)
    if first is None:
        return StagedTask(space, name, "")
    client, _ = connect(outgoing.servers, outgoing.timeout_seconds, outgoing.timeout_seconds)
    same = ConnectionPin()
    with client:
        steps = staging(key, part, chain((first,), frames))
        answer: object = None
        with suppress(StopIteration):
            while True:
                make, batch = steps.send(answer)
                ask = partial(client.ask, make, batch, outgoing.timeout_seconds, same)
                # Until no other attempt of the same batch is being committed.
                answer = _repeated(outgoing, (TransactionBusy,), ask)
    return StagedTask(space, name, part)


def _repeated(
    outgoing: SinkOptions, errors: tuple[type[TickertapeError], ...], ask: Callable[[], object]
) -> object:
    """Return the answer of `ask`, repeated after one of `errors` until the time limit is over; then that is
    raised."""
    until = time.monotonic() + outgoing.timeout_seconds
    while True:
        try:
            return ask()
        except errors:
            if time.monotonic() >= until:
                raise
            time.sleep(_PAUSE_SECONDS)


def _frames(outgoing: SinkOptions, rows: Iterator[Any]) -> Iterator[MessageBatch]:
    for batch in rows:
        columns = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}
        topic = columns.get("topic") if outgoing.topic is None else outgoing.topic
        assert topic is not None
        out = OutColumns(
            columns["data"],
            topic,
            columns.get("key"),
            columns.get("correlation_id"),
            columns.get("expiration_ms"),
        )
        if batch.num_rows:
            yield from batches_from_columns(out, stage_frame_bytes, publish_messages_max)


def _commit(outgoing: SinkOptions, space: str, name: str, written: Sequence[StagedTask]) -> None:
    """Commit the parts, in the order of their partitions. A server that stops meanwhile is asked again, as is
    one that is committing another attempt."""
    key = Transaction(publisher=outgoing.publisher, space=space, name=name)
    parts = tuple(sorted(message.part for message in written if message.part))
    if len(parts) > transaction_parts_max:
        raise UsageError(
            f"{len(parts)} partitions have rows, and a transaction has at most {transaction_parts_max}; "
            f"coalesce the rows into fewer partitions"
        )
    until = time.monotonic() + outgoing.timeout_seconds

    def ask() -> object:
        client, _ = connect(outgoing.servers, outgoing.timeout_seconds, until - time.monotonic())
        with client:
            return client.ask(
                lambda number: Commit(id=number, transaction=key, parts=parts), None, outgoing.timeout_seconds
            )

    answer = _repeated(outgoing, _AGAIN, ask)
    assert isinstance(answer, Committed)
    if answer.repeated and space and answer.highest > int(name):
        # Spark repeats the last batch, none before it: these may be other rows than were committed then.
        raise UsageError(
            f"batch {name} of the query {space} is in the log already, and so is batch {answer.highest}: the "
            f"checkpoint is older than the log, perhaps it was restored from a copy. Nothing was written; "
            f"begin anew with another checkpointLocation, from where batch {answer.highest} ended"
        )


def _abort(outgoing: SinkOptions, written: Sequence[StagedTask]) -> None:
    """Discard the staged parts that are known; others expire."""
    for space, name in {(message.space, message.name) for message in written}:
        key = Transaction(publisher=outgoing.publisher, space=space, name=name)
        try:
            client, _ = connect(outgoing.servers, outgoing.timeout_seconds)
            with client:
                client.ask(aborting(key), None, outgoing.timeout_seconds)
        except TickertapeError:
            return  # the error that ended the batch is the one to tell
