"""Spark support: `register` adds the format "tickertape" to a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tickertape.spark.datasource import TickertapeSource

__all__ = ["TickertapeSource", "register"]


def register(spark: SparkSession) -> None:
    """Register `spark.read.format("tickertape")` in this session.

    If the package is installed in Spark's Python, Spark finds the format itself. Registering again is
    harmless.
    """
    spark.dataSource.register(TickertapeSource)
