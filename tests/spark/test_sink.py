"""Spark sink: rows become messages, each batch once and as a whole."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tickertape as tt
from tests.helpers.admin import status_of
from tickertape.spark import register
from tickertape.testing import running_server
from tickertape.testing.server import RunningServer

SECONDS = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running_server(tmp_path_factory.mktemp("sink") / "data") as running:
        yield running


def rows(spark: SparkSession, count: int, *more: str) -> DataFrame:
    return spark.range(0, count, numPartitions=3).selectExpr(
        "cast(to_json(struct(id)) as binary) as data", *more
    )


def write(frame: DataFrame, server: RunningServer, **options: str) -> None:
    options = {"servers": server.uri, "publisher": "sink-1", **options}
    frame.write.format("tickertape").options(**options).mode("append").save()


def replayed(server: RunningServer, topic: str) -> list[tt.Message]:
    with tt.Client("reader", server.uri) as client:
        return list(client.replay(topic))


def test_batch_write_publishes_rows_as_messages(spark: SparkSession, server: RunningServer) -> None:
    register(spark)
    frame = rows(
        spark,
        1_000,
        "case when id % 2 = 0 then 'even' else 'odd' end as topic",
        "cast(id as string) as key",
        "case when id < 10 then 'first' end as correlation_id",
        "cast(60000 as int) as expiration_ms",
    )
    write(frame, server)
    found = replayed(server, "even") + replayed(server, "odd")
    assert sorted(message.json()["id"] for message in found) == list(range(1_000))
    for message in found:
        number = message.json()["id"]
        assert message.topic == ("odd" if number % 2 else "even")
        assert message.sow_key == str(number)
        assert message.correlation_id == ("first" if number < 10 else None)
    assert len({message.publisher for message in found}) == 1


@pytest.mark.full
def test_batch_write_with_a_transaction_id_is_published_once(
    spark: SparkSession, server: RunningServer
) -> None:
    register(spark)
    for _ in range(2):
        write(rows(spark, 100), server, topic="once", transactionId="load-2026-11-22")
    assert len(replayed(server, "once")) == 100
    for _ in range(2):
        write(rows(spark, 100), server, topic="twice")
    assert len(replayed(server, "twice")) == 200


def test_failed_batch_write_publishes_and_stages_nothing(spark: SparkSession, server: RunningServer) -> None:
    register(spark)
    broken = rows(spark, 30_000, "if(id = 29000, raise_error('planted'), 'x') as key")
    with pytest.raises(PySparkException, match="planted"):
        write(broken, server, topic="never")
    assert replayed(server, "never") == []
    assert status_of(server, "/stats")[1]["transactions"]["staged_parts"] == 0


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (("cast(id as string) as data",), {}, "No topic is given"),
        (("cast(id as string) as data", "'t' as topic"), {"topic": "t"}, "exclude each other"),
        (("id",), {"topic": "t"}, "to_json"),
        (("id as data",), {"topic": "t"}, "binary or string"),
        (("cast(id as string) as data",), {"topic": "t", "servrs": "x"}, "Unknown option"),
        (
            ("cast(id as string) as data",),
            {"topic": "t", "servers": "tcp://a:1,tcp://b:1"},
            "one server only",
        ),
        (("cast(id as string) as data",), {"topic": "t*"}, "pattern"),
        (("cast(id as string) as data",), {"topic": "t", "publisher": ""}, "publisher"),
        (("cast(id as string) as data",), {"topic": "t", "transactionId": ""}, "transactionId is empty"),
    ],
)
def test_invalid_write_is_refused_before_a_task_runs(
    spark: SparkSession,
    server: RunningServer,
    columns: tuple[str, ...],
    options: dict[str, str],
    text: str,
) -> None:
    register(spark)
    with pytest.raises(PySparkException, match=text):
        write(spark.range(3).selectExpr(*columns), server, **options)


def test_topic_that_a_transaction_cannot_contain_is_refused_before_a_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    config = tmp_path / "tickertape.toml"
    config.write_text('[[sow]]\nname = "positions"\nkey = ["/id"]\n')
    never = rows(spark, 3, "if(id = 1, raise_error('a task ran'), 'x') as key")
    with running_server(tmp_path / "data", config) as server:
        with pytest.raises(PySparkException, match="it is a SOW topic"):
            write(never, server, topic="positions")
        stream = (
            spark.readStream.format("rate").load().selectExpr("cast(cast(value as string) as binary) as data")
        )
        options = {"servers": server.uri, "publisher": "sink-1", "topic": "positions"}
        query = stream.writeStream.format("tickertape").options(**options)
        with pytest.raises(PySparkException, match="it is a SOW topic"):
            query.option("checkpointLocation", str(tmp_path / "points")).start().awaitTermination(60)


def test_overwrite_mode_is_refused(spark: SparkSession, server: RunningServer) -> None:
    register(spark)
    options = {"servers": server.uri, "publisher": "sink-1", "topic": "t"}
    with pytest.raises(PySparkException, match="append"):
        rows(spark, 1).write.format("tickertape").options(**options).mode("overwrite").save()


def test_streaming_query_from_log_to_log_is_exactly_once_over_restarts(
    spark: SparkSession, server: RunningServer, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    register(spark)
    restored = tmp_path_factory.mktemp("restored") / "checkpoint"
    with tt.Client("source", server.uri) as client:
        for start in range(0, 3_000, 1_000):
            client.publish_batch("numbers", [{"n": n} for n in range(start, start + 1_000)])
            client.publish_flush()
            run(spark, server, tmp_path)
            if not start:
                shutil.copytree(tmp_path, restored)
    found = [json.loads(message.data)["twice"] for message in replayed(server, "doubled")]
    assert Counter(found) == Counter(2 * n for n in range(3_000))
    # The same batch again, as after a crash between the commit here and Spark's own note of it.
    latest = max(int(path.name) for path in (tmp_path / "commits").iterdir() if path.name.isdecimal())
    for name in (f"{latest}", f".{latest}.crc"):
        (tmp_path / "commits" / name).unlink()
    run(spark, server, tmp_path)
    assert len(replayed(server, "doubled")) == 3_000
    assert status_of(server, "/stats")[1]["transactions"]["repeated"] >= 1
    # A checkpoint of an earlier day: its batches would be taken for those that are in the log.
    with pytest.raises(PySparkException, match=r"batch 2 of the query .* checkpoint is older than the log"):
        run(spark, server, restored)
    assert len(replayed(server, "doubled")) == 3_000


def run(spark: SparkSession, server: RunningServer, checkpoint: Path) -> None:
    """Process all available messages in batches of 600 rows."""
    source = (
        spark.readStream.format("tickertape")
        .options(servers=server.uri, topic="numbers", maxRowsPerTrigger="600")
        .load()
    )
    doubled = source.selectExpr(
        "to_json(named_struct('twice', 2 * get_json_object(cast(data as string), '$.n'))) as data"
    )
    query = (
        doubled.writeStream.format("tickertape")
        .options(servers=server.uri, publisher="doubler", topic="doubled", checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(SECONDS)
    assert query.exception() is None
