"""Spark reading bodies from the log, against Parquet with the same rows and against an empty source."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.bench.logs import ROWS, rows_log, singles_count, singles_log
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import BODY, ROOT, timed
from tests.helpers.positions import resolve
from tests.helpers.processes import source_environment
from tickertape.base.bookmarks import EPOCH, format_timestamp
from tickertape.client.blocking.log_client import LogClient
from tickertape.testing import RunningServer

Log = Callable[[Room], contextlib.AbstractContextManager[RunningServer]]

SCANS = 6
"""The first runs compile. The median of the others counts."""


def _cores() -> int:
    return min(2, len(os.sched_getaffinity(0)))


@contextlib.contextmanager
def session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as bytecode, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((source_environment()["PYTHONPATH"], str(ROOT))))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        # As an installed package is: compiled.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", bytecode)
        builder = SparkSession.builder.master(f"local[{_cores()}]").config("spark.driver.memory", "2g")
        for name, value in (
            ("spark.ui.enabled", "false"),
            ("spark.ui.showConsoleProgress", "false"),
            ("spark.log.level", "OFF"),
            ("spark.sql.shuffle.partitions", "2"),
        ):
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()


def _scan(frame: Callable[[], Any], expected: int) -> float:
    """Return the seconds of `select sum(length(data))`."""
    taken = []
    for _ in range(SCANS):
        start = timed()
        total = frame().selectExpr("sum(length(data))").collect()[0][0]
        taken.append(timed() - start)
        assert total == expected
    return sorted(taken[2:])[(SCANS - 2) // 2]


def _rows(spark: Any, server: RunningServer, schema: str | None, *, files: bool) -> Any:
    """Return all rows of the log, from the server or from its files."""
    reader = spark.read.format("tickertape").option("servers", server.uri).option("topic", "orders")
    if files:
        reader = reader.option("journal", str(server.data))
    return (reader.schema(schema) if schema else reader).load()


def _against_parquet(room: Room, log: Log, count: int, schema: str | None, *, files: bool = False) -> Reading:
    size = count * len(BODY)
    with log(room) as server, session() as spark:
        rows = partial(_rows, spark, server, schema, files=files)
        table = str(room.directory / "parquet")
        rows().write.parquet(table)
        ours = _scan(rows, size)
        theirs = _scan(lambda: spark.read.parquet(table), size)
    return Reading(
        theirs / ours, f"{ours:.2f} s, Parquet {theirs:.2f} s for {count:,} rows of {len(BODY)} bytes"
    )


def _against_constant(room: Room, *, files: bool) -> Reading:
    from tests.helpers.constant_source import ConstantSource

    count = room.count(ROWS)
    size = count * len(BODY)
    with rows_log(room) as server, session() as spark:
        spark.dataSource.register(ConstantSource)
        options = {"rows": count, "size": len(BODY), "tasks": _cores()}
        ours = _scan(partial(_rows, spark, server, "data binary", files=files), size)
        theirs = _scan(lambda: spark.read.format("constant").options(**options).load(), size)
    note = f"{ours:.2f} s, the empty source {theirs:.2f} s for {count:,} rows of {len(BODY)} bytes"
    return Reading(theirs / ours, note)


@bench(
    "spark",
    "sum(length(data)) against a Python data source that reads nothing, schema `data binary`",
    unit="x",
    repeat=1,
    floor=0.6,
    aim=0.7,
)
def scan_against_empty(room: Room) -> Reading:
    return _against_constant(room, files=False)


@bench(
    "spark",
    "against a Python data source that reads nothing, tasks read the files of the log",
    unit="x",
    repeat=1,
    floor=0.8,
    aim=0.95,
)
def files_against_empty(room: Room) -> Reading:
    return _against_constant(room, files=True)


@bench(
    "spark",
    "sum(length(data)) against Parquet (snappy), schema `data binary`",
    unit="x",
    repeat=1,
    floor=0.7,
    aim=1.2,
)
def scan_bodies(room: Room) -> Reading:
    return _against_parquet(room, rows_log, room.count(ROWS), "data binary")


@bench(
    "spark",
    "the same, tasks read the files of the log",
    unit="x",
    repeat=1,
    floor=1.2,
    aim=2,
)
def scan_files(room: Room) -> Reading:
    return _against_parquet(room, rows_log, room.count(ROWS), "data binary", files=True)


@bench("spark", "sum(length(data)) against Parquet (snappy), all columns", unit="x", repeat=1)
def scan_all_columns(room: Room) -> Reading:
    return _against_parquet(room, rows_log, room.count(ROWS), None)


@bench(
    "spark",
    "sum(length(data)), schema `data binary`, of a log of single-message frames",
    unit="x",
    repeat=1,
    floor=0.5,
    aim=1.2,
)
def scan_singles(room: Room) -> Reading:
    return _against_parquet(room, singles_log, singles_count(room), "data binary")


@bench(
    "spark",
    "a hundredth of the log by bookmark and by time, schema `data binary`, against all of it",
    unit="x",
    repeat=1,
    floor=10,
    aim=50,
)
def scan_hundredth(room: Room) -> Reading:
    count = room.count(ROWS)
    few = max(count // 100, 1)
    with rows_log(room) as server, session() as spark:
        with LogClient("bench-edges", server.uri) as client:
            journal, start, _ = resolve(client, "orders", EPOCH)
            middle = start + count // 2
            edges = [client.read_positions("orders", at, at + 1, journal) for at in (middle, middle + few)]
            first, last = [next(stream.batches()) for stream in edges]

        def rows(**options: str) -> Any:
            reader = spark.read.format("tickertape").schema("data binary")
            return reader.options(servers=server.uri, topic="orders", **options).load()

        whole = _scan(rows, count * len(BODY))
        by_bookmark = {"startingBookmark": first.bookmark(0), "endingBookmark": last.bookmark(0)}
        bounds = [format_timestamp(batch.timestamp(0)) for batch in (first, last)]
        by_time = {"startingTimestamp": bounds[0], "endingTimestamp": bounds[1]}
        stamped = rows(**by_time).selectExpr("sum(length(data))").collect()[0][0]
        assert stamped > 0
        parts = [
            _scan(partial(rows, **by_bookmark), few * len(BODY)),
            _scan(partial(rows, **by_time), stamped),
        ]
    return Reading(
        whole / max(parts),
        f"all {count:,} rows {whole:.2f} s, {few:,} by bookmark {parts[0]:.2f} s, by time {parts[1]:.2f} s",
    )
