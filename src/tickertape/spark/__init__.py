"""Spark support: `register` makes the format "tickertape" known to a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tickertape.spark.datasource import TickertapeSource

__all__ = ["TickertapeSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("tickertape")` known to this session.

    Where the package is installed in Spark's Python, Spark finds it by itself; registering again is harmless.
    """
    spark.dataSource.register(TickertapeSource)
