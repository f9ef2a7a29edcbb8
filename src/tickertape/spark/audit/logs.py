"""Open the logs of an audit: a server's log or an archive, as a Spark frame with its position range.

The range is resolved to positions once, and every frame uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tickertape.base.errors import BadOption
from tickertape.base.names import is_pattern
from tickertape.spark.archive.frame import positions_of, read_archive
from tickertape.spark.common.schema import ALL_SCHEMA
from tickertape.spark.source.options import read_servers
from tickertape.spark.source.task_reader import connect

EVERY_TOPIC: Final = ".*"
_SERVER: Final = ("tcp://", "tls://", "unix://")


class OpenedLog(NamedTuple):
    """A range of a log."""

    name: str
    """As the user wrote it."""
    journal: str
    """Which journal it is, 32 hexadecimal digits: positions of another one mean something else."""
    start: int
    end: int
    """The positions `start` (first) to `end` (first not included)."""
    topics: str
    """Recorded topics of the log: a topic, a pattern, or empty for all."""
    messages: DataFrame
    """All columns of the source, with `position`; a server returns only those that are used."""

    def within(self, start: int, end: int) -> OpenedLog:
        """Return the messages at the positions `start` to `end` (not included)."""
        start, end = max(self.start, start), min(self.end, end)
        kept = self.messages.where((f.col("position") >= start) & (f.col("position") < end))
        return self._replace(start=start, end=max(start, end), messages=kept)


class Opening(NamedTuple):
    """How logs are opened."""

    start: str
    """From where on: a start point, or a range."""
    access: Mapping[str, str]
    """Of servers: the options in `servers.ACCESS`."""
    timeout_seconds: float


def open_log(spark: SparkSession, name: str, columns: Sequence[str], opening: Opening) -> OpenedLog:
    """Return the log called `name`, servers' URIs with commas between or where an archive is.

    Raises what connecting and resolving raise, `ArchiveFailed`, `BadBookmark`, `BookmarkUnknown`.
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
        archived.frame.select(*columns),
    )
    return whole.within(first, after)


def _of_server(spark: SparkSession, servers: str, columns: Sequence[str], opening: Opening) -> OpenedLog:
    reached = {**opening.access, "servers": servers}
    client, _ = connect(read_servers(reached), opening.timeout_seconds)
    with client:
        journal, first, after = client.resolve(EVERY_TOPIC, opening.start)
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
    # The source plans for itself, later: what came meanwhile is left out.
    return OpenedLog(servers, journal, first, after, "", frame).within(first, after)


def of_topic(messages: DataFrame, topic: str) -> DataFrame:
    """Return the messages to `topic`, a name or a pattern."""
    return messages.where(f.col("topic").rlike(topic) if is_pattern(topic) else f.col("topic") == topic)


def in_common(here: OpenedLog, there: OpenedLog) -> tuple[OpenedLog, OpenedLog]:
    """Both logs, cut to the positions that both have when they are one journal; else as they are.

    Raises `BadOption` when they are one journal and have no position in common.
    """
    if here.journal != there.journal:
        return here, there
    start, end = max(here.start, there.start), min(here.end, there.end)
    if start >= end and (here.start < here.end or there.start < there.end):
        raise BadOption(
            f"{here.name} has the positions {here.start} to below {here.end} and {there.name} "
            f"{there.start} to below {there.end} of one journal: they have nothing in common to compare"
        )
    return here.within(start, end), there.within(start, end)
