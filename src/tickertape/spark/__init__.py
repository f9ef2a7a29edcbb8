"""Spark support: `register` adds the format "tickertape" to a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tickertape.spark.datasource import TickertapeSource

__all__ = ["TickertapeSource", "register"]


def register(spark: SparkSession) -> None:
    """Register the format `"tickertape"` in a session, for reads and writes of tables and streams.

    The call is not necessary if the package is installed in Spark's Python, because Spark then finds the
    format itself. A second call has no effect.

    Args:
        spark: The session.
    """
    spark.dataSource.register(TickertapeSource)
