"""Tasks that read journal files: the same rows as from the server, during writes too."""

from __future__ import annotations

import os
import re
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tickertape.client.blocking.client import Client
from tickertape.testing.server import RunningServer, running_server

pytestmark = pytest.mark.spark

TOPICS = ("flights", "weather", "rare")
ROUNDS = 120


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Yield a server with small segments, two publishers, three topics, and some frames of one message."""
    directory = tmp_path_factory.mktemp("files")
    with running_server(directory / "data", '[journal]\nsegment_size = "1MB"\n') as server:
        with Client("one", server.uri) as one, Client("two", server.uri) as two:
            for n in range(ROUNDS):
                client, other = (one, two) if n % 3 else (two, one)
                client.publish_batch("flights", [b"%06d-%03d" % (n, i) + b"x" * 550 for i in range(25)])
                other.publish("weather", b"w" * (n % 300))
                if n % 25 == 0:
                    client.publish("rare", b"rare %d" % n)
                client.publish_flush()
                if n % 10 == 0:
                    other.publish("flights", b"alone %d" % n)
                    other.publish_flush()
            one.publish_flush()
            two.publish_flush()
        yield server


def load(spark: SparkSession, server: RunningServer, *, files: bool = True, **options: Any) -> DataFrame:
    if files:
        options["journal"] = str(server.data)
    reader = spark.read.format("tickertape").options(servers=server.uri, **({"topic": "flights"} | options))
    return reader.load()


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in frame.collect()]


@pytest.mark.parametrize("topic", TOPICS)
def test_journal_files_have_the_same_rows_as_the_server(
    spark: SparkSession, log: RunningServer, topic: str
) -> None:
    assert len(list((log.data / "journal").iterdir())) > 2
    whole = rows(load(spark, log, topic=topic, files=False))
    assert len(whole) == {"flights": ROUNDS * 25 + ROUNDS // 10, "weather": ROUNDS, "rare": 5}[topic]
    assert rows(load(spark, log, topic=topic)) == whole
    assert rows(load(spark, log, topic=topic, minPartitions=13)) == whole
    first, last = whole[len(whole) // 3], whole[-2]
    cut = {"startingBookmark": first[1], "endingBookmark": last[1]}
    assert rows(load(spark, log, topic=topic, minPartitions=3, **cut)) == whole[len(whole) // 3 + 1 : -1]


def test_killed_worker_is_replaced_without_lost_or_duplicate_rows(
    spark: SparkSession, log: RunningServer, tmp_path: Path
) -> None:
    """Run the task twice without Spark, because the session of the tests does not retry tasks."""
    mark = tmp_path / "killed"

    def kill_once(part: Any) -> Any:
        for at, row in enumerate(part):
            if at == 100 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield row

    frame = load(spark, log)
    expected = rows(frame)
    with pytest.raises(Exception, match=r"exited|crashed|lost"):
        frame.rdd.mapPartitions(kill_once).collect()
    assert mark.exists()
    again = frame.rdd.mapPartitions(kill_once).collect()
    assert [(r["bookmark"], bytes(r["data"])) for r in again] == [(r[1], r[5]) for r in expected]


def test_directory_of_another_server_is_refused_in_one_line(
    spark: SparkSession, log: RunningServer, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=rf"directory {tmp_path} of option 'journal' on") as caught:
        load(spark, log, files=False, journal=str(tmp_path)).collect()
    errors = {text for text in str(caught.value).splitlines() if re.match(r"tickertape\.[A-Z]", text)}
    assert len(errors) == 1
    assert "NotAJournal" in errors.pop()


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_reused_frame_is_not_narrowed_by_the_filter_of_an_earlier_query(
    spark: SparkSession, log: RunningServer, pushdown: str
) -> None:
    """Spark 4.3.0 keeps a read narrowed by a filter for later queries of the frame."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, pushdown)
    try:
        frame = load(spark, log)
        latest = frame.selectExpr("max(timestamp)").collect()[0][0]
        assert 0 < frame.where(f.col("timestamp") >= f.lit(latest)).count() < 100
        assert frame.count() == ROUNDS * 25 + ROUNDS // 10
    finally:
        spark.conf.unset(name)


def test_frame_is_planned_once_and_a_new_frame_reads_later_messages(
    spark: SparkSession, log: RunningServer
) -> None:
    frame = load(spark, log, topic="later")
    with Client("later", log.uri) as client:
        client.publish("later", b"1")
        client.publish_flush()
        assert frame.count() == 1
        client.publish("later", b"2")
        client.publish_flush()
        assert frame.count() == 1
        assert load(spark, log, topic="later").count() == 2


def test_timestamps_are_independent_of_the_session_time_zone(spark: SparkSession, log: RunningServer) -> None:
    epoch_micros = "unix_micros(timestamp) as t"
    utc = rows(load(spark, log).selectExpr(epoch_micros, "cast(timestamp as string) as s").limit(3))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        tokyo = rows(load(spark, log).selectExpr(epoch_micros, "cast(timestamp as string) as s").limit(3))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [row[0] for row in tokyo] == [row[0] for row in utc]
    assert [row[1] for row in tokyo] != [row[1] for row in utc]
    with Client("zone", log.uri) as client:
        first = next(iter(client.replay("flights")))
    assert first.timestamp is not None
    assert datetime.fromtimestamp(utc[0][0] / 1e6, UTC) == first.timestamp
    assert utc[0][1].startswith(first.timestamp.strftime("%Y-%m-%d %H:%M:%S"))
