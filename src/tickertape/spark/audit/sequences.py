"""Audit sequence numbers: find missing, duplicate and out-of-order messages of each publisher.

Messages stay on the executors. They are reduced to runs of consecutive numbers, and everything else is
computed from the runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from tickertape.client.limits import foreign_sequences_max

MESSAGES: Final = ("publisher", "sequence", "position", "timestamp")
"""The columns that an audit of numbers needs: string, long, long, timestamp."""

RUNS_SCHEMA: Final = (
    "publisher string, first long, last long, first_position long, last_position long, "
    "first_time long, last_time long"
)
"""A run: numbers `first` to `last`, one more with each message, at rising positions. Times are microseconds
since 1970 UTC."""

MISSING: Final = "missing"
DUPLICATE: Final = "duplicate"
ORDER: Final = "order"
RENUMBERED: Final = "renumbered"
WRONG: Final = (MISSING, DUPLICATE, ORDER)
"""The kinds of findings that are faults. Who begins to number anew, at the clock, has lost nothing."""

_NUMBERS_A_MICROSECOND: Final = 1000
"""A numbering begins at the nanoseconds of a microsecond clock, plus one (client/publishing/sequences.py)."""
_CLOCK_BEHIND_MICROS: Final = 1_000_000
_CLOCK_AHEAD_MICROS: Final = 86_400_000_000
"""Assumed difference between the clocks of publisher and server."""


def number_runs(messages: DataFrame) -> DataFrame:
    """Runs (`RUNS_SCHEMA`) of `messages`, which has the columns `MESSAGES`, in any order.

    The more of a publisher's messages lie together in the order of the log, the fewer runs there are; with
    any other order the runs are shorter and the findings the same.
    """
    timed = messages.select("publisher", "sequence", "position", f.unix_micros("timestamp").alias("time"))
    runs: DataFrame = timed.mapInArrow(_shortened, RUNS_SCHEMA)
    return runs


def publisher_table(runs: DataFrame) -> DataFrame:
    """Return a row for each publisher: `first` and `last` number, `messages`, how many numbers are missing in
    how many runs, or are there more than once, and how often the order breaks or a numbering begins anew."""
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
    """Return the findings in `runs`, one a row: `publisher`, `kind`, the numbers `first` to `last`, their
    `count`, and the `position` where the finding is.

    `missing`: numbers that no message has. `duplicate`: numbers that more messages have than one; `count` is
    how many messages are too many. `order`: the message with the number `first` stands behind one with a
    higher number, or before one with a lower number. `renumbered`: numbers passed over because a numbering
    began at the clock, no fault.
    """
    return _by_number(runs).unionByName(_by_position(runs))


def _by_number(runs: DataFrame) -> DataFrame:
    """Missing and duplicate numbers: what lies between a run and all that begin before it."""
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
    """Return whether the run's first number is the clock between the run before and itself, or lies behind
    what another process may have given."""
    clock = (f.col("first") - 1) / _NUMBERS_A_MICROSECOND
    at_the_clock = (
        (f.col("first") % _NUMBERS_A_MICROSECOND == 1)
        & (clock >= f.col("reached_time") - _CLOCK_BEHIND_MICROS)
        & (clock <= f.col("first_time") + _CLOCK_AHEAD_MICROS)
    )
    return at_the_clock | (f.col("first") == f.col("reached") + foreign_sequences_max + 1)


def _by_position(runs: DataFrame) -> DataFrame:
    """Return where the order breaks. Runs that are there twice at the same places are duplicates, nothing
    more."""
    places = ["publisher", "first", "last", "first_position", "last_position"]
    ordered = Window.partitionBy("publisher").orderBy("first_position", "first")
    return (
        runs.select(*places)
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
    """Return the sum of `column` over the findings of a kind, or their number."""
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
    sequences, positions, times = (batch.column(i).to_numpy(zero_copy_only=False) for i in (1, 2, 3))
    order = np.lexsort((sequences, positions, publishers))
    publishers, sequences = publishers[order], sequences[order]
    positions, times = positions[order], times[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (
        (publishers[1:] != publishers[:-1])
        | (sequences[1:] != sequences[:-1] + 1)
        | (positions[1:] <= positions[:-1])
    )
    first = begins.nonzero()[0]
    last = np.append(first[1:], len(order)) - 1
    columns = [
        names.dictionary.take(pa.array(publishers[first])),
        *(pa.array(some) for some in (sequences[first], sequences[last])),
        *(pa.array(some) for some in (positions[first], positions[last])),
        *(pa.array(some) for some in (times[first], times[last])),
    ]
    kinds = [pa.string(), *[pa.int64()] * 6]
    fields = [part.strip().split()[0] for part in RUNS_SCHEMA.split(",")]
    schema = pa.schema(list(zip(fields, kinds, strict=True)))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
