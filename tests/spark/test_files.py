"""Tasks that read the files of the log: the rows of the server, whoever wrote them and whatever goes on."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tickertape.client.blocking import Client
from tickertape.testing.server import RunningServer, running_server

pytestmark = pytest.mark.spark

TOPICS = ("flights", "weather", "rare")
ROUNDS = 400


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server on small segments: two publishers, three topics, some messages alone in their frame."""
    directory = tmp_path_factory.mktemp("files")
    with running_server(directory / "data", '[journal]\nsegment_size = "1MB"\n') as server:
        with Client("one", server.uri) as one, Client("two", server.uri) as two:
            for n in range(ROUNDS):
                client, other = (one, two) if n % 3 else (two, one)
                client.publish_batch("flights", [b"%06d-%03d" % (n, i) + b"x" * 150 for i in range(25)])
                other.publish("weather", b"w" * (n % 300))
                if n % 97 == 0:
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
def test_files_give_what_the_server_gives(spark: SparkSession, log: RunningServer, topic: str) -> None:
    assert len(list((log.data / "journal").iterdir())) > 2
    whole = rows(load(spark, log, topic=topic, files=False))
    assert len(whole) == {"flights": ROUNDS * 25 + ROUNDS // 10, "weather": ROUNDS, "rare": 5}[topic]
    assert rows(load(spark, log, topic=topic)) == whole
    assert rows(load(spark, log, topic=topic, minPartitions=13)) == whole
    first, last = whole[len(whole) // 3], whole[-2]
    cut = {"startingBookmark": first[1], "endingBookmark": last[1]}
    assert rows(load(spark, log, topic=topic, minPartitions=3, **cut)) == whole[len(whole) // 3 + 1 : -1]


def test_a_worker_that_is_killed_is_replaced_and_no_row_is_lost_or_doubled(
    spark: SparkSession, log: RunningServer, tmp_path: Path
) -> None:
    """The session of the tests gives a task one try, so the task is run twice by hand, as Spark would."""
    mark = tmp_path / "killed"

    def kill_once(part: Any) -> Any:
        for at, row in enumerate(part):
            if at == 100 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield row

    frame = load(spark, log)
    expected = rows(frame)
    with pytest.raises(Exception, match="exited|crashed|lost"):
        frame.rdd.mapPartitions(kill_once).collect()
    assert mark.exists()
    again = frame.rdd.mapPartitions(kill_once).collect()
    assert [(r["bookmark"], bytes(r["data"])) for r in again] == [(r[1], r[5]) for r in expected]


def test_a_directory_that_is_not_the_servers_is_told_in_one_line(
    spark: SparkSession, log: RunningServer, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=f"option journal, {tmp_path} on") as caught:
        load(spark, log, files=False, journal=str(tmp_path)).collect()
    told = {text for text in str(caught.value).splitlines() if "tickertape.base.errors." in text}
    assert len(told) == 1
    assert "NotAJournal" in told.pop()


# -- filters ------------------------------------------------------------------------------------------


@pytest.fixture
def pushing(spark: SparkSession) -> Any:
    """The session, with filters pushed down to Python sources."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield spark
    spark.conf.unset(name)


def positions_read(frame: DataFrame) -> int:
    """Partitions that are not empty tell what was read: one row a partition."""
    return sum(1 for part in frame.rdd.glom().collect() if part)


@pytest.mark.parametrize("files", [False, True], ids=["server", "files"])
def test_pushed_filters_change_what_is_read_and_never_what_is_found(
    pushing: SparkSession, log: RunningServer, *, files: bool
) -> None:
    plain = load(pushing, log, files=files).cache()
    pushed = load(pushing, log, files=files, pushDownPredicate="true")
    stamps = sorted(row[0] for row in plain.select("timestamp").distinct().collect())
    low, high = stamps[len(stamps) // 3], stamps[len(stamps) // 2]
    bookmark = plain.collect()[777]["bookmark"]
    stamp = f.col("timestamp")
    for condition in (
        (stamp >= f.lit(low)) & (stamp < f.lit(high)),
        stamp > f.lit(low),
        stamp <= f.lit(low),
        stamp == f.lit(high),
        (stamp < f.lit(low)) | (stamp > f.lit(high)),
        stamp.isin(low, high),
        (stamp > f.lit(low)) & (f.length("data") < 20),
        f.col("bookmark") == bookmark,
        (f.col("bookmark") == bookmark) & (stamp < f.lit(stamps[0])),
        f.col("bookmark") == "1|1|",
        f.col("bookmark").contains("|9"),
        f.col("topic") == "flights",
        f.col("topic") == "weather",
        f.col("topic").isNull(),
        stamp > f.lit(datetime(9999, 1, 1, tzinfo=UTC)),
        (f.col("sequence") % 7 == 0) & (stamp >= f.lit(low)),
    ):
        assert rows(pushed.where(condition)) == rows(plain.where(condition)), condition
    plain.unpersist()


def test_a_pushed_moment_reads_only_its_part_of_the_log(pushing: SparkSession, log: RunningServer) -> None:
    whole = rows(load(pushing, log))
    text = whole[-1][4].strftime("%Y-%m-%d %H:%M:%S.%f")
    counts = {}
    for push in ("true", "false"):
        frame = load(pushing, log, pushDownPredicate=push, maxRowsPerPartition=500)
        counts[push] = frame.where(f"timestamp >= timestamp'{text}'").rdd.getNumPartitions()
    assert counts["true"] == 2  # as many as minPartitions, or one of a single message
    assert counts["false"] > 10


def test_pushing_in_a_session_that_forbids_it_is_refused_by_name(
    spark: SparkSession, log: RunningServer
) -> None:
    with pytest.raises(Exception, match="filterPushdown.enabled"):
        load(spark, log, pushDownPredicate="true").collect()


def test_timestamps_are_moments_whatever_zone_the_session_shows_them_in(
    spark: SparkSession, log: RunningServer
) -> None:
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
