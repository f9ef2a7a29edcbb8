"""Compare two logs: find the messages that only one has, or that differ.

Messages stay on the executors. Ranges of sequences are compared by digest first, and only ranges that differ
are compared message by message.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

MESSAGES: Final = (
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
