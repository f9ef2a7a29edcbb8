"""Audit: planted faults are found with their sequences, and an intact log has no finding."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from datetime import UTC
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import tickertape as tt
from tests.helpers.positions import resolve
from tickertape.archive.schema import PARTITION_COLUMNS, app_id, arrow_schema, table_properties
from tickertape.base.errors import BookmarkUnknown
from tickertape.base.names import publisher_id
from tickertape.cli.support.command_group import cli
from tickertape.client.blocking.log_client import LogClient
from tickertape.client.limits import foreign_sequences_max
from tickertape.spark.archive.archive_frame import positions_of, read_archive
from tickertape.spark.audit import differences, differing_stretches, findings, number_runs, publisher_table
from tickertape.testing.server import RunningServer, running_server

pytestmark = pytest.mark.spark

BEGAN = 1_767_225_600_000_000
"""Start of the planted logs in microseconds: 2026-01-01 UTC. They have one message per second."""
SECOND = 1_000_000

Planted = tuple[str, int, int]
"""Publisher, sequence and position."""


def numbered(
    spark: SparkSession, rows: Sequence[Planted], partitions: int = 3, late: Container[int] = ()
) -> DataFrame:
    """Return messages of a log. `late`: positions of late messages."""
    schema = "publisher string, sequence long, position long, time long, stored_late boolean"
    frame = spark.createDataFrame([(*row, BEGAN + row[2] * SECOND, row[2] in late) for row in rows], schema)
    return frame.selectExpr(
        "publisher", "sequence", "position", "timestamp_micros(time) as timestamp", "stored_late"
    ).repartition(partitions)


def found(runs: DataFrame) -> set[tuple[Any, ...]]:
    rows = findings(runs).select("publisher", "kind", "first", "last", "count").collect()
    return {tuple(row) for row in rows}


# -- numbers ------------------------------------------------------------------------------------------


def planted_log(seed: int, publishers: int) -> list[Planted]:
    """Return messages of interleaved publishers with lost, repeated and swapped messages."""
    chance = random.Random(seed)
    log: list[tuple[str, int]] = []
    for publisher in range(publishers):
        first = chance.randint(1, 1000)
        sequences = [n for n in range(first, first + 40) if chance.random() > 0.1]
        for _ in range(chance.choice([0, 0, 3])):
            sequences.insert(chance.randrange(len(sequences)), chance.choice(sequences))
        for _ in range(chance.choice([0, 0, 2])):
            at = chance.randrange(len(sequences) - 1)
            sequences[at], sequences[at + 1] = sequences[at + 1], sequences[at]
        log += [(str(publisher), sequence) for sequence in sequences]
    places = chance.sample(range(3 * len(log)), len(log))
    of_publisher: dict[str, list[int]] = {}
    for (publisher_name, _), place in zip(log, places, strict=True):
        of_publisher.setdefault(publisher_name, []).append(place)
    rising = {name: iter(sorted(some)) for name, some in of_publisher.items()}
    return [(name, sequence, next(rising[name])) for name, sequence in log]


def judged(rows: Sequence[Planted]) -> tuple[int, int, int, int, int]:
    """Return first and last sequence, and counts of all, missing and duplicate messages of a publisher."""
    counts = Counter(sequence for _, sequence, _ in rows)
    first, last = min(counts), max(counts)
    missing = sum(1 for sequence in range(first, last + 1) if sequence not in counts)
    return first, last, len(rows), missing, len(rows) - len(counts)


@pytest.mark.full
def test_audit_counts_random_faults_like_a_manual_count(spark: SparkSession) -> None:
    log = planted_log(20261122, publishers=60)
    rows = publisher_table(number_runs(numbered(spark, log))).collect()
    assert len(rows) == 60
    for row in rows:
        mine = sorted((some for some in log if some[0] == row["publisher"]), key=lambda some: some[2])
        assert judged(mine) == (
            row["first"], row["last"], row["messages"], row["missing"], row["duplicates"]
        )  # fmt: skip
        back = any(later[1] < earlier[1] for earlier, later in pairwise(mine))
        assert back == (row["order_breaks"] > 0)


def test_audit_findings_name_the_sequences(spark: SparkSession) -> None:
    numbers = [1, 2, 3, 4, 6, 7, 8, 5, 9, 9, 12]
    log = [("7", sequence, place) for place, sequence in enumerate(numbers)]
    log += [("8", sequence, 100 + sequence) for sequence in range(10, 20)]
    log += [("11", sequence, 200 + place) for place, sequence in enumerate([1, 2, 3, 4, 3, 5])]
    assert found(number_runs(numbered(spark, log, 1))) == {
        ("11", "duplicate", 3, 3, 1),
        ("11", "order", 3, 3, 1),
        ("7", "missing", 10, 11, 2),
        ("7", "duplicate", 9, 9, 1),
        ("7", "order", 5, 5, 1),
    }


@pytest.mark.parametrize("partitions", [1, 3])
def test_late_message_is_not_an_order_break(spark: SparkSession, partitions: int) -> None:
    # 3 to 5 fill a hole after 9, and 5 is there twice. 11 follows 12, or 12 precedes 11.
    numbers = [1, 2, 6, 7, 8, 9, 3, 4, 5, 5, 10, 12, 11]
    log = [("7", sequence, place) for place, sequence in enumerate(numbers)]
    runs = number_runs(numbered(spark, log, partitions, late=range(6, 10)))
    swapped = 12 if ("7", "order", 12, 12, 1) in found(runs) else 11
    assert found(runs) == {("7", "duplicate", 5, 5, 1), ("7", "order", swapped, swapped, 1)}


@pytest.mark.full
def test_message_stored_twice_at_one_position_is_a_duplicate_not_an_order_break(spark: SparkSession) -> None:
    log = [("7", sequence, sequence) for sequence in range(1, 6)]
    assert found(number_runs(numbered(spark, [*log, *log], 1))) == {
        ("7", "duplicate", sequence, sequence, 1) for sequence in range(1, 6)
    }
    file = number_runs(numbered(spark, log, 1))  # two executors with the same file of an archive
    assert found(file.union(file)) == {("7", "duplicate", 1, 5, 5)}


@pytest.mark.full
def test_order_break_between_ordered_partitions_is_found(spark: SparkSession) -> None:
    parts = ([("7", 5, 0), ("7", 6, 2)], [("7", 20, 1)])
    one, other = (number_runs(numbered(spark, part, 1)) for part in parts)
    assert found(one.union(other)) == {("7", "missing", 7, 19, 13), ("7", "order", 20, 20, 1)}


@pytest.mark.full
def test_renumbering_that_starts_at_the_clock_is_not_a_gap(spark: SparkSession) -> None:
    def clock(place: int) -> int:
        return (BEGAN + place * SECOND) * 1000 + 1

    log = [("7", clock(0), 0), ("7", clock(0) + 1, 1), ("7", clock(50), 51), ("7", clock(50) + 2, 52)]
    log += [("8", 5, 0), ("8", 5 + foreign_sequences_max + 1, 1)]
    # Numbers of a clock, but outside the time between both messages, so messages are missing.
    log += [("9", 1, 0), ("9", 1001, 1), ("10", clock(20), 60), ("10", clock(40), 61)]
    assert found(number_runs(numbered(spark, log))) == {
        ("7", "renumbered", clock(0) + 2, clock(50) - 1, clock(50) - clock(0) - 2),
        ("7", "missing", clock(50) + 1, clock(50) + 1, 1),
        ("8", "renumbered", 6, 5 + foreign_sequences_max, foreign_sequences_max),
        ("9", "missing", 2, 1000, 999),
        ("10", "missing", clock(20) + 1, clock(40) - 1, clock(40) - clock(20) - 1),
    }


# -- equality -----------------------------------------------------------------------------------------

Message = tuple[str, int, str, bytes, str | None, str | None, int | None]


def messages(spark: SparkSession, rows: Sequence[Message]) -> DataFrame:
    schema = (
        "publisher string, sequence long, topic string, data binary, correlation_id string, key string, "
        "expiration_ms long"
    )
    return spark.createDataFrame([*rows], schema).repartition(2)


@pytest.mark.full
def test_comparison_finds_exactly_the_planted_differences(spark: SparkSession) -> None:
    original: list[Message] = [("7", i, "t", b"%d" % i, None, None, None) for i in range(1, 10_001)]
    original[101] = ("7", 102, "t", b"102", None, "k", None)
    changed = original[:]
    changed[100] = ("7", 101, "t", b"101", None, "k", None)
    changed[101] = ("7", 102, "t", b"102", "k", None, None)
    changed[102] = ("7", 103, "u", b"103", None, None, 5)
    changed[7000] = ("7", 7001, "t", b"other", None, None, None)
    changed += [changed[9000], ("9", 1, "t", b"", None, None, None)]
    del changed[4]
    left, right = messages(spark, original), messages(spark, changed)
    stretches = differing_stretches(left, right)
    found_rows = differences(left, right, stretches).select("publisher", "sequence", "kind", "what")
    assert sorted(tuple(row) for row in found_rows.collect()) == [
        ("7", 5, "missing there", ""),
        ("7", 101, "different", "key"),
        ("7", 102, "different", "correlation_id, key"),
        ("7", 103, "different", "topic, expiration_ms"),
        ("7", 7001, "different", "data"),
        ("7", 9001, "other count", ""),
        ("9", 1, "missing here", ""),
    ]
    assert differing_stretches(left, messages(spark, original[::-1])).isEmpty()


# -- real logs ----------------------------------------------------------------------------------------


def publish(server: RunningServer, name: str, topic: str, first: int, bodies: Sequence[bytes]) -> None:
    """Publish as `name` with sequences from `first`. Sequence 1 would mean a new store."""
    store = tt.MemoryPublishStore()
    store._last_sequence = first - 1
    with tt.Client(name, server.uri, publish_store=store) as client:
        for body in bodies:
            client.publish(topic, body)
        client.publish_flush()


def fill(server: RunningServer, *, tampered: bool = False) -> None:
    publish(server, "one", "audited", 11, [b"%d" % i for i in range(11, 311)])
    publish(server, "two", "audited", 11, [b"x"] * 50)
    publish(server, "two", "beside", 61, [b"y"] * 50)
    publish(server, "one", "audited", 311, [b"changed" if tampered else b"311", b"312"])
    if tampered:
        publish(server, "two", "audited", 113, [b"late"])


@pytest.fixture(scope="module")
def whole() -> Iterator[RunningServer]:
    with running_server() as server:
        fill(server)
        yield server


@pytest.fixture(scope="module")
def tampered() -> Iterator[RunningServer]:
    with running_server() as server:
        fill(server, tampered=True)
        yield server


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["pipeline", "audit", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.usefixtures("spark")
def test_audit_of_an_intact_log_is_in_order(whole: RunningServer) -> None:
    result = run(whole.uri, "--output", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["in_order"]
    assert report["findings"] == []
    assert {
        row["publisher"]: (row["first"], row["last"], row["messages"]) for row in report["publishers"]
    } == {
        str(publisher_id("one")): (11, 312, 302),
        str(publisher_id("two")): (11, 110, 100),
    }


@pytest.mark.full
@pytest.mark.usefixtures("spark")
def test_audit_against_another_server_reports_differences_and_exits_1(
    whole: RunningServer, tampered: RunningServer
) -> None:
    # The sequences of "two" continue in another topic, and the audit searches all topics.
    result = run(tampered.uri, "--against", whole.uri, "--topic", "audited")
    assert result.exit_code == 1
    one, two = str(publisher_id("one")), str(publisher_id("two"))
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [two, "missing", "111", "112", "2"] in [line[:5] for line in lines]
    assert [one, "311", "different", "data"] in [line[:4] for line in lines]
    assert [two, "113", "missing", "there"] in [line[:4] for line in lines]
    assert result.stdout.splitlines()[-1] == (
        "NOT IN ORDER: 403 messages of 2 publishers, 2 missing, 0 twice, 0 out of order, "
        "1 missing there, 1 different"
    )


@pytest.mark.usefixtures("spark")
def test_audit_errors_are_one_line(unused: str, tmp_path: Path) -> None:
    result = run(unused, "--timeout", "1s")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "no server answered" in result.stderr
    result = run(str(tmp_path))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert f"Cannot open an archive at '{tmp_path}': " in result.stderr


# -- an archive ---------------------------------------------------------------------------------------


def archive(server: RunningServer, spark: SparkSession, place: Path, begin: int, topics: str = "") -> str:
    """Write the messages of `topics` from position `begin` like an archive."""
    with LogClient("archivist", server.uri) as client:
        journal, _, end = resolve(client, ".*", "0")
    frame = (
        spark.read.format("tickertape")
        .schema(
            "position long, topic string, publisher string, sequence long, timestamp timestamp, data binary"
        )
        .options(servers=server.uri, topicPattern=topics or ".*")
        .load()
        .where(f"position >= {begin}")
        .withColumn("date", f.to_date("timestamp"))
    )
    rows = [row.asDict() for row in frame.orderBy("position").collect()]
    for row in rows:
        row["timestamp"] = row["timestamp"].astimezone(UTC)
    table = DeltaTable.create(
        str(place),
        schema=arrow_schema(),
        partition_by=[*PARTITION_COLUMNS],
        configuration=table_properties(journal, begin, topics),
        raise_if_key_not_exists=False,
    )
    write_deltalake(
        table,
        pa.Table.from_pylist(rows, schema=arrow_schema()),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(app_id(journal), end)]),
    )
    return str(place)


@pytest.mark.full
def test_audit_compares_an_archive_with_the_common_range_of_the_server(
    spark: SparkSession, whole: RunningServer, tmp_path: Path
) -> None:
    table = archive(whole, spark, tmp_path / "archive", begin=100)
    first = DeltaTable(table).to_pyarrow_table().slice(0, 1).to_pylist()[0]
    again = pa.Table.from_pylist([first | {"data": b"other"}], schema=arrow_schema())
    write_deltalake(table, again, mode="append")
    result = run(table, "--against", whole.uri, "--output", "json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    (here, there), (alone,) = report["equality"]["compared"], report["logs"]
    assert here["start"] == there["start"] == alone["start"] == 100
    assert here["end"] == there["end"] == alone["end"]
    assert report["totals"]["duplicates"] == 1
    assert report["totals"]["messages"] == sum(row["messages"] for row in report["publishers"]) < 402
    assert [row["sequence"] for row in report["equality"]["differences"]] == [first["sequence"]]
    assert report["equality"]["counts"]["different"] == 1


@pytest.mark.full
def test_audit_of_an_archive_with_some_topics_does_not_judge_gaps(
    spark: SparkSession, whole: RunningServer, tmp_path: Path
) -> None:
    table = archive(whole, spark, tmp_path / "archive", begin=0, topics="beside|none")
    result = run(table, "--against", whole.uri)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].endswith(
        "gaps not judged, 0 twice, 0 out of order, both logs are equal"
    )


@pytest.mark.full
def test_range_has_the_same_positions_in_archive_and_server(
    spark: SparkSession, whole: RunningServer, tmp_path: Path
) -> None:
    archived = read_archive(spark, archive(whole, spark, tmp_path / "archive", begin=0))
    one, two = publisher_id("one"), publisher_id("two")
    with LogClient("asking", whole.uri) as client:
        stamps = [message.timestamp for message in client.replay("beside")]
        moment = f"{stamps[0]:%Y%m%dT%H%M%S.%f}"
        for start in (
            "0",
            f"{one}|100|",
            f"{one}|200|,{one}|100|",
            f"[{one}|100|:{two}|20|]",
            f"({one}|100|:{two}|20|)",
            moment,
            f"[{moment}:{two}|70|]",
            f"[{one}|310|:{moment})",
        ):
            expected = resolve(client, ".*", start)[1:]
            assert positions_of(archived, start) == expected, start
    with pytest.raises(BookmarkUnknown, match=r"Cannot find the bookmark '.*' in the archive"):
        positions_of(archived, f"{one}|999|")
