"""Package in which Spark finds `DefaultSource`, so that the format needs no `register` call."""

from __future__ import annotations

from tickertape.spark.datasource import TickertapeSource as DefaultSource

__all__ = ["DefaultSource"]
