"""Last message of each key, at the end or at any point of the log.

The functions run no job and do not inspect the columns of a frame, because declarative pipelines allow
neither.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from tickertape.base.bookmarks import AtBookmarks, AtTime, Bookmark, bookmark_text, parse_bookmark
from tickertape.base.errors import BadBookmark, UsageError

Key = str | Column
"""A column name, or an expression such as `f.get_json_object(f.decode("data", "utf-8"), "$.id")`."""

_VALUE = "tickertape_value"
_LIMIT = "tickertape_limit"


def last_values(messages: DataFrame, *keys: Key, as_of: str | datetime | None = None) -> DataFrame:
    """Return the last message of each key, as a frame with the columns of `messages`.

    Args:
        messages: A frame with the column `position` (name it in the schema of the source, an archive has it).
            A bookmark also needs `publisher` and `sequence`, a time also needs `timestamp`.
        keys: One or more columns. Messages in which all of them are null have no key and are left out.
        as_of: A bookmark, timestamp or `datetime` (naive means UTC), inclusive. None: up to the end.

    Raises:
        UsageError: No key is given.
        BadBookmark: `as_of` is invalid. A bookmark that is not in `messages` is an error when the frame is
            evaluated, because its position is not known before.
    """
    if not keys:
        raise UsageError(
            "Cannot find last values without a key. Pass the name of a column, or an expression."
        )
    seen = messages if as_of is None else _up_to(messages, as_of)
    columns = [f.col(key) if isinstance(key, str) else key for key in keys]
    keyed = seen.where(reduce(Column.__or__, (column.isNotNull() for column in columns)))
    last = keyed.groupBy(*columns).agg(f.max_by(f.struct("*"), "position").alias(_VALUE))
    return last.select(f"{_VALUE}.*")


def _up_to(messages: DataFrame, as_of: str | datetime) -> DataFrame:
    point = parse_bookmark(bookmark_text(as_of))
    if isinstance(point, AtTime):
        return messages.where(f.col("timestamp") <= f.timestamp_micros(f.lit(point.micros)))
    if isinstance(point, AtBookmarks) and point.bookmarks:
        return _up_to_message(messages, point.bookmarks)
    raise BadBookmark(f"Invalid as_of {as_of!r}. Use a bookmark, a timestamp or a datetime.")


def _up_to_message(messages: DataFrame, bookmarks: tuple[Bookmark, ...]) -> DataFrame:
    """Return the messages up to the last of the messages at `bookmarks`. At least one must exist."""
    texts = ", ".join(f"{some.publisher}|{some.sequence}|" for some in bookmarks)
    wanted = reduce(
        Column.__or__,
        (
            (f.col("publisher") == str(some.publisher)) & (f.col("sequence") == f.lit(some.sequence))
            for some in bookmarks
        ),
    )
    unknown = f.raise_error(f.lit(f"Unknown as_of: {texts} is not among these messages.")).cast("long")
    limit = messages.where(wanted).agg(f.coalesce(f.max("position"), unknown).alias(_LIMIT))
    reached = messages.crossJoin(f.broadcast(limit)).where(f.col("position") <= f.col(_LIMIT))
    return reached.drop(_LIMIT)
