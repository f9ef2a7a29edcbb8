"""Canary for a defect of Spark 4.3.0: reads narrowed by a condition are reused by other queries.

When a test here fails, Spark has fixed it. Then reconsider ADR 30 (docs/adr/0030-nothing-is-pushed-down.md),
because the source could shorten its reads by `where`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    Filter,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
)

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
COUNT = 10


@pytest.fixture
def frame(spark: SparkSession) -> Iterator[DataFrame]:
    """Yield the numbers below `COUNT` from a source with push-down and one partition per number.

    Spark evaluates each condition again.
    """

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.first, self.after = 0, COUNT

        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
            for some in filters:
                if isinstance(some, LessThan):
                    self.after = min(self.after, some.value)
                elif isinstance(some, GreaterThanOrEqual):
                    self.first = max(self.first, some.value)
                yield some

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(n) for n in range(self.first, self.after)]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            yield (partition.value,)

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "canary_numbers"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: Any) -> Reader:
            return Reader()

    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(Numbers)
    try:
        yield spark.read.format("canary_numbers").load()
    finally:
        assert before is not None
        spark.conf.set(PUSHDOWN, before)


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row[0] for row in frame.collect())


@pytest.mark.full
def test_canary_narrowed_read_is_reused_by_a_later_query_without_conditions(frame: DataFrame) -> None:
    assert numbers(frame.where("n < 3")) == [0, 1, 2]
    assert numbers(frame) == [0, 1, 2], f"Spark reads all {COUNT} now: reconsider ADR 30"


@pytest.mark.full
def test_canary_new_frame_has_a_separate_read(spark: SparkSession, frame: DataFrame) -> None:
    """A new frame shares nothing. The same frame will not either when Spark fixes the defect."""
    assert numbers(frame.where("n < 3")) == [0, 1, 2]
    assert numbers(spark.read.format("canary_numbers").load()) == [*range(COUNT)]


@pytest.mark.full
def test_canary_session_without_push_down_refuses_readers_with_push_filters(
    spark: SparkSession, frame: DataFrame
) -> None:
    spark.conf.set(PUSHDOWN, "false")
    with pytest.raises(PySparkException, match="pushFilters"):
        spark.read.format("canary_numbers").load().where("n < 3").collect()


@pytest.mark.full
def test_canary_two_reads_of_one_frame_in_one_query_share_partitions(frame: DataFrame) -> None:
    low, high = frame.where("n < 3"), frame.where("n >= 8")
    fixed = "Spark plans each read separately now: reconsider ADR 30"
    assert set(numbers(low.union(high))) < {0, 1, 2, 8, 9}, fixed
    pairs = low.selectExpr("n as a").crossJoin(high.selectExpr("n as b"))
    assert pairs.count() < 6, fixed
