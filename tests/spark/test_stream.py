"""The streaming source in a real Spark session: what is persisted is read once, whatever stops the query."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tickertape.client.blocking import Client
from tickertape.testing.server import RunningServer, running_server

pytestmark = pytest.mark.spark

SCHEMA = "position long, topic string, data binary"
WAIT_SECONDS = 90


class Stream:
    """A query into Parquet files, with a checkpoint, that may be run again and again."""

    def __init__(self, spark: SparkSession, directory: Path, **options: str | int) -> None:
        self.spark, self.directory, self.options = spark, directory, options

    def run(self, *, schema: str = SCHEMA, **options: str | int) -> StreamingQuery:
        """Read what there is, and stop."""
        given = self.options | options
        reader = self.spark.readStream.format("tickertape").schema(schema).options(**given)
        query = (
            reader.load()
            .writeStream.format("parquet")
            .option("path", str(self.directory / "out"))
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(WAIT_SECONDS)
        finally:
            query.stop()
        return query

    def rows(self) -> list[tuple[Any, ...]]:
        frame: DataFrame = self.spark.read.parquet(str(self.directory / "out"))
        found = [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in frame.collect()]
        return sorted(found)


def publish(server: RunningServer, name: str, topic: str, bodies: list[bytes]) -> None:
    with Client(name, server.uri) as client:
        client.publish_batch(topic, bodies)
        client.publish_flush()


def bodies(stream: Stream) -> list[bytes]:
    return [row[2] for row in stream.rows()]


def input_rows(query: StreamingQuery) -> list[int]:
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with running_server(tmp_path / "data", '[journal]\nsegment_size = "1MB"\n') as server:
        yield server


@pytest.fixture
def begin(spark: SparkSession, log: RunningServer, tmp_path: Path) -> Callable[..., Stream]:
    def made(name: str = "stream", **options: str | int) -> Stream:
        return Stream(spark, tmp_path / name, **({"servers": log.uri, "topic": "flights"} | options))

    return made


def test_what_is_persisted_is_read_once_across_runs(log: RunningServer, begin: Callable[..., Stream]) -> None:
    stream = begin()
    expected = []
    for run in range(3):
        some = [b"%d-%d" % (run, n) for n in range(500)]
        publish(log, f"publisher-{run}", "flights", some)
        publish(log, f"other-{run}", "weather", [b"rain"])
        expected += some
        stream.run()
        assert bodies(stream) == expected
    stream.run()
    assert bodies(stream) == expected
    assert len({row[0] for row in stream.rows()}) == len(expected)
    assert {row[1] for row in stream.rows()} == {"flights"}


def test_micro_batches_keep_the_bound_and_progress_tells_how_far_behind_they_are(
    log: RunningServer, begin: Callable[..., Stream]
) -> None:
    publish(log, "publisher", "flights", [b"%d" % n for n in range(1000)])
    stream = begin(maxRowsPerTrigger=300)
    query = stream.run()
    assert input_rows(query) == [300, 300, 300, 100]
    behind = [json.loads(p["sources"][0]["latestOffset"])["behind"] for p in query.recentProgress]
    assert behind[:4] == [700, 400, 100, 0]
    assert len(stream.rows()) == 1000


def test_another_log_is_refused_with_what_to_do(
    log: RunningServer, begin: Callable[..., Stream], tmp_path: Path
) -> None:
    publish(log, "publisher", "flights", [b"one"])
    stream = begin()
    stream.run()
    with running_server(tmp_path / "other") as other:
        publish(other, "publisher", "flights", [b"one", b"two"])
        with pytest.raises(Exception, match=r"WrongJournal: the checkpoint is at position .* begin anew"):
            stream.run(servers=other.uri)
    publish(log, "later", "flights", [b"two"])
    stream.run()
    assert bodies(stream) == [b"one", b"two"]
