"""Owns the way into Spark: `register`.

Must never start a Spark session, nor change one beyond the name it registers.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from tickertape.spark.datasource import TickertapeSource

__all__ = ["TickertapeSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("tickertape")` known to this session.

    Where the package is installed in Spark's Python, Spark finds it by itself; registering again is harmless.
    """
    spark.dataSource.register(TickertapeSource)
