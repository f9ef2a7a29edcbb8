"""Batch queries that start in the archive and continue in the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tests.helpers.archived_servers import archived_world
from tests.helpers.archives import ArchiveWriter
from tests.helpers.logs import Commit
from tickertape.batch import batch_from_bodies
from tickertape.spark import register
from tickertape.spark.archive.archive_frame import positions_of, read_archive

pytestmark = pytest.mark.spark


@pytest.mark.full
def test_batch_query_reads_archive_and_log(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with archived_world(tmp_path, 500) as world:
        rows = (
            spark.read.format("tickertape")
            .options(servers=world.server.uri, topic="a", minPartitions=3)
            .load()
            .selectExpr("topic", "cast(get_json_object(cast(data as string), '$.n') as int) as n", "bookmark")
            .collect()
        )
        assert sorted(tuple(row) for row in rows) == sorted(world.of("a"))


@pytest.mark.full
@pytest.mark.parametrize("name", ["arc 50% a", "arc [1] {a,b}*?^", "arc:2026#1"])
def test_archive_with_special_characters_in_the_path_is_read(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Spark interprets paths as patterns, and the log of Delta encodes them."""
    location = tmp_path / name
    batch = batch_from_bodies("t", [b"x"] * 10, publisher=7, first_sequence=1, timestamp=1)
    ArchiveWriter(location, "ab" * 16).add([Commit(np.arange(10), batch)], 10)
    archived = read_archive(spark, str(location))
    assert archived.frame.count() == 10
    assert positions_of(archived, "[7|3|:7|6|]") == (2, 6)


@pytest.mark.full
def test_bookmarks_with_sequences_above_a_spark_long_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """The table has the bits of an unsigned number, which Spark reads as a signed one."""
    first = 2**63 - 5
    batch = batch_from_bodies("t", [b"x"] * 10, publisher=2**64 - 1, first_sequence=first, timestamp=1)
    ArchiveWriter(tmp_path, "ab" * 16).add([Commit(np.arange(10), batch)], 10)
    archived = read_archive(spark, str(tmp_path))
    for start, expected in ((3, 7), (6, 8)):
        begin, end = (f"{2**64 - 1}|{first + at}|" for at in (start, expected))
        assert positions_of(archived, f"[{begin}:{end}]") == (start, expected + 1)
