"""Archive job: a streaming query whose tasks write files and whose driver commits them.

The archive, not the checkpoint, decides where a query starts. Each batch is committed together with its end
position, on top of the table version in which the archive ended at its start position. After any crash,
uncommitted messages are written again, and committed ones are not.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qsl

import msgspec

from tickertape.archive.archive_writer import ArchiveWriter
from tickertape.archive.compact import Compacted, compact
from tickertape.archive.limits import batch_messages_default
from tickertape.archive.location import ArchiveLocation
from tickertape.archive.parquet_writer import Added
from tickertape.archive.reader import ArchiveReader as Stored
from tickertape.archive.schema import Coverage
from tickertape.base.errors import (
    ArchiveFailed,
    BadOption,
    BookmarkExpired,
    BookmarkUnknown,
    TickertapeError,
)
from tickertape.base.names import is_pattern
from tickertape.spark.archive.source import FORMAT, ORDER, ArchiveScanOptions, ArchiveSource, gap, shortened
from tickertape.spark.source.task_reader import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL_TOPICS: Final = ".*"
_FILES: Final = msgspec.json.Decoder(list[Added])
_LOOK_SECONDS: Final = 0.5
"""How often a query that goes on is looked at."""


class Stop(Protocol):
    """What says that archiving is to end: a `threading.Event`, for example."""

    def is_set(self) -> bool:
        """Return whether it is."""


class ArchiveJobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an archive job."""

    servers: tuple[str, ...]
    """URIs, or texts of `server_text` (spark/common/servers.py): all are reached with the same files."""
    place: ArchiveLocation
    topics: str = ""
    """A name or a pattern; empty: all that the log records."""
    directory: str | None = None
    """Where tasks find the data directory of the log; None: they ask the server."""
    batch_messages_max: int = batch_messages_default
    """Messages that one commit adds at most."""
    timeout_seconds: float = 30.0
    """For connecting and for each answer of the server."""

    @property
    def pattern(self) -> str:
        """The topics as the server takes them."""
        return self.topics or ALL_TOPICS


class ArchiveJobReport(msgspec.Struct):
    """Report of a run."""

    begin: int
    """Where the archive begins, and, below, where it ended before and ends now."""
    before: int
    end: int
    rows: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0
    compacted: Compacted = msgspec.field(default_factory=Compacted)


OnCommit = Callable[[ArchiveJobReport], object]
"""Called after each commit."""


class PreparedJob(msgspec.Struct):
    """An archive that fits a log, before Spark is started."""

    archive: ArchiveWriter
    log_end: int
    """Where the log ended."""

    @property
    def behind(self) -> int:
        """Positions that are not archived."""
        return self.log_end - self.archive.coverage.end


def prepare(wanted: ArchiveJobOptions) -> PreparedJob:
    """Open the log and the archive, and create the archive if there is none: it starts with the first message
    in the log.

    Raises `Disconnected`, `TopicNotRecorded`, `WrongJournal` (the archive is of another log), `ArchiveFailed`
    (it is none, it is of other topics, what comes next in the log is gone, or the log has other messages than
    those that were archived).
    """
    client, _ = connect(wanted.servers, wanted.timeout_seconds)
    with client:
        journal, first, end = client.resolve(wanted.pattern, "0", timeout=wanted.timeout_seconds)
    place = wanted.place
    if ArchiveWriter.exists(place):
        archive = ArchiveWriter(place, journal)
    else:
        archive = ArchiveWriter.create(place, journal, first, wanted.topics)
    coverage = archive.coverage
    if coverage.topics != wanted.topics:
        raise ArchiveFailed(
            f"{place.location} is the archive of {_named(coverage.topics)}, not of {_named(wanted.topics)}: "
            "ask for the same, or name another place"
        )
    if coverage.end < first:
        raise gap(place, coverage.end, first)
    if coverage.end > end:
        raise shortened(place, coverage.end, end)
    _check_last(wanted, coverage)
    return PreparedJob(archive, end)


def _check_last(wanted: ArchiveJobOptions, coverage: Coverage) -> None:
    """The last message that was archived must be where it was: a log that has lost its end gives the
    positions again, and may have grown beyond the archive since. Raises `ArchiveFailed`."""
    last = Stored(wanted.place.location, coverage.journal, wanted.place.options).last_before(coverage.end)
    if last is None:
        return
    position, bookmark, _ = last
    client, _ = connect(wanted.servers, wanted.timeout_seconds)
    with client:
        try:
            _, found, _ = client.resolve(
                wanted.pattern, f"[{bookmark}:{bookmark}]", timeout=wanted.timeout_seconds
            )
        except BookmarkExpired:
            return  # the log has it no more: there is nothing to compare
        except BookmarkUnknown:
            found = None
    if found != position:
        what = "does not have it" if found is None else f"has it at {found}"
        raise ArchiveFailed(
            f"{wanted.place.location} has the message {bookmark} at position {position}, and the log {what}: "
            "it has lost messages that were archived and gave their positions to others, perhaps it was "
            "restored from a copy. Nothing was added; begin a new archive at another place"
        )


