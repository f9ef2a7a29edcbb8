"""Selection by filter, pattern and columns, from the server and from files."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tickertape.client.blocking.client import Client
from tickertape.testing.server import RunningServer, running_server

pytestmark = pytest.mark.spark

ROUNDS = 60
CARRIERS = ("UA", "B6", "EV")
CONFIG = """
[journal]
segment_size = "1MB"
[[topic]]
name = "fills/fix"
message_type = "nvfix"
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Yield a server with JSON bodies of two topics, other bodies and empty ones in shared commits."""
    with running_server(tmp_path_factory.mktemp("narrowing") / "data", CONFIG) as server:
        with Client("one", server.uri) as client:
            for n in range(ROUNDS):
                rows = [
                    {"carrier": CARRIERS[i % 3], "flight": n * 20 + i, "pad": "x" * 900} for i in range(20)
                ]
                client.publish_batch("flights/ny", rows)
                client.publish("flights/la", {"carrier": "UA", "flight": n}, sow_key=f"k{n}", expiration=5)
                client.publish("fills/fix", b"carrier=UA\x01flight=%d\x01" % n, correlation_id=f"c{n}")
                client.publish("flights/la", b"no JSON")
                if n % 7 == 0:
                    client.publish_flush()
            client.publish_flush()
        yield server


def load(spark: SparkSession, log: RunningServer, schema: str, *, files: bool, **options: Any) -> DataFrame:
    given = {"servers": log.uri, "topic": "flights/ny"} | options
    if "topicPattern" in options:
        del given["topic"]
    if files:
        given["journal"] = str(log.data)
    return spark.read.format("tickertape").schema(schema).options(**given).load()


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]


@pytest.mark.parametrize("files", [False, True], ids=["server", "files"])
def test_filter_option_selects_the_matching_messages(
    spark: SparkSession, log: RunningServer, files: bool
) -> None:
    schema = "position long, topic string, flight long, carrier string, key string, expiration_ms long"
    everything = rows(load(spark, log, schema, files=files, topicPattern="/"))
    assert len(everything) == ROUNDS * 23
    assert [row[0] for row in everything] == sorted({row[0] for row in everything})
    # Bodies of other types have no field columns, although a filter may read their fields.
    assert sum(row[2] is None for row in everything) == 2 * ROUNDS
    found = rows(load(spark, log, schema, files=files, filter="/carrier = 'UA' AND /flight >= 600"))
    assert found == [row for row in everything if row[1] == "flights/ny" and row[3] == "UA" and row[2] >= 600]
    assert len(found) == 7 * ROUNDS // 2
    by_name = {"topicPattern": "la$|fix", "filter": "/carrier = 'UA' AND /flight < 3", "minPartitions": 3}
    found = rows(load(spark, log, schema, files=files, **by_name))
    assert [(row[1], row[2], row[4], row[5]) for row in found] == [
        (topic, n if topic == "flights/la" else None, *more)
        for n in range(3)
        for topic, more in (("flights/la", (f"k{n}", 5000)), ("fills/fix", (None, None)))
    ]


@pytest.mark.parametrize("files", [False, True], ids=["server", "files"])
def test_filter_option_reads_the_correlation_id(spark: SparkSession, log: RunningServer, files: bool) -> None:
    schema = "topic string, correlation_id string, date date, timestamp timestamp"
    frame = load(
        spark, log, schema, files=files, topicPattern="^f", filter="CORRELATION_ID() IN ('c7', 'c9', 'x')"
    )
    assert rows(frame.select("topic", "correlation_id")) == [("fills/fix", "c7"), ("fills/fix", "c9")]
    assert frame.where(f.col("date") != f.to_date("timestamp")).count() == 0


def test_filter_on_the_client_name_requires_the_server(spark: SparkSession, log: RunningServer) -> None:
    text = "CLIENT_NAME() LIKE '^spark-'"
    assert load(spark, log, "sequence long", files=False, filter=text).count() == ROUNDS * 20
    with pytest.raises(Exception, match="Option filter uses CLIENT_NAME, which only a server can evaluate"):
        load(spark, log, "sequence long", files=True, filter=text).count()


def test_body_that_does_not_fit_the_schema_is_null_or_an_error(
    spark: SparkSession, log: RunningServer
) -> None:
    schema = "carrier string, flight integer"
    frame = load(spark, log, schema, files=False, topic="flights/la")
    assert frame.where("flight is null").count() == ROUNDS
    assert frame.groupBy("carrier").count().where("carrier = 'UA'").collect()[0][1] == ROUNDS
    with pytest.raises(
        Exception, match=r"BadMessage: Cannot read message .* of topic 'flights/la' with the schema"
    ):
        load(spark, log, schema, files=False, topic="flights/la", mode="FAILFAST").collect()


def test_small_range_is_one_task_by_default(spark: SparkSession, log: RunningServer) -> None:
    assert load(spark, log, "sequence long", files=False).rdd.getNumPartitions() == 1
    assert load(spark, log, "sequence long", files=False, minPartitions=5).rdd.getNumPartitions() == 5
