"""A batch that begins in the archive: Spark reads over the seam without knowing of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.helpers.archived_servers import archived_world
from tickertape.spark import register

pytestmark = pytest.mark.spark


def test_a_batch_reads_archive_and_log(spark: SparkSession, tmp_path: Path) -> None:
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
