"""Run an audit: read the logs, count, list the findings and decide whether all is in order.

Lists are bounded. Only what was examined is reported as in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tickertape.spark.audit.compare import (
    DIFFERENT,
    MISSING_HERE,
    MISSING_THERE,
    OTHER_COUNT,
    differences,
    differing_stretches,
)
from tickertape.spark.audit.compare import MESSAGES as COMPARED
from tickertape.spark.audit.logs import OpenedLog, Opening, in_common, of_topic, open_log
from tickertape.spark.audit.sequences import MESSAGES as NUMBERED
from tickertape.spark.audit.sequences import RENUMBERED, findings, number_runs, publisher_table

Row = dict[str, Any]


class LogRange(msgspec.Struct, frozen=True):
    """Audited part of a log: positions `start` to below `end`."""

    name: str
    journal: str
    start: int
    end: int
    topics: str


class EqualityCheck(msgspec.Struct, frozen=True):
    """How two logs differ."""

    counts: dict[str, int]
    """By kind of difference, how many numbers of publishers it concerns."""
    differences: list[Row]
    """The first of them, by publisher and sequence."""
    compared: list[LogRange]


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of an audit."""

    logs: list[LogRange]
    topic: str | None
    gaps_judged: bool
    """False for an archive of some topics: numbers that are not there may belong to others."""
    totals: Row
    publishers: list[Row]
    """Those with faults first."""
    findings: list[Row]
    equality: EqualityCheck | None

    publisher_columns: ClassVar = (
        "publisher", "first", "last", "messages", "missing", "duplicates", "order_breaks", "renumbered",
    )  # fmt: skip
    finding_columns: ClassVar = ("publisher", "kind", "first", "last", "count", "position")

    @property
    def in_order(self) -> bool:
        """Whether nothing is missing, twice, out of order, or different."""
        faults = sum(self.totals[name] for name in ("missing", "duplicates", "order_breaks"))
        return not faults and (self.equality is None or not sum(self.equality.counts.values()))

    @property
    def verdict(self) -> str:
        """One line that says it."""
        totals = self.totals
        parts = [f"{totals['messages']:,} messages of {totals['publishers']:,} publishers"]
        parts += [
            f"{totals['missing']:,} missing" if self.gaps_judged else "gaps not judged",
            f"{totals['duplicates']:,} twice",
            f"{totals['order_breaks']:,} out of order",
        ]
        if self.equality is not None:
            found = [f"{count:,} {kind}" for kind, count in self.equality.counts.items() if count]
            parts.append(", ".join(found) or "both logs are equal")
        return f"{'in order' if self.in_order else 'NOT IN ORDER'}: {', '.join(parts)}"


def examine(
    spark: SparkSession,
    name: str,
    *,
    against: str | None = None,
    start: str = "0",
    topic: str | None = None,
    show: int = 20,
    access: Mapping[str, str] | None = None,
    timeout_seconds: float = 30.0,
) -> AuditReport:
    """Audit the log called `name` from `start` on, and compare it with the one called `against`.

    `show`: most publishers, findings and differences to list. `access`: the files with which
    servers are reached, as options of the source (`servers.ACCESS`). Raises what `open_log` raises,
    and `BadOption` for two logs that cannot be compared.
    """
    opening = Opening(start, access or {}, timeout_seconds)
    here = open_log(spark, name, (*NUMBERED, "topic"), opening)
    judged = not here.topics
    runs = number_runs(here.messages)
    if topic is not None:
        mine = of_topic(here.messages, topic).select("publisher").distinct()
        runs = runs.join(f.broadcast(mine), "publisher", "left_semi")
    runs = runs.persist()
    try:
        table = publisher_table(runs)
        found = findings(runs).where(f.col("kind") != RENUMBERED)
        if not judged:
            table = table.withColumn("missing", f.lit(0)).withColumn("missing_runs", f.lit(0))
            found = found.where("kind != 'missing'")
        totals = _totals(table)
        faults = f.expr("missing + duplicates + order_breaks > 0")
        publishers = _listed(table.orderBy(f.desc(faults), "publisher"), show)
        listed = _listed(found.orderBy("publisher", "position", "first"), show)
    finally:
        runs.unpersist()
    return AuditReport(
        logs=[_range(here)],
        topic=topic,
        gaps_judged=judged,
        totals=totals,
        publishers=publishers,
        findings=listed,
        equality=None if against is None else _compared(spark, (name, against), opening, topic, show),
    )


def _compared(
    spark: SparkSession,
    names: tuple[str, str],
    opening: Opening,
    topic: str | None,
    show: int,
) -> EqualityCheck:
    columns = (*COMPARED, "position")
    both = [open_log(spark, name, columns, opening) for name in names]
    here, there = in_common(*both)
    left, right = here.messages, there.messages
    for limit in dict.fromkeys((topic, here.topics, there.topics)):
        if limit:
            left, right = of_topic(left, limit), of_topic(right, limit)
    stretches = differing_stretches(left, right).persist()
    try:
        counts = dict.fromkeys((MISSING_HERE, MISSING_THERE, DIFFERENT, OTHER_COUNT), 0)
        listed: list[Row] = []
        if not stretches.isEmpty():
            found = differences(left, right, stretches).persist()
            counts |= {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
            listed = _listed(found.orderBy("publisher", "sequence"), show)
            found.unpersist()
    finally:
        stretches.unpersist()
    return EqualityCheck(counts, listed, [_range(here), _range(there)])


def _totals(table: DataFrame) -> Row:
    sums = ("messages", "missing", "missing_runs", "duplicates", "order_breaks", "renumbered")
    row = table.agg(
        f.count("*").alias("publishers"),
        *(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in sums),
    ).first()
    assert row is not None
    return row.asDict()


def _listed(frame: DataFrame, show: int) -> list[Row]:
    return [row.asDict() for row in frame.limit(show).collect()]


def _range(log: OpenedLog) -> LogRange:
    return LogRange(log.name, log.journal, log.start, log.end, log.topics)
