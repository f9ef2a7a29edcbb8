"""The data pipeline on Spark: a query from log to log, the sink, the archive."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import msgspec

import tickertape as tt
from tests.bench.registry import Reading, Room, bench
from tests.bench.spark import session
from tests.bench.stage import BODY, fill, stage, timed

PART = 100
"""One message in this number passes a filter."""
BATCH_ROWS = 20_000
BATCHES_COLD = 5
"""Batches of a query before it is in its stride."""
BATCHES = 20
SINK_ROWS = 2_000_000
ARCHIVE_ROWS = 2_000_000
ANSWER_SECONDS = 300


@bench(
    "pipeline",
    "a steady query from log to log, 20,000 rows a batch",
    unit="s",
    repeat=1,
    floor=1,
    aim=0.6,
)
def query_batch(room: Room) -> Reading:
    batches = BATCHES_COLD + room.count(BATCHES)
    with stage(room.directory) as server, session() as spark:
        fill(server, batches * BATCH_ROWS)
        source = (
            spark.readStream.format("tickertape")
            .options(servers=server.uri, topic="orders", maxRowsPerTrigger=str(BATCH_ROWS))
            .schema("data binary")
            .load()
        )
        query = (
            source.writeStream.format("tickertape")
            .options(servers=server.uri, publisher="bench-copy", topic="copies")
            .option("checkpointLocation", (room.directory / "checkpoint").as_uri())
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(ANSWER_SECONDS)
        progress = [p for p in query.recentProgress if p["numInputRows"]]
        with tt.Client("bench-judge", server.uri) as client:
            copied = sum(len(batch) for batch in client.replay("copies").batches())
    assert copied == batches * BATCH_ROWS
    taken = [p["durationMs"]["triggerExecution"] / 1000 for p in progress[BATCHES_COLD:]]
    return Reading(statistics.median(taken), f"{len(taken)} batches, the longest {max(taken):.2f} s")


@bench(
    "pipeline",
    "the sink: rows of 200 bytes, one transaction",
    unit="rows/s",
    repeat=1,
    floor=150_000,
    aim=500_000,
)
def sink_rows(room: Room) -> Reading:
    count = room.count(SINK_ROWS)
    with stage(room.directory) as server, session() as spark:
        body = BODY.decode()
        rows = spark.range(0, count, numPartitions=2).selectExpr(f"cast('{body}' as binary) as data")

        def write(topic: str) -> float:
            start = timed()
            rows.write.format("tickertape").options(
                servers=server.uri, publisher="bench-sink", topic=topic
            ).mode("append").save()
            return timed() - start

        write("warm")
        taken = min(write("first"), write("second"))
    return Reading(
        count / taken, f"{taken:.2f} s for {count:,} rows, from the start of the write to its commit"
    )


def _archived(server: Any, directory: Path, count: int) -> float:
    """Archive the whole log, and return the seconds."""
    from tickertape.archive.location import location_of
    from tickertape.spark.archive.job import ArchiveJobOptions, archive_log

    with session() as spark:
        wish = ArchiveJobOptions(servers=(server.uri,), place=location_of(str(directory)))
        spark.range(1).count()
        start = timed()
        report = archive_log(spark, wish)
        taken = timed() - start
    assert report.rows == count
    return taken


@bench(
    "pipeline",
    "the archive: messages of 200 bytes written",
    unit="msg/s",
    repeat=1,
    floor=100_000,
    aim=250_000,
)
def archive_write(room: Room) -> Reading:
    count = room.count(ARCHIVE_ROWS)
    with stage(room.directory) as server:
        fill(server, count, body_of=lambda n: b'{"part":%d,"x":"%s"}' % (n % PART, b"x" * 178))
        taken = _archived(server, room.directory / "archive", count)
    return Reading(count / taken, f"{taken:.1f} s for {count:,} messages, the first query's start included")


@bench(
    "pipeline",
    "the archive replayed through a filter that 1 % pass",
    unit="msg/s",
    repeat=1,
    floor=500_000,
    aim=2_000_000,
)
def archive_replay(room: Room) -> Reading:
    from click.testing import CliRunner

    from tickertape.cli.support.command_group import cli

    count = room.count(ARCHIVE_ROWS)
    archive = room.directory / "archive"
    with stage(room.directory, config='segment_size = "16MB"\n') as server:
        fill(server, count, body_of=lambda n: b'{"part":%d,"x":"%s"}' % (n % PART, b"x" * 178))
        _archived(server, archive, count)
    told = CliRunner().invoke(
        cli,
        ["journal", "prune", str(room.directory / "data"), "--archived", str(archive), "--output", "json"],
    )
    assert told.exit_code == 0, told.output
    begin = msgspec.json.decode(told.stdout)["first_position"]
    assert begin > count // 2, "most of it is in the archive only"
    config = f'segment_size = "16MB"\n[archive]\nlocation = "{archive}"\n'
    with stage(room.directory, config=config) as server, tt.Client("bench-reader", server.uri) as client:
        taken = []
        for _ in range(3):
            start = timed()
            found = sum(len(batch) for batch in client.replay("orders", filter="/part = 7").batches())
            taken.append(timed() - start)
            assert found == count // PART
    seconds = statistics.median(taken)
    return Reading(
        count / seconds, f"{seconds:.2f} s past {count:,} messages, {begin:,} of them archived only"
    )
