"""Run an audit: read the logs, count, list the findings and decide whether all is in order.

Lists are bounded. Only what was examined is reported as in order. Two logs are compared on the executors:
ranges of sequences by digest first, and only ranges that differ message by message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from tickertape.spark.audit.logs import OpenedLog, Opening, in_common, of_topic, open_log
from tickertape.spark.audit.sequences import MESSAGES as NUMBERED
from tickertape.spark.audit.sequences import RENUMBERED, findings, number_runs, publisher_table

COMPARED: Final = (
    "publisher", "sequence", "topic", "data", "correlation_id", "key", "expiration_ms"
)  # fmt: skip
"""The columns that are compared, those of a message that its publisher gave. Where and when a server stored
it is not the publisher's, and differs from server to server."""

MISSING_THERE: Final = "missing there"
MISSING_HERE: Final = "missing here"
DIFFERENT: Final = "different"
OTHER_COUNT: Final = "other count"

STRETCH_BITS: Final = 12
"""Numbers of a publisher in a stretch: 4096."""

_KEY: Final = ("publisher", "sequence")
_PARTS: Final = ("topic", "data", "correlation_id", "key", "expiration_ms")
_HALF_BITS: Final = 32


def differing_stretches(here: DataFrame, there: DataFrame) -> DataFrame:
    """Return the stretches, `publisher` and `stretch`, whose messages are not the same here and there."""
    return (
        _digests(here)
        .join(_digests(there).withColumnRenamed("digest", "other"), ["publisher", "stretch"], "full")
        .where(~f.col("digest").eqNullSafe(f.col("other")))
        .select("publisher", "stretch")
    )


def differences(here: DataFrame, there: DataFrame, stretches: DataFrame) -> DataFrame:
    """Return the differences in `stretches`, a row for each number of a publisher: `publisher`, `sequence`,
    `kind`, for `different` in `what` the columns that differ, and the hashes of the bodies in `here` and
    `there`.

    `other count`: the same messages, but one of the logs has them more often.
    """
    left, right = _numbers(here, stretches, "left"), _numbers(there, stretches, "right")
    joined = left.join(right, list(_KEY), "full")
    kind = (
        f.when(f.col("right").isNull(), MISSING_THERE)
        .when(f.col("left").isNull(), MISSING_HERE)
        .when(f.col("left.digest") == f.col("right.digest"), OTHER_COUNT)
        .otherwise(DIFFERENT)
    )
    differing = [f.when(~f.col(f"left.{part}").eqNullSafe(f.col(f"right.{part}")), part) for part in _PARTS]
    both = f.col("left").isNotNull() & f.col("right").isNotNull()
    return joined.where(~f.col("left").eqNullSafe(f.col("right"))).select(
        *_KEY,
        kind.alias("kind"),
        f.when(both, f.concat_ws(", ", *differing)).otherwise("").alias("what"),
        f.lower(f.hex(f.col("left.data"))).alias("here"),
        f.lower(f.hex(f.col("right.data"))).alias("there"),
    )


def _digests(messages: DataFrame) -> DataFrame:
    """Return a digest of each stretch: of its messages, and how many there are, in any order."""
    hashed = messages.select("publisher", _stretch().alias("stretch"), _message_hash().alias("hash"))
    # Two sums that cannot overflow, and with them the count: equal messages would cancel out in an xor.
    low = f.col("hash").bitwiseAND(f.lit((1 << _HALF_BITS) - 1))
    high = f.shiftrightunsigned("hash", _HALF_BITS)
    digest = f.struct(f.count("*").alias("count"), f.sum(low).alias("low"), f.sum(high).alias("high"))
    return hashed.groupBy("publisher", "stretch").agg(digest.alias("digest"))


def _numbers(messages: DataFrame, stretches: DataFrame, name: str) -> DataFrame:
    """Return one row for each number in `stretches`, what there is of it as the struct `name`."""
    chosen = messages.withColumn("stretch", _stretch()).join(
        f.broadcast(stretches), ["publisher", "stretch"], "left_semi"
    )
    parts = [f.min(f.xxhash64(part) if part == "data" else f.col(part)).alias(part) for part in _PARTS]
    # Of several messages of one number: equal ones are one.
    digest = f.sort_array(f.collect_set(_message_hash())).alias("digest")
    return chosen.groupBy(*_KEY).agg(f.struct(f.count("*").alias("count"), digest, *parts).alias(name))


def _stretch() -> Column:
    return f.shiftrightunsigned("sequence", STRETCH_BITS)


def _message_hash() -> Column:
    """Return a 64-bit hash of messages. The hash skips nulls, so they are hashed as flags."""
    nulls = [f.col(part).isNull() for part in _PARTS]
    return f.xxhash64("sequence", *nulls, *_PARTS)


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
