"""Spark archive frame: an archive as a `DataFrame` without Delta JARs, and bookmark lookup in it.

It reads the files listed in the table's log, and never writes to the table.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from tickertape.archive.location import ArchiveLocation, location_of, no_table
from tickertape.archive.schema import Coverage, coverage_of, sequence_bits
from tickertape.base.bookmarks import (
    AtBookmarks,
    AtTime,
    EndPoint,
    Epoch,
    FromNow,
    Range,
    StartPoint,
    parse_bookmark,
)
from tickertape.base.errors import ArchiveFailed, BookmarkUnknown
from tickertape.base.text_format import said

FILE_SCHEMA: Final = (
    "position long, publisher string, sequence long, timestamp timestamp, data binary, "
    "expiration_ms long, correlation_id string, key string"
)
"""Columns of a file. Only the table's log has the topic."""

_PATTERN: Final = re.compile(r"[][{}*?\\^]")
"""Characters with a meaning in a path pattern, and their escaped form."""
_ESCAPED: Final = r"\\\g<0>"


class ArchiveFrame(NamedTuple):
    """An archive at the current version of its log."""

    frame: DataFrame
    """The columns of `FILE_SCHEMA`, and `topic`."""
    coverage: Coverage


def read_archive(spark: SparkSession, uri: str) -> ArchiveFrame:
    """Return the archive at `uri`, a local path or a URI that both Delta and this Spark can read.

    Raises `ArchiveFailed` if the archive cannot be read, `BadOption`.
    """
    place = location_of(uri)
    try:
        table = DeltaTable(place.location)
    except TableNotFoundError as error:
        raise no_table(place) from error
    except (DeltaError, OSError) as error:
        raise ArchiveFailed(
            f"Cannot read archive {uri!r}: {said(error).rstrip('.')}. Check the location and its access."
        ) from error
    coverage = coverage_of(table)
    topics = _topics_of_files(table)
    reader = spark.read.schema(FILE_SCHEMA)
    if not topics:
        empty = spark.createDataFrame([], FILE_SCHEMA)
        return ArchiveFrame(empty.withColumn("topic", f.lit("")), coverage)
    files = reader.parquet(*_paths(table, place)).withColumn("file", f.col("_metadata.file_name"))
    names = f.broadcast(spark.createDataFrame(topics, "file string, topic string"))
    return ArchiveFrame(files.join(names, "file").drop("file"), coverage)


def positions_of(archived: ArchiveFrame, start: str) -> tuple[int, int]:
    """Return the positions (start inclusive, end exclusive) of a start point or range in the archive.

    Raises `BadBookmark` for an invalid one, `BookmarkUnknown` for a bookmark that is not in the archive.
    """
    coverage = archived.coverage
    point = parse_bookmark(start)
    if not isinstance(point, Range):
        point = Range(begin=point, begin_inclusive=False, end=AtTime(2**62), end_inclusive=True)
    first = _place(archived, point.begin, later=not point.begin_inclusive, at_end=False)
    after = _place(archived, point.end, later=point.end_inclusive, at_end=True)
    return max(first, coverage.begin), max(first, coverage.begin, min(after, coverage.end))


def _place(archived: ArchiveFrame, point: StartPoint | EndPoint, *, later: bool, at_end: bool) -> int:
    """Return the position of the message at `point`, or the next position if `later`."""
    frame, coverage = archived
    if isinstance(point, Epoch):
        return coverage.begin
    if isinstance(point, FromNow):
        return coverage.end
    if isinstance(point, AtTime):
        moment = f.timestamp_micros(f.lit(point.micros))
        found = _one(frame.where(_behind(f.col("timestamp"), moment, later)), f.min("position"))
        return coverage.end if found is None else int(found)
    if not isinstance(point, AtBookmarks):
        raise BookmarkUnknown(
            f"Cannot start at {str(point)!r}: an archive does not support this kind of start point. "
            "Use a bookmark, a timestamp, epoch or a range."
        )
    wanted = [
        (f.col("publisher") == str(bookmark.publisher))
        & (f.col("sequence") == sequence_bits(bookmark.sequence))
        for bookmark in point.bookmarks
    ]
    condition = f.lit(False)
    for some in wanted:
        condition |= some
    extreme = f.max("position") if at_end else f.min("position")
    found = _one(frame.where(condition), extreme)
    if found is None:
        raise BookmarkUnknown(
            f"Cannot find the bookmark {str(point)!r} in the archive, which has {coverage}. Use another "
            "bookmark, a timestamp or epoch."
        )
    return int(found) + (1 if later else 0)


def _behind(column: Column, value: Column, strictly: bool) -> Column:
    return column > value if strictly else column >= value


def _one(frame: DataFrame, value: Column) -> Any:
    row = frame.agg(value.alias("value")).first()
    assert row is not None
    return row["value"]


def _paths(table: DeltaTable, place: ArchiveLocation) -> list[str]:
    """Return the table's files for Spark, which does not decode paths and treats them as patterns."""
    if not place.is_directory:
        return table.file_uris()
    paths = pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist()
    return [f"file://{_PATTERN.sub(_ESCAPED, place.path(unquote(path)))}" for path in paths]


def _topics_of_files(table: DeltaTable) -> list[tuple[str, str]]:
    """Return the names of the table's files, each with its topic."""
    actions = pa.table(table.get_add_actions(flatten=True))
    paths = actions.column("path").to_pylist()
    topics = actions.column("partition.topic").to_pylist()
    return [(path.rsplit("/", 1)[-1], topic) for path, topic in zip(paths, topics, strict=True)]
