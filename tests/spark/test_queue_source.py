"""A queue as a streaming source: messages are processed at least once and then acknowledged."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tickertape as tt
from tests.helpers.admin import stats_of
from tickertape.spark import register
from tickertape.testing import running_server
from tickertape.testing.server import RunningServer

SECONDS = 120
CONFIG = """
[[queue]]
name = "work"
underlying = "jobs"
lease_period = "20s"
[[queue]]
name = "other"
underlying = "others"
"""


pytestmark = pytest.mark.spark


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", CONFIG) as running:
        yield running


def publish(server: RunningServer, numbers: range) -> None:
    with tt.Client("publisher", server.uri) as client:
        client.publish_batch("jobs", [{"n": n} for n in numbers])
        client.publish_flush()


def waiting(server: RunningServer) -> list[int]:
    with tt.Client("looker", server.uri) as client:
        return [message.json()["n"] for message in client.subscribe("work", browse=True)]


def until_acknowledged(server: RunningServer, count: int) -> None:
    deadline = time.monotonic() + SECONDS
    while stats_of(server).queues[0].acknowledged < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def source(spark: SparkSession, server: RunningServer, **options: Any) -> DataFrame:
    register(spark)
    asked = {"servers": server.uri, "queue": "work", "maxRowsPerTrigger": 40, **options}
    return (
        spark.readStream.format("tickertape")
        .options(**asked)
        .schema("n long, bookmark string, topic string")
        .load()
    )


class Sink:
    """Collect the rows of each batch, and fail after the batch `fails`."""

    def __init__(self, *, fails: int = -1) -> None:
        self.batches: list[tuple[int, list[int]]] = []
        self.topics: set[str] = set()
        self._fails = fails

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame.collect()
        self.topics |= {row["topic"] for row in rows}
        self.batches.append((batch, sorted(row["n"] for row in rows)))
        if batch == self._fails:
            raise RuntimeError("the sink is broken")

    @property
    def numbers(self) -> Counter[int]:
        return Counter(n for _, numbers in self.batches for n in numbers)


def run(frame: DataFrame, sink: Sink, checkpoint: Path) -> None:
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS)


def test_queue_query_processes_and_acknowledges_each_message_once(
    spark: SparkSession, server: RunningServer, tmp_path: Path
) -> None:
    publish(server, range(100))
    sink = Sink()
    run(source(spark, server, minPartitions=3), sink, tmp_path / "checkpoint")
    assert sink.numbers == Counter(range(100))
    assert max(len(numbers) for _, numbers in sink.batches) == 40
    assert sink.topics == {"jobs"}
    assert waiting(server) == []
    publish(server, range(100, 130))
    run(source(spark, server), sink, tmp_path / "checkpoint")
    assert sink.numbers == Counter(range(130))


@pytest.mark.full
def test_failed_batch_is_redelivered_in_a_later_batch(
    spark: SparkSession, server: RunningServer, tmp_path: Path
) -> None:
    publish(server, range(100))
    broken = Sink(fails=1)
    with pytest.raises(PySparkException, match="the sink is broken"):
        run(source(spark, server), broken, tmp_path / "checkpoint")
    first, second = broken.batches
    assert waiting(server) == sorted({*range(100)} - {*first[1]}), "the first batch was acknowledged"
    sink = Sink()
    run(source(spark, server), sink, tmp_path / "checkpoint")
    assert sink.batches[0] == (1, []), "a repeated batch has no other messages"
    assert sink.numbers == Counter({*range(100)} - {*first[1]})
    assert {*second[1]} <= {*sink.numbers}
    assert waiting(server) == []


@pytest.mark.full
def test_unsupported_queue_queries_are_refused(
    spark: SparkSession, server: RunningServer, tmp_path: Path
) -> None:
    register(spark)
    batch = spark.read.format("tickertape").options(servers=server.uri, queue="work")
    with pytest.raises(PySparkException, match="Cannot read a queue as a batch"):
        batch.load().count()
    with pytest.raises(PySparkException, match="Cannot use option topic with option queue"):
        run(source(spark, server, topic="jobs"), Sink(), tmp_path / "both")
    with pytest.raises(PySparkException, match="is not a queue"):
        run(source(spark, server, queue="jobs"), Sink(), tmp_path / "jobs")
    once = (
        source(spark, server)
        .writeStream.foreachBatch(Sink())
        .option("checkpointLocation", str(tmp_path / "once"))
    )
    with pytest.raises(PySparkException, match="availableNow=True"):
        once.trigger(once=True).start().awaitTermination(SECONDS)
    publish(server, range(1))
    run(source(spark, server), Sink(), tmp_path / "checkpoint")
    with pytest.raises(PySparkException, match="not an offset of the queue 'other'"):
        run(source(spark, server, queue="other"), Sink(), tmp_path / "checkpoint")


@pytest.mark.full
def test_continuous_query_acknowledges_the_last_batch_without_a_next_one(
    spark: SparkSession, server: RunningServer, tmp_path: Path
) -> None:
    sink = Sink()
    query = (
        source(spark, server)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        publish(server, range(10))
        until_acknowledged(server, 10)
        assert sink.numbers == Counter(range(10))
    finally:
        query.stop()
