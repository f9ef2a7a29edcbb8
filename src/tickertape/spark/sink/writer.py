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
    TimedOut,
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
from tickertape.wire.commands import Commit, Committed, Prepare, Transaction

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_PAUSE_SECONDS: Final = 0.2
_AGAIN: Final = (Disconnected, NotReady, TransactionBusy, LimitReached)
"""Errors after which a commit is retried."""


@dataclass
class StagedTask(WriterCommitMessage):
    """Staged rows of a task: `part` (empty: no rows) of a transaction in `space`."""

    space: str
    name: str
    part: str


class TickertapeWriter(DataSourceArrowWriter):
    """A batch write: one transaction, named by option `transactionId`."""

    def __init__(self, outgoing: SinkOptions) -> None:
        self._outgoing = outgoing

    def write(self, iterator: Iterator[Any]) -> StagedTask:
        """Stage the rows of a task. Raises the errors of staging."""
        return _stage(self._outgoing, "", self._outgoing.transaction, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the staged rows, unless they are committed already."""
        _commit(self._outgoing, "", self._outgoing.transaction, _written(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the staged rows."""
        _abort(self._outgoing, _written(messages))


class TickertapeStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write: each batch is one transaction."""

    def __init__(self, outgoing: SinkOptions) -> None:
        self._outgoing = outgoing

    def write(self, iterator: Iterator[Any]) -> StagedTask:
        """Stage the rows of a task of a batch. Raises the errors of staging."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY)
        batch = None if context is None else context.getLocalProperty(_BATCH)
        if not query or not batch:
            raise UsageError(
                "Cannot write: Spark does not report the query id and batch number. Nothing was written. "
                "Install a supported version of Spark: pip install 'tickertape[spark]'"
            )
        return _stage(self._outgoing, query, batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the batch, unless it is committed already."""
        written = _written(messages)
        if written:
            # Also an empty batch: if it is retried and then has rows, it was committed without them.
            _commit(self._outgoing, written[0].space, str(batchId), written)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Discard the staged rows of the batch."""
        _abort(self._outgoing, _written(messages))


def check_sink(outgoing: SinkOptions) -> None:
    """Check that a transaction may have messages of the topic, before a job starts.

    Raises `BadOption` or `BadTopic`. Without the option `topic`, and while no server answers, tasks report
    it."""
    topic = outgoing.topic
    if topic is None:
        return
    key = Transaction(publisher=outgoing.publisher, space="", name=uuid4().hex)
    with suppress(Disconnected, TimedOut, NotReady):
        client, _ = connect(outgoing.servers, outgoing.timeout_seconds)
        with client:
            client.ask(
                lambda number: Prepare(id=number, transaction=key, part="", topics=(topic,)),
                None,
                outgoing.timeout_seconds,
            )


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[StagedTask]:
    return [message for message in messages if isinstance(message, StagedTask)]


def _stage(outgoing: SinkOptions, space: str, name: str, rows: Iterator[Any]) -> StagedTask:
    """Stage the rows of a task under a unique part: a second attempt may have other rows, or another
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
                # Wait while another attempt of the same batch is being committed.
                answer = _repeated(outgoing, (TransactionBusy,), ask)
    return StagedTask(space, name, part)


def _repeated(
    outgoing: SinkOptions, errors: tuple[type[TickertapeError], ...], ask: Callable[[], object]
) -> object:
    """Return the answer of `ask`, retried after one of `errors` until the timeout. Then the error is
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
    """Commit the parts, in partition order. Retried while the server stops or commits another attempt."""
    key = Transaction(publisher=outgoing.publisher, space=space, name=name)
    parts = tuple(sorted(message.part for message in written if message.part))
    if len(parts) > transaction_parts_max:
        raise UsageError(
            f"Cannot commit {len(parts)} partitions with rows: a transaction has at most "
            f"{transaction_parts_max}. Coalesce the rows into fewer partitions."
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
        # Spark repeats only the last batch: an earlier one may have other rows than were committed.
        raise UsageError(
            f"Cannot write batch {name} of the query {space}: the log already has the batches up to "
            f"{answer.highest}. The checkpoint is older than the log, perhaps because the checkpoint was "
            "restored from a copy. Nothing was written. Use another checkpointLocation, and start after "
            f"the rows of batch {answer.highest}."
        )


def _abort(outgoing: SinkOptions, written: Sequence[StagedTask]) -> None:
    """Discard the known staged parts. Unknown ones expire."""
    for space, name in {(message.space, message.name) for message in written}:
        key = Transaction(publisher=outgoing.publisher, space=space, name=name)
        try:
            client, _ = connect(outgoing.servers, outgoing.timeout_seconds)
            with client:
                client.ask(aborting(key), None, outgoing.timeout_seconds)
        except TickertapeError:
            return  # report the error that ended the batch instead