def archive_log(
    spark: SparkSession,
    wanted: ArchiveJobOptions,
    *,
    interval_seconds: float | None = None,
    compacting: bool = False,
    on_commit: OnCommit | None = None,
    stop: Stop | None = None,
) -> ArchiveJobReport:
    """Archive the log: up to its current end or, with `interval_seconds`, repeatedly until `stop` is set.

    With `compacting` small files are merged on the way. Raises as `prepare`, and what ends the query.
    """
    if interval_seconds is not None and stop is None:
        raise BadOption("archiving that goes on needs an event that stops it")
    ready = prepare(wanted)
    coverage = ready.archive.coverage
    report = ArchiveJobReport(coverage.begin, coverage.end, coverage.end)
    commits = Commits(ready.archive, report, compacting=compacting, on_commit=on_commit)
    if ready.behind or interval_seconds is not None:
        _run(spark, wanted, coverage, commits, interval_seconds, stop or threading.Event())
    return report


class Commits:
    """Commits each batch on the driver."""

    def __init__(
        self,
        archive: ArchiveWriter,
        report: ArchiveJobReport,
        *,
        compacting: bool,
        on_commit: OnCommit | None,
    ) -> None:
        self._archive = archive
        self._report = report
        self._compacting = compacting
        self._on_commit = on_commit
        self.at_work = threading.Lock()
        """Held while a batch is committed, on a thread of Spark's."""
        self.failure: Exception | None = None
        """Error of a batch, which Spark passes on as text only."""

    def __call__(self, frame: DataFrame, batch: int) -> None:  # noqa: ARG002 - Spark gives it
        """Run the tasks of a batch and commit their files."""
        with self.at_work:
            try:
                parts = [(row["start"], row["end"], row["files"]) for row in frame.collect()]
                if parts:
                    self._commit(parts)
                    self._compact()
            except Exception as error:
                self.failure = error
                raise

    def _commit(self, parts: Sequence[tuple[int, int, str]]) -> None:
        begin, end, files = whole(parts)
        if not self._archive.add(begin, end, files):
            return
        report = self._report
        report.end = end
        report.commits += 1
        report.files += len(files)
        report.rows += sum(file.rows for file in files)
        report.bytes += sum(file.bytes for file in files)
        if self._on_commit is not None:
            self._on_commit(report)

    def _compact(self) -> None:
        if self._compacting:
            done, sums = compact(self._archive, meanwhile=True), self._report.compacted
            for name in done.__struct_fields__:
                setattr(sums, name, getattr(sums, name) + getattr(done, name))


def whole(parts: Sequence[tuple[int, int, str]]) -> tuple[int, int, list[Added]]:
    """Return the positions that all tasks of a batch have read together, and the files that they wrote.
    Raises `ArchiveFailed` when something is missing between them, or twice there."""
    ordered = sorted(parts)
    files: list[Added] = []
    end = ordered[0][0]
    for first, after, encoded in ordered:
        if first != end:
            raise ArchiveFailed(f"a task read positions {first} to {after}, the one before ended at {end}")
        files += _FILES.decode(encoded)
        end = after
    return ordered[0][0], end, files


def _run(
    spark: SparkSession,
    wanted: ArchiveJobOptions,
    coverage: Coverage,
    commits: Commits,
    interval_seconds: float | None,
    stop: Stop,
) -> None:
    from pyspark.errors import PySparkException

    spark.dataSource.register(ArchiveSource)
    tasks = max(1, spark.sparkContext.defaultParallelism)
    order = ArchiveScanOptions(wanted.place, coverage.journal, coverage.end, tasks)
    reader = spark.readStream.format(FORMAT).options(**_options(wanted, order))
    trigger: dict[str, Any] = {"availableNow": True}
    if interval_seconds is not None:
        trigger = {"processingTime": f"{max(1, round(interval_seconds * 1000))} milliseconds"}
    # Spark wants a checkpoint; what is in it is forgotten with the run.
    with tempfile.TemporaryDirectory(prefix="tickertape-archive-") as scratch:
        query = (
            reader.load()
            .writeStream.foreachBatch(commits)
            .queryName(f"archive {coverage.journal}")
            .option("checkpointLocation", Path(scratch).as_uri())
            .trigger(**trigger)
            .start()
        )
        try:
            while not stop.is_set() and not query.awaitTermination(_LOOK_SECONDS):  # type: ignore[arg-type]
                pass
        except PySparkException:
            if isinstance(commits.failure, TickertapeError):
                raise commits.failure from None
            raise
        finally:
            query.stop()
            with commits.at_work:  # what is being committed is in the report
                pass


def _options(wanted: ArchiveJobOptions, order: ArchiveScanOptions) -> Mapping[str, str]:
    apart = [server.partition("#") for server in wanted.servers]
    options = dict(parse_qsl(apart[0][2])) | {
        "servers": ",".join(uri for uri, _, _ in apart),
        "topicPattern" if is_pattern(wanted.pattern) else "topic": wanted.pattern,
        "maxRowsPerTrigger": str(wanted.batch_messages_max),
        "timeout": f"{wanted.timeout_seconds}s",
        ORDER: msgspec.json.encode(order).decode(),
    }
    return options if wanted.directory is None else options | {"journal": wanted.directory}


def _named(topics: str) -> str:
    return f"the topics {topics!r}" if topics else "all topics"
