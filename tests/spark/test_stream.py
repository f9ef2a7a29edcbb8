"""Streaming source in a real Spark session: persisted messages are read once across restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tickertape.client.blocking.client import Client
from tickertape.testing.server import RunningServer, running_server

pytestmark = pytest.mark.spark

SCHEMA = "position long, topic string, data binary"
WAIT_SECONDS = 90


class Stream:
    """Repeatable query with a checkpoint, which keeps the rows of each micro-batch."""

    def __init__(self, spark: SparkSession, checkpoint: Path, **options: str | int) -> None:
        self.spark, self.checkpoint, self.options = spark, checkpoint, options
        self.batches: dict[int, list[tuple[Any, ...]]] = {}

    def start(self, **options: str | int) -> StreamingQuery:
        """Start a query over all available messages."""

        def take(frame: DataFrame, number: int) -> None:
            self.batches[number] = [
                tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in frame.collect()
            ]

        given = self.options | options
        frame = self.spark.readStream.format("tickertape").schema(SCHEMA).options(**given).load()
        writer = frame.writeStream.option("checkpointLocation", str(self.checkpoint)).foreachBatch(take)
        return writer.trigger(availableNow=True).start()

    def run(self, **options: str | int) -> StreamingQuery:
        """Run a query to its end, and raise its error."""
        query = self.start(**options)
        try:
            assert query.awaitTermination(WAIT_SECONDS)
        finally:
            query.stop()
        return query

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of all batches in order."""
        return [row for _, batch in sorted(self.batches.items()) for row in batch]

    @property
    def bodies(self) -> list[bytes]:
        return [row[2] for row in self.rows]


def publish(server: RunningServer, name: str, topic: str, bodies: list[bytes]) -> None:
    with Client(name, server.uri) as client:
        client.publish_batch(topic, bodies)
        client.publish_flush()


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with running_server(tmp_path / "data") as server:
        yield server


@pytest.fixture
def begin(spark: SparkSession, log: RunningServer, tmp_path: Path) -> Callable[..., Stream]:
    def made(name: str = "stream", **options: str | int) -> Stream:
        return Stream(spark, tmp_path / name, **({"servers": log.uri, "topic": "flights"} | options))

    return made


@pytest.mark.full
def test_stream_reads_persisted_messages_once_across_runs_and_refuses_another_log(
    log: RunningServer, begin: Callable[..., Stream], tmp_path: Path
) -> None:
    stream = begin()
    expected = []
    for run in range(3):
        some = [b"%d-%d" % (run, n) for n in range(500)]
        publish(log, f"publisher-{run}", "flights", some)
        publish(log, f"other-{run}", "weather", [b"rain"])
        expected += some
        if run == 1:
            log.kill()
            log.start()
        stream.run()
        assert stream.bodies == expected
    with running_server(tmp_path / "other") as other:
        publish(other, "publisher", "flights", [b"one", b"two"])
        with pytest.raises(
            Exception, match=r"WrongJournal: .* its checkpoint is at position .* start with another"
        ):
            stream.run(servers=other.uri)
    assert len({row[0] for row in stream.rows}) == len(expected)
    assert {row[1] for row in stream.rows} == {"flights"}


@pytest.mark.full
def test_micro_batches_keep_both_limits_and_progress_reports_the_lag(
    log: RunningServer, begin: Callable[..., Stream]
) -> None:
    with Client("publisher", log.uri) as client:
        for n in range(100):
            client.publish_batch("flights", [b"%d" % (10 * n + i) for i in range(10)])
            client.publish("weather", b"rain")
        client.publish("flights", b"x" * 3000)
        client.publish_batch("flights", [b"y" * 500] * 5)
        client.publish_flush()
    stream = begin(maxRowsPerTrigger=300, maxBytesPerTrigger="1KB")
    query = stream.run()
    sizes = [len(batch) for _, batch in sorted(stream.batches.items())]
    # 300 rows or bodies of 1024 bytes, except a single larger message
    assert sizes == [300, 300, 300, 100, 1, 2, 2, 1]
    assert [p["numInputRows"] for p in query.recentProgress][: len(sizes)] == sizes
    behind = [json.loads(p["sources"][0]["latestOffset"])["behind"] for p in query.recentProgress]
    assert behind == sorted(behind, reverse=True)
    assert (behind[0] > 700, behind[len(sizes) - 1]) == (True, 0)
    assert len(stream.bodies) == 1006
