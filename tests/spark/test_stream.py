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
from tickertape.testing.server import RunningServer, running_server, wait_until

pytestmark = pytest.mark.spark

CONFIG = """
[journal]
segment_size = "1MB"
retain_size = "4MB"
"""
SCHEMA = "position long, topic string, data binary"
WAIT_SECONDS = 90


class Stream:
    """A query with a checkpoint that may be run again and again; it keeps the rows of each micro-batch."""

    def __init__(self, spark: SparkSession, checkpoint: Path, **options: str | int) -> None:
        self.spark, self.checkpoint, self.options = spark, checkpoint, options
        self.batches: dict[int, list[tuple[Any, ...]]] = {}

    def start(self, **options: str | int) -> StreamingQuery:
        """Read what there is, and stop."""

        def take(frame: DataFrame, number: int) -> None:
            self.batches[number] = [
                tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in frame.collect()
            ]

        given = self.options | options
        frame = self.spark.readStream.format("tickertape").schema(SCHEMA).options(**given).load()
        writer = frame.writeStream.option("checkpointLocation", str(self.checkpoint)).foreachBatch(take)
        return writer.trigger(availableNow=True).start()

    def run(self, **options: str | int) -> StreamingQuery:
        """As `start`, and wait. Raises what stopped it."""
        query = self.start(**options)
        try:
            assert query.awaitTermination(WAIT_SECONDS)
        finally:
            query.stop()
        return query

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """What was read, a batch after the other."""
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
    with running_server(tmp_path / "data", CONFIG) as server:
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
        if run == 1:
            log.kill()
            log.start()
        stream.run()
        assert stream.bodies == expected
    assert len({row[0] for row in stream.rows}) == len(expected)
    assert {row[1] for row in stream.rows} == {"flights"}


def test_micro_batches_keep_both_bounds_and_progress_tells_how_far_behind_they_are(
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
    # 300 rows, or bodies of 1024 bytes together; one alone may be larger
    assert sizes == [300, 300, 300, 100, 1, 2, 2, 1]
    assert [p["numInputRows"] for p in query.recentProgress][: len(sizes)] == sizes
    behind = [json.loads(p["sources"][0]["latestOffset"])["behind"] for p in query.recentProgress]
    assert behind == sorted(behind, reverse=True)
    assert (behind[0] > 700, behind[len(sizes) - 1]) == (True, 0)
    assert len(stream.bodies) == 1006


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
    assert stream.bodies == [b"one", b"two"]


def test_history_that_is_gone_is_an_error_or_a_loss_that_was_accepted(
    log: RunningServer, begin: Callable[..., Stream]
) -> None:
    publish(log, "publisher", "flights", [b"first"])
    stream = begin()
    stream.run()
    bulk = [b"%03d" % n + b"x" * 100_000 for n in range(120)]
    with Client("bulk", log.uri) as client:
        for body in bulk:
            client.publish("flights", body)
            client.publish_flush()
        wait_until(lambda: client.resolve("flights", "0")[1] > 1)
    gone = r"BookmarkExpired: the query has read up to position .* begins with .*failOnDataLoss=false goes on"
    with pytest.raises(Exception, match=gone):
        stream.run()
    assert stream.bodies == [b"first"]
    stream.run(failOnDataLoss="false", minPartitions=2)
    left = stream.bodies[1:]
    assert 0 < len(left) < len(bulk)
    assert left == bulk[-len(left) :]
    assert [row[0] for row in stream.rows] == sorted({row[0] for row in stream.rows})


def test_a_new_query_begins_where_it_is_told_and_an_old_one_where_it_stands(
    log: RunningServer, begin: Callable[..., Stream]
) -> None:
    publish(log, "publisher", "flights", [b"%d" % n for n in range(10)])
    with Client("reader", log.uri) as client:
        sixth = [m.bookmark for m in client.replay("flights")][5]
    assert sixth is not None
    stream = begin(startingBookmark=sixth)
    stream.run()
    assert stream.bodies == [b"6", b"7", b"8", b"9"]
    publish(log, "later", "flights", [b"10"])
    stream.run(startingBookmark="epoch", filter="TOPIC_NAME() = 'flights'", topicPattern="^fl", topic="")
    assert stream.bodies == [b"6", b"7", b"8", b"9", b"10"]
