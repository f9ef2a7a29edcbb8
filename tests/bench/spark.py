"""Spark reading bodies from the log, against Spark reading the same rows from Parquet."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tickertape as tt
from tests.bench.registry import Reading, Room, bench
from tests.bench.stage import FLUSH_SECONDS, stage, timed
from tests.helpers.processes import source_environment
from tickertape.testing import RunningServer

ROWS = 1_000_000
BODY_BYTES = 200
SCANS = 6
"""The first ones compile; the median of the rest counts."""


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", source_environment()["PYTHONPATH"])
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        cores = min(2, len(os.sched_getaffinity(0)))
        builder = SparkSession.builder.master(f"local[{cores}]").config("spark.driver.memory", "2g")
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


def _fill(server: RunningServer, count: int) -> None:
    """Bodies that neither compress nor repeat: Parquet would store a constant once."""
    chance = random.Random(1)
    with tt.Client("bench-filler", server.uri) as client:
        for start in range(0, count, 10_000):
            some = min(10_000, count - start)
            client.publish_batch("orders", [chance.randbytes(BODY_BYTES) for _ in range(some)])
            client.publish_flush(timeout=FLUSH_SECONDS)


def _scan(frame: Callable[[], Any], expected: int) -> float:
    """Seconds of `select sum(length(data))`."""
    taken = []
    for _ in range(SCANS):
        start = timed()
        total = frame().selectExpr("sum(length(data))").collect()[0][0]
        taken.append(timed() - start)
        assert total == expected
    return sorted(taken[2:])[(SCANS - 2) // 2]


def _against_parquet(room: Room, schema: str | None) -> Reading:
    count = room.count(ROWS)
    with stage(room.directory) as server, _session() as spark:
        _fill(server, count)

        def log() -> Any:
            reader = spark.read.format("tickertape").option("servers", server.uri).option("topic", "orders")
            return (reader.schema(schema) if schema else reader).load()

        table = str(room.directory / "parquet")
        log().write.parquet(table)
        ours = _scan(log, count * BODY_BYTES)
        theirs = _scan(lambda: spark.read.parquet(table), count * BODY_BYTES)
    return Reading(
        theirs / ours, f"{ours:.2f} s, Parquet {theirs:.2f} s for {count:,} rows of {BODY_BYTES} bytes"
    )


@bench("spark", "sum(length(data)) against Parquet (snappy), schema `data binary`", unit="x", repeat=1)
def scan_bodies(room: Room) -> Reading:
    return _against_parquet(room, "data binary")


@bench("spark", "sum(length(data)) against Parquet (snappy), all columns", unit="x", repeat=1)
def scan_all_columns(room: Room) -> Reading:
    return _against_parquet(room, None)
