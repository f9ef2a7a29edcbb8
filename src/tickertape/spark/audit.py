"""Audit of logs: opens them as frames, counts and compares their messages, and reports faults.

A log is a server or an archive, and its range is resolved to positions once. Messages stay on the executors:
sequences are reduced to runs of consecutive numbers, and two logs are compared by digests first. Lists are
bounded. Only examined messages are reported as in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from tickertape.base.errors import BadOption
from tickertape.base.names import is_pattern
from tickertape.client.limits import foreign_sequences_max
from tickertape.spark.archive.archive_frame import positions_of, read_archive
from tickertape.spark.common.schema import ALL_SCHEMA, LATE
from tickertape.spark.source.options import read_servers
from tickertape.spark.source.task_reader import connect

EVERY_TOPIC: Final = ".*"
_SERVER: Final = ("tcp://", "tls://", "unix://")


class OpenedLog(NamedTuple):
    """A range of a log."""

    name: str
    """Name as given by the user."""
    journal: str
    """Journal id, 32 hexadecimal digits. Positions of different journals are unrelated."""
    start: int
    end: int
    """The positions `start` (inclusive) to `end` (exclusive)."""
    topics: str
    """Topics in the log: a topic, a pattern, or empty for all."""
    messages: DataFrame
    """All columns of the source, with `position`. A server returns only the columns in use."""

    def within(self, start: int, end: int) -> OpenedLog:
        """Return the messages at the positions in `[start, end)`."""
        start, end = max(self.start, start), min(self.end, end)
        kept = self.messages.where((f.col("position") >= start) & (f.col("position") < end))
        return self._replace(start=start, end=max(start, end), messages=kept)


class Opening(NamedTuple):
    """Options for opening logs."""

    start: str
    """A start point or a range."""
    access: Mapping[str, str]
    """Options of servers, as in `servers.ACCESS`."""
    timeout_seconds: float


def open_log(spark: SparkSession, name: str, columns: Sequence[str], opening: Opening) -> OpenedLog:
    """Open the log `name`: comma-separated server URIs, or the location of an archive.

    Raises the errors of connecting and resolving, `ArchiveFailed`, `BadBookmark`, `BookmarkUnknown`.
    """
    if name.startswith(_SERVER):
        return _of_server(spark, name, columns, opening)
    archived = read_archive(spark, name)
    first, after = positions_of(archived, opening.start)
    whole = OpenedLog(
        name,
        archived.coverage.journal,
        first,
        after,
        archived.coverage.topics,
        archived.frame.withColumn(LATE, f.lit(False)).select(*columns),  # an archive does not know
    )
    return whole.within(first, after)


def _of_server(spark: SparkSession, servers: str, columns: Sequence[str], opening: Opening) -> OpenedLog:
    reached = {**opening.access, "servers": servers}
    client, _ = connect(read_servers(reached), opening.timeout_seconds)
    with client:
        found = client.locate(EVERY_TOPIC, opening.start)
    declared = {column.split()[0]: column for column in ALL_SCHEMA.split(", ")}
    frame = (
        spark.read.format("tickertape")
        .schema(", ".join(declared[column] for column in columns))
        .options(**reached)
        .option("topicPattern", EVERY_TOPIC)
        .option("startingBookmark", opening.start)
        .option("timeout", f"{opening.timeout_seconds}s")
        .load()
    )
    # The source plans separately, later: messages published meanwhile are left out.
    return OpenedLog(servers, found.journal, found.start, found.end, "", frame).within(found.start, found.end)


def of_topic(messages: DataFrame, topic: str) -> DataFrame:
    """Return the messages of `topic`, a name or a pattern."""
    return messages.where(f.col("topic").rlike(topic) if is_pattern(topic) else f.col("topic") == topic)


def in_common(here: OpenedLog, there: OpenedLog) -> tuple[OpenedLog, OpenedLog]:
    """Return both logs. If they are the same journal, both are cut to their common positions.

    Raises `BadOption` if they are the same journal and have no common positions.
    """
    if here.journal != there.journal:
        return here, there
    start, end = max(here.start, there.start), min(here.end, there.end)
    if start >= end and (here.start < here.end or there.start < there.end):
        raise BadOption(
            f"Cannot compare {here.name!r} and {there.name!r}: they have no common positions. The first has "
            f"positions {here.start} to {here.end} (exclusive), the second {there.start} to {there.end}. "
            "Use two logs that overlap."
        )
    return here.within(start, end), there.within(start, end)


# -- sequences ----------------------------------------------------------------------------------------


NUMBERED: Final = ("publisher", "sequence", "position", "timestamp", LATE)
"""Columns that an audit of sequences needs: string, long, long, timestamp, boolean."""

RUNS_SCHEMA: Final = (
    "publisher string, first long, last long, first_position long, last_position long, "
    "first_time long, last_time long, stored_late boolean"
)
"""A run: sequences `first` to `last`, consecutive, at ascending positions, and all late or none. Times are
microseconds since 1970 UTC."""

MISSING: Final = "missing"
DUPLICATE: Final = "duplicate"
ORDER: Final = "order"
RENUMBERED: Final = "renumbered"
WRONG: Final = (MISSING, DUPLICATE, ORDER)
"""The findings that are faults. A publisher that restarts its numbering at the clock has lost nothing."""

_NUMBERS_A_MICROSECOND: Final = 1000
"""A numbering starts at the nanoseconds of a microsecond clock, plus one (`store_checks.py`)."""
_CLOCK_BEHIND_MICROS: Final = 1_000_000
_CLOCK_AHEAD_MICROS: Final = 86_400_000_000
"""Assumed maximum difference between the clocks of publisher and server."""


def number_runs(messages: DataFrame) -> DataFrame:
    """Return the runs (`RUNS_SCHEMA`) of `messages`, which has the columns `NUMBERED`, in any order.

    Messages of a publisher that are adjacent in log order give fewer runs. Other orders give shorter runs and
    the same findings.
    """
    time = f.unix_micros("timestamp").alias("time")
    timed = messages.select("publisher", "sequence", "position", time, LATE)
    runs: DataFrame = timed.mapInArrow(_shortened, RUNS_SCHEMA)
    return runs


def publisher_table(runs: DataFrame) -> DataFrame:
    """Return a row per publisher.

    Columns: `first` and `last` sequence, `messages`, missing sequences and their runs, duplicate sequences,
    order breaks, and restarted numberings."""
    counted = runs.groupBy("publisher").agg(
        f.min("first").alias("first"),
        f.max("last").alias("last"),
        f.sum(f.expr("last - first + 1")).alias("messages"),
    )
    of = findings(runs).groupBy("publisher")
    found = of.agg(
        _total(MISSING, "count").alias("missing"),
        _total(MISSING).alias("missing_runs"),
        _total(DUPLICATE, "count").alias("duplicates"),
        _total(ORDER).alias("order_breaks"),
        _total(RENUMBERED).alias("renumbered"),
    )
    return counted.join(found, "publisher", "left").fillna(0)


def findings(runs: DataFrame) -> DataFrame:
    """Return the findings in `runs` (see `number_runs`), one per row.

    Columns: `publisher`, `kind`, the sequences `first` to `last`, their `count`, and the `position` of the
    finding.

    Values of `kind`:
        `missing`: Sequences without a message.
        `duplicate`: Sequences with more than one message. `count` is the number of surplus messages.
        `order`: The message `first` follows a higher sequence, or precedes a lower one. Late messages never
            count: they were stored elsewhere first, and filled a hole.
        `renumbered`: Skipped sequences, not a fault: the publisher continued with a new publish store, whose
            first sequence is usually the clock time in nanoseconds.
    """
    return _by_number(runs).unionByName(_by_position(runs))


def _by_number(runs: DataFrame) -> DataFrame:
    """Return missing and duplicate sequences: compare each run with all runs that start before it."""
    ordered = Window.partitionBy("publisher").orderBy("first", "first_position")
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    numbered = runs.withColumn("reached", f.max("last").over(before)).withColumn(
        "reached_time", f.max("last_time").over(before)
    )
    passed = numbered.where("first > reached + 1").select(
        "publisher",
        f.when(_begins_anew(), RENUMBERED).otherwise(MISSING).alias("kind"),
        f.expr("reached + 1").alias("first"),
        f.expr("first - 1").alias("last"),
        f.expr("first - reached - 1").alias("count"),
        f.col("first_position").alias("position"),
    )
    twice = numbered.where("first <= reached").select(
        "publisher",
        f.lit(DUPLICATE).alias("kind"),
        "first",
        f.least("last", "reached").alias("last"),
        f.expr("least(last, reached) - first + 1").alias("count"),
        f.col("first_position").alias("position"),
    )
    return passed.unionByName(twice)


def _begins_anew() -> Column:
    """Return whether a run starts a new numbering.

    True if its first sequence is the clock time between the previous run and itself, or if it starts above
    the sequences that another process may have used."""
    clock = (f.col("first") - 1) / _NUMBERS_A_MICROSECOND
    at_the_clock = (
        (f.col("first") % _NUMBERS_A_MICROSECOND == 1)
        & (clock >= f.col("reached_time") - _CLOCK_BEHIND_MICROS)
        & (clock <= f.col("first_time") + _CLOCK_AHEAD_MICROS)
    )
    return at_the_clock | (f.col("first") == f.col("reached") + foreign_sequences_max + 1)


def _by_position(runs: DataFrame) -> DataFrame:
    """Return the order breaks among messages that are not late.

    Duplicate runs at the same positions are only duplicates."""
    places = ["publisher", "first", "last", "first_position", "last_position"]
    ordered = Window.partitionBy("publisher").orderBy("first_position", "first")
    return (
        runs.where(~f.col(LATE))
        .select(*places)
        .distinct()
        .withColumn("before", f.lag("last").over(ordered))
        .withColumn("before_position", f.lag("last_position").over(ordered))
        .where("first < before or first_position < before_position")
        .select(
            "publisher",
            f.lit(ORDER).alias("kind"),
            "first",
            f.col("first").alias("last"),
            f.lit(1).cast("long").alias("count"),
            f.col("first_position").alias("position"),
        )
    )


def _total(kind: str, column: str | None = None) -> Column:
    """Return the sum of `column` over the findings of a kind, or the number of findings."""
    value = f.col(column) if column else f.lit(1).cast("long")
    return f.sum(f.when(f.col("kind") == kind, value).otherwise(0))


# -- on the executors ---------------------------------------------------------------------------------


def _shortened(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the runs of each record batch."""
    for batch in batches:
        if batch.num_rows:
            yield _runs_of(batch)


