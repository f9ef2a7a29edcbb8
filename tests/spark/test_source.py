"""Batch source in a real Spark session with a real server: rows and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.helpers.positions import resolve
from tickertape.client.blocking.client import Client
from tickertape.client.blocking.log_client import LogClient
from tickertape.spark import register
from tickertape.testing.server import RunningServer

pytestmark = pytest.mark.spark

CARRIERS = ("UA", "B6", "EV", "DL", "AA")
COUNT = 20_000
COLUMNS = ["topic", "bookmark", "publisher", "sequence", "timestamp", "data"]

Row = tuple[Any, ...]
Load = Callable[..., DataFrame]


@pytest.fixture(scope="session")
def rows(server: RunningServer) -> list[Row]:
    """Publish from five publishers with a second topic in between, and return the replayed rows."""
    publishers = [Client(f"carrier-{carrier}", server.uri) for carrier in CARRIERS]
    for n in range(20):
        for client, carrier in zip(publishers, CARRIERS, strict=True):
            some = range(n * 1000, n * 1000 + COUNT // 20 // len(CARRIERS))
            client.publish_batch("flights", [{"carrier": carrier, "flight": i} for i in some])
            client.publish("quiet", {"n": n})
            client.publish_flush()
    with publishers[0] as client:
        replayed = [
            (m.topic, m.bookmark, m.publisher, m.sequence, m.timestamp, m.data)
            for m in client.replay("flights")
        ]
    for client in publishers[1:]:
        client.close()
    assert len(replayed) == COUNT
    return replayed


@pytest.fixture
def load(spark: SparkSession, server: RunningServer, rows: list[Row]) -> Load:
    """Return `load(topic=..., schema=..., option=...)`, which makes a frame of the published topic."""

    def loaded(*, schema: str | None = None, **options: str | int) -> DataFrame:
        reader = spark.read.format("tickertape")
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**({"servers": server.uri, "topic": "flights"} | options)).load()

    return loaded


def collected(frame: DataFrame) -> list[Row]:
    """Return the rows as tuples that compare with a replay."""
    return [
        tuple(
            bytes(value)
            if isinstance(value, bytearray)
            else value.astimezone(UTC)
            if name == "timestamp"
            else value
            for name, value in row.asDict().items()
        )
        for row in frame.collect()
    ]


def test_source_with_the_short_name_reads_the_rows_of_a_replay(load: Load, rows: list[Row]) -> None:
    frame = load()
    assert frame.columns == COLUMNS
    assert collected(frame) == rows


def test_explicit_registration_of_the_source_is_harmless(spark: SparkSession, load: Load) -> None:
    register(spark)
    assert load().count() == COUNT


def test_spark_aggregates_json_bodies(load: Load) -> None:
    flights = load(schema="data binary").selectExpr("from_json(cast(data as string), 'carrier string') as f")
    counts = {row["carrier"]: row["count"] for row in flights.groupBy("f.carrier").count().collect()}
    assert counts == dict.fromkeys(CARRIERS, COUNT // len(CARRIERS))


def test_user_schema_selects_columns_in_schema_order(load: Load, rows: list[Row]) -> None:
    frame = load(schema="data binary, publisher string")
    assert frame.columns == ["data", "publisher"]
    assert collected(frame) == [(row[5], row[2]) for row in rows]


def test_source_partitions_cover_the_range_once_in_order(load: Load, rows: list[Row]) -> None:
    frame = load(schema="bookmark string", minPartitions=7)
    parts = frame.rdd.glom().collect()
    assert len(parts) == 7
    assert [row["bookmark"] for part in parts for row in part] == [row[1] for row in rows]
    assert all(parts)
    assert load(maxRowsPerPartition=3000).rdd.getNumPartitions() == 7  # 20,000 flights and 100 others


def test_adjacent_ranges_have_no_overlap_and_no_gap(load: Load, rows: list[Row]) -> None:
    first, second = rows[4321][1], rows[15_000][1]
    parts = [
        load(endingBookmark=first),
        load(startingBookmark=first, endingBookmark=second),
        load(startingBookmark=second),
    ]
    assert [len(collected(part)) for part in parts] == [4322, 15_000 - 4321, COUNT - 15_001]
    assert [row for part in parts for row in collected(part)] == rows


@pytest.mark.behaviour(1)
def test_bookmark_timestamp_is_exclusive_and_starting_timestamp_inclusive(
    load: Load, rows: list[Row]
) -> None:
    middle = rows[COUNT // 2][4]
    text = middle.strftime("%Y%m%dT%H%M%S.%fZ")
    assert collected(load(startingBookmark=text)) == [row for row in rows if row[4] > middle]
    assert collected(load(startingTimestamp=text)) == [row for row in rows if row[4] >= middle]
    assert collected(load(endingTimestamp=text)) == [row for row in rows if row[4] < middle]
    assert collected(load(endingBookmark=text)) == [row for row in rows if row[4] <= middle]


def test_empty_range_is_an_empty_table(load: Load) -> None:
    assert load(startingBookmark="now").count() == 0
    assert load(topic="large").collect() == []
    assert load(endingTimestamp="20000101T000000").count() == 0


def test_source_uses_the_next_server_when_one_is_unreachable(
    load: Load, server: RunningServer, unused: str
) -> None:
    assert load(servers=f"{unused},{server.uri}").count() == COUNT


def test_reading_does_not_change_the_log(load: Load, server: RunningServer) -> None:
    with LogClient("observer", server.uri) as client:
        before = resolve(client, "flights", "0")
        load(minPartitions=4).count()
        assert resolve(client, "flights", "0") == before


def test_limit_stops_a_read_early_without_an_error(load: Load, rows: list[Row]) -> None:
    assert [row["bookmark"] for row in load().limit(5).collect()] == [row[1] for row in rows[:5]]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"servers": "UNUSED"}, "Disconnected: Cannot read: no server answered. Cannot connect to 'UNUSED'"),
        ({"topic": "elsewhere"}, "TopicNotRecorded: Cannot replay topic 'elsewhere'"),
        ({"startingBookmark": "1|1|"}, "BookmarkUnknown: Cannot find the bookmark '1|1|' in the log"),
        ({"endingBookmark": "1|1|"}, "BookmarkUnknown: Cannot find the end bookmark '1|1|' in the log"),
        (
            {"startingBookmark": "soon"},
            "BadBookmark: Invalid option startingBookmark: Invalid start point 'soon'",
        ),
        ({"filter": "/carrier = "}, "BadFilter: "),
        ({"path": "flights"}, "BadOption: Unknown option 'path'"),
        ({"schema": "carrier binary"}, "UsageError: Unsupported type binary of column 'carrier'"),
        (
            {"schema": "sequence long, sequence long"},
            "UsageError: Invalid schema ['sequence', 'sequence']. Use one or more columns",
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_source_error_appears_once_in_one_line(
    load: Load, unused: str, options: dict[str, str], line: str
) -> None:
    given: dict[str, Any] = {name: value.replace("UNUSED", unused) for name, value in options.items()}
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        load(**given).collect()
    errors = [text for text in str(caught.value).splitlines() if re.match(r"tickertape\.[A-Z]", text)]
    assert len(errors) == 1, str(caught.value)
    assert line.replace("UNUSED", unused) in errors[0]
