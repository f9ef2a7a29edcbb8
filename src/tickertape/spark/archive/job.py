"""Archive job: a streaming query whose tasks write files and whose driver commits them.

The archive, not the checkpoint, determines the start of a query. Each batch is committed together with its
end position, on top of the table version in which the archive ended at its start position. After any crash,
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
"""Interval for checking a continuous query."""


class Stop(Protocol):
    """Signals the end of archiving, for example a `threading.Event`."""

    def is_set(self) -> bool:
        """Return whether archiving must end."""


class ArchiveJobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an archive job."""

    servers: tuple[str, ...]
    """URIs, or texts of `server_text` (spark/common/servers.py). All use the same files."""
    place: ArchiveLocation
    topics: str = ""
    """A topic or a pattern. Empty: all persistent topics."""
    directory: str | None = None
    """Data directory of the log as seen by tasks. None: they read from the server."""
    batch_messages_max: int = batch_messages_default
    """Maximum messages per commit."""
    timeout_seconds: float = 30.0
    """Timeout for connecting and for each answer of the server."""

    @property
    def pattern(self) -> str:
        """Topic or pattern of the archive: `topics`, or `".*"` for all persistent topics."""
        return self.topics or ALL_TOPICS


class ArchiveJobReport(msgspec.Struct):
    """Report of a run."""

    begin: int
    """Start of the archive. The next fields are its end before the run and now."""
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
    """End of the log."""

    @property
    def behind(self) -> int:
        """Positions that are not archived yet."""
        return self.log_end - self.archive.coverage.end


def prepare(wanted: ArchiveJobOptions) -> PreparedJob:
    """Open the log and the archive. Create the archive if it does not exist, starting with the first message
    in the log.

    Raises:
        Disconnected, TopicNotRecorded: The log cannot be read.
        WrongJournal: The archive belongs to another log.
        ArchiveFailed: The location has no archive or one of other topics, the next messages were removed from
            the log, or the log has other messages than the archived ones.
    """
    client, _ = connect(wanted.servers, wanted.timeout_seconds)
    with client:
        log = client.locate(wanted.pattern, "0", timeout=wanted.timeout_seconds)
    place = wanted.place
    if ArchiveWriter.exists(place):
        archive = ArchiveWriter(place, log.journal)
    else:
        archive = ArchiveWriter.create(place, log.journal, log.start, wanted.topics)
    coverage = archive.coverage
    if coverage.topics != wanted.topics:
        raise ArchiveFailed(
            f"Cannot use {place.location!r}: it is the archive of {_named(coverage.topics)}, not of "
            f"{_named(wanted.topics)}. Request the same topics, or use another location."
        )
    if coverage.end < log.start:
        raise gap(place, coverage.end, log.start)
    if coverage.end > log.end:
        raise shortened(place, coverage.end, log.end)
    _check_last(wanted, coverage)
    return PreparedJob(archive, log.end)


def _check_last(wanted: ArchiveJobOptions, coverage: Coverage) -> None:
    """Check that the last archived message is at the same position in the log. Raises `ArchiveFailed`.

    A log that lost its end assigns positions again, and may have outgrown the archive since."""
    last = Stored(wanted.place.location, coverage.journal, wanted.place.options).last_before(coverage.end)
    if last is None:
        return
    position, bookmark, _ = last
    client, _ = connect(wanted.servers, wanted.timeout_seconds)
    with client:
        found: int | None
        try:
            found = client.locate(
                wanted.pattern, f"[{bookmark}:{bookmark}]", timeout=wanted.timeout_seconds
            ).start
        except BookmarkExpired:
            return  # removed from the log: comparison is impossible
        except BookmarkUnknown:
            found = None
    if found != position:
        what = "does not have it" if found is None else f"has it at position {found}"
        raise ArchiveFailed(
            f"Cannot continue {wanted.place.location!r}: the archive has the message {bookmark!r} at "
            f"position {position}, but the log {what}. The log has lost archived messages and assigned their "
            "positions again, perhaps because it was restored from a copy. Nothing was added. Create a new "
            "archive at another location."
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

    With `compacting`, small files are merged between commits. Raises as `prepare`, and the error that ended
    the query.
    """
    if interval_seconds is not None and stop is None:
        raise BadOption(
            "Cannot archive continuously (interval_seconds) without a stop event. "
            "Pass stop, or omit interval_seconds."
        )
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
        """Held while a batch is committed, on a Spark thread."""
        self.failure: Exception | None = None
        """Error of a batch, which Spark passes on only as text."""

    def __call__(self, frame: DataFrame, batch: int) -> None:  # noqa: ARG002 - required by Spark
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
    """Return the positions that the tasks of a batch have read together, and the files that they wrote.

    Raises `ArchiveFailed` for gaps and overlaps."""
    ordered = sorted(parts)
    files: list[Added] = []
    end = ordered[0][0]
    for first, after, encoded in ordered:
        if first != end:
            raise ArchiveFailed(
                f"Cannot archive positions from {first}: the previous task archived only up to position "
                f"{end}. Report the defect."
            )
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
    # Spark requires a checkpoint. Its contents are discarded after the run.
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
            with commits.at_work:  # wait until the report includes the last commit
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
