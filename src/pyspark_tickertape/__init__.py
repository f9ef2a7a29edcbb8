"""Spark finds `DefaultSource` in this package, so the format needs no `register` call."""

from __future__ import annotations

from tickertape.spark.datasource import TickertapeSource as DefaultSource

__all__ = ["DefaultSource"]