def _runs_of(batch: Any) -> Any:
    names = batch.column(0).dictionary_encode()
    publishers = names.indices.to_numpy(zero_copy_only=False)
    sequences, positions, times, late = (batch.column(i).to_numpy(zero_copy_only=False) for i in (1, 2, 3, 4))
    order = np.lexsort((sequences, positions, publishers))
    publishers, sequences = publishers[order], sequences[order]
    positions, times, late = positions[order], times[order], late[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (
        (publishers[1:] != publishers[:-1])
        | (sequences[1:] != sequences[:-1] + 1)
        | (positions[1:] <= positions[:-1])
        | (late[1:] != late[:-1])
    )
    first = begins.nonzero()[0]
    last = np.append(first[1:], len(order)) - 1
    columns = [
        names.dictionary.take(pa.array(publishers[first])),
        *(pa.array(some) for some in (sequences[first], sequences[last])),
        *(pa.array(some) for some in (positions[first], positions[last])),
        *(pa.array(some) for some in (times[first], times[last], late[first])),
    ]
    kinds = [pa.string(), *[pa.int64()] * 6, pa.bool_()]
    fields = [part.strip().split()[0] for part in RUNS_SCHEMA.split(",")]
    schema = pa.schema(list(zip(fields, kinds, strict=True)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# -- audit --------------------------------------------------------------------------------------------


COMPARED: Final = (
    "publisher", "sequence", "topic", "data", "correlation_id", "key", "expiration_ms"
)  # fmt: skip
"""The compared columns: those set by the publisher. Position and time differ from server to server."""

MISSING_THERE: Final = "missing there"
MISSING_HERE: Final = "missing here"
DIFFERENT: Final = "different"
OTHER_COUNT: Final = "other count"

STRETCH_BITS: Final = 12
"""Sequences of a publisher per stretch: 4096."""

_KEY: Final = ("publisher", "sequence")
_PARTS: Final = ("topic", "data", "correlation_id", "key", "expiration_ms")
_HALF_BITS: Final = 32


def differing_stretches(here: DataFrame, there: DataFrame) -> DataFrame:
    """Return the stretches (`publisher`, `stretch`) whose messages differ."""
    return (
        _digests(here)
        .join(_digests(there).withColumnRenamed("digest", "other"), ["publisher", "stretch"], "full")
        .where(~f.col("digest").eqNullSafe(f.col("other")))
        .select("publisher", "stretch")
    )


def differences(here: DataFrame, there: DataFrame, stretches: DataFrame) -> DataFrame:
    """Return the differences between two logs, a row per sequence of a publisher.

    Columns: `publisher`, `sequence`, `kind`, `what` (for `different`, the differing columns), and the hashes
    of the bodies `here` and `there`.

    Args:
        here: Messages of one log, with the columns `COMPARED`.
        there: Messages of the other log.
        stretches: Blocks of sequences to compare, from `differing_stretches`. Others are skipped.

    Values of `kind`: `missing here`, `missing there`, `different`, or `other count` (the messages are equal,
    but the logs have different numbers of duplicates).
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
    """Return a digest per stretch: number of messages and sums of their hashes, independent of the order."""
    hashed = messages.select("publisher", _stretch().alias("stretch"), _message_hash().alias("hash"))
    # Two sums that cannot overflow, plus the count: equal messages would cancel out in an xor.
    low = f.col("hash").bitwiseAND(f.lit((1 << _HALF_BITS) - 1))
    high = f.shiftrightunsigned("hash", _HALF_BITS)
    digest = f.struct(f.count("*").alias("count"), f.sum(low).alias("low"), f.sum(high).alias("high"))
    return hashed.groupBy("publisher", "stretch").agg(digest.alias("digest"))


def _numbers(messages: DataFrame, stretches: DataFrame, name: str) -> DataFrame:
    """Return one row per sequence in `stretches`, with the struct `name` of its messages."""
    chosen = messages.withColumn("stretch", _stretch()).join(
        f.broadcast(stretches), ["publisher", "stretch"], "left_semi"
    )
    parts = [f.min(f.xxhash64(part) if part == "data" else f.col(part)).alias(part) for part in _PARTS]
    # Equal messages with the same sequence count as one.
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
    """Audited part of a log: the positions in `[start, end)`."""

    name: str
    journal: str
    start: int
    end: int
    topics: str


class EqualityCheck(msgspec.Struct, frozen=True):
    """Differences between two logs."""

    counts: dict[str, int]
    """Number of sequences per kind of difference."""
    differences: list[Row]
    """The first differences, by publisher and sequence."""
    compared: list[LogRange]


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of an audit."""

    logs: list[LogRange]
    topic: str | None
    gaps_judged: bool
    """False for an archive of some topics: missing sequences may belong to other topics."""
    totals: Row
    publishers: list[Row]
    """Publishers, the ones with faults first."""
    findings: list[Row]
    equality: EqualityCheck | None

    publisher_columns: ClassVar = (
        "publisher", "first", "last", "messages", "missing", "duplicates", "order_breaks", "renumbered",
    )  # fmt: skip
    finding_columns: ClassVar = ("publisher", "kind", "first", "last", "count", "position")

    @property
    def in_order(self) -> bool:
        """Whether the audit found no missing, duplicate, misordered or different messages."""
        faults = sum(self.totals[name] for name in ("missing", "duplicates", "order_breaks"))
        return not faults and (self.equality is None or not sum(self.equality.counts.values()))

    @property
    def verdict(self) -> str:
        """The result in one line."""
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
    """Audit the log `name` from `start` on, and compare it with the log `against`.

    Args:
        spark: The session.
        name: See `open_log`.
        against: Another log to compare with, or None.
        start: A start point or a range.
        topic: Audit only publishers of this topic or pattern.
        show: Maximum number of publishers, findings and differences to list.
        access: Files for connecting to servers, as options of the source (`servers.ACCESS`).
        timeout_seconds: Timeout for connecting and for each answer.

    Raises the errors of `open_log`, and `BadOption` for two logs that cannot be compared.
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
