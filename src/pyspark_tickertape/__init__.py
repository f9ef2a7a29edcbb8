"""Owns the name by which Spark finds our source without `register`: `DefaultSource` in a `pyspark_*` package.

Must never hold anything else.
"""

from __future__ import annotations

from tickertape.spark.datasource import TickertapeSource as DefaultSource

__all__ = ["DefaultSource"]
