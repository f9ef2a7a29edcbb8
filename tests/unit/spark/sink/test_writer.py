"""Spark sink with a busy server: retries within the timeout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tickertape.base.errors import (
    BadOption,
    Disconnected,
    LimitReached,
    TickertapeError,
    TransactionBusy,
    UsageError,
)
from tickertape.batch import MessageBatch
from tickertape.spark.sink import writer as writer_module
from tickertape.spark.sink.options import SinkOptions
from tickertape.spark.sink.writer import TickertapeStreamWriter, TickertapeWriter, check_sink
from tickertape.wire.commands import Command, Commit, Committed, Prepare, Stage, Staged

ROWS = 5

SINK = SinkOptions(
    servers=("tcp://h:1",), publisher="sink", topic="t", transaction="one", timeout_seconds=1.0
)


class Server:
    """A server that refuses the first commands of each kind with the errors in `refusals`."""

    def __init__(self, refusals: dict[type, list[TickertapeError]]) -> None:
        self._refusals = refusals
        self.asked: list[type] = []
        self.messages = 0

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, make: Callable[[int], Command], batch: MessageBatch | None, *_: object) -> Any:
        command = make(1)
        self.asked.append(type(command))
        refusals = self._refusals.get(type(command))
        if refusals:
            raise refusals.pop(0)
        if batch is not None:
            self.messages += batch.count
        if isinstance(command, Prepare):
            return Staged(id=1, messages=self.messages)
        return Committed(id=1) if isinstance(command, Commit) else None


def writer_to(
    monkeypatch: pytest.MonkeyPatch, server: Server, timeout_seconds: float = 600.0
) -> TickertapeWriter:
    monkeypatch.setattr(writer_module, "connect", lambda *_: (server, "tcp://127.0.0.1:9007"))
    monkeypatch.setattr(writer_module, "_PAUSE_SECONDS", 0.0)
    return TickertapeWriter(
        SinkOptions(
            servers=("tcp://127.0.0.1:9007",),
            publisher="sink",
            topic="t",
            transaction="one",
            timeout_seconds=timeout_seconds,
        )
    )


def rows() -> Any:
    return iter([pa.RecordBatch.from_pydict({"data": [b"x"] * ROWS})])


def busy(times: int) -> list[TickertapeError]:
    return [TransactionBusy("it is being committed") for _ in range(times)]


def test_staging_during_a_commit_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server({Stage: busy(3)})
    writer = writer_to(monkeypatch, server)
    written = writer.write(rows())
    assert written.part
    assert server.messages == ROWS
    assert server.asked == [Stage] * 4 + [Prepare]


def test_commit_during_another_commit_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    full = LimitReached("Cannot commit: 64 commits wait for their answers. Wait for some of them.")
    server = Server({Commit: [*busy(2), full]})
    writer = writer_to(monkeypatch, server)
    writer.commit([writer.write(rows())])
    assert server.asked.count(Commit) == 4


@pytest.mark.parametrize("kind", [Stage, Commit])
def test_retries_end_with_the_timeout(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    server = Server({kind: busy(1_000_000)})
    writer = writer_to(monkeypatch, server, timeout_seconds=0.05)
    with pytest.raises(TransactionBusy):
        writer.commit([writer.write(rows())])
    assert server.asked.count(kind) > 1


def test_stream_writer_without_query_id_asks_for_a_supported_spark() -> None:
    outgoing = SinkOptions(
        servers=("tcp://127.0.0.1:9007",), publisher="sink", topic="t", transaction="one", timeout_seconds=1.0
    )
    with pytest.raises(UsageError, match=r"Nothing was written\. Install a supported version of Spark"):
        TickertapeStreamWriter(outgoing).write(iter([]))


def test_sink_check_raises_the_refusal_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server({Prepare: [BadOption("replicated")]})
    monkeypatch.setattr(writer_module, "connect", lambda *_: (server, "tcp://h:1"))
    with pytest.raises(BadOption, match="replicated"):
        check_sink(SINK)
    check_sink(SINK)
    assert server.asked == [Prepare, Prepare]


def test_sink_check_leaves_a_missing_server_and_a_topic_column_to_the_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server({Prepare: [Disconnected("lost")]})
    monkeypatch.setattr(writer_module, "connect", lambda *_: (server, "tcp://h:1"))
    check_sink(SINK)
    check_sink(msgspec.structs.replace(SINK, topic=None))
    assert server.asked == [Prepare]
