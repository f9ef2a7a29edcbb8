"""Archiving in a real Spark session: each message is archived once despite failures."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.helpers.archive_rows import SCHEMA, archived, check_files, log_end, log_rows
from tests.helpers.object_store import PYTHON, object_store
from tests.helpers.positions import resolve
from tickertape.archive.archive_writer import ArchiveWriter
from tickertape.archive.location import location_of
from tickertape.archive.parquet_writer import write_files
from tickertape.archive.schema import Coverage, app_id
from tickertape.base.errors import ArchiveFailed, BadOption, WrongJournal
from tickertape.client.blocking.client import Client
from tickertape.client.blocking.log_client import LogClient
from tickertape.spark.archive.job import (
    ArchiveJobOptions,
    ArchiveJobReport,
    Commits,
    archive_log,
    prepare,
    whole,
)
from tickertape.testing.fault_proxy import FaultProxy
from tickertape.testing.server import RunningServer, running_server, wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", '[journal]\nsegment_size = "1MB"\n') as server:
        yield server


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def wish(server: RunningServer, location: Path, **more: Any) -> ArchiveJobOptions:
    given: dict[str, Any] = {"servers": (server.uri,), "place": location_of(str(location))}
    return ArchiveJobOptions(**(given | more))


def publish(server: RunningServer, name: str, rows: int, body: bytes = b"") -> None:
    """Publish from two publishers to three topics, with optional columns and runs of one topic."""
    with Client(name, server.uri) as one, Client(f"{name}-other", server.uri) as other:
        one.publish_batch("flights", [b"%d " % n + body for n in range(rows)])
        for n in range(rows // 20):
            other.publish("weather of/today %", b"rain %d" % n, expiration=60.0, correlation_id=f"c{n}")
            one.publish("flights", b"late %d" % n, sow_key=f"k{n}")
        one.publish("rare", b"once")
        one.publish_flush()
        other.publish_flush()


def stray_files(location: Path) -> int:
    """Return the number of files outside the archive."""
    return len(list(location.rglob("*.parquet"))) - len(DeltaTable(location).file_uris())


def test_archive_has_every_recorded_message_once(
    spark: SparkSession, log: RunningServer, location: Path
) -> None:
    publish(log, "first", 2000)
    seen: list[int] = []
    asked = wish(log, location, batch_messages_max=1500)
    report = archive_log(spark, asked, on_commit=lambda now: seen.append(now.end))
    rows = log_rows(log.data)
    assert archived(location) == rows
    assert {row["topic"] for row in rows} == {"flights", "weather of/today %", "rare"}
    end = log_end(log.data)
    assert rows[0]["position"] > 0  # control records with publisher names are not archived
    assert (report.begin, report.before, report.end, report.rows) == (0, 0, end, len(rows))
    assert len(seen) == report.commits == -(-len(rows) // 1500)
    assert seen[-1] == end
    assert report.files == len(check_files(location))
    table = DeltaTable(location)
    assert table.transaction_version(app_id(ArchiveWriter(asked.place).coverage.journal)) == end
    publish(log, "second", 500)
    assert archive_log(spark, asked).before == end
    assert archived(location) == log_rows(log.data)
    version = DeltaTable(location).version()
    assert archive_log(spark, asked).commits == 0  # nothing to archive
    assert DeltaTable(location).version() == version
    check_files(location)
    read = spark.read.parquet(*DeltaTable(location).file_uris())
    assert read.count() == len(log_rows(log.data))


@pytest.mark.full
@pytest.mark.skipif(not PYTHON.exists(), reason="no object store: script/test --full sets one up")
def test_archive_tasks_write_to_an_object_store(spark: SparkSession, log: RunningServer) -> None:
    publish(log, "first", 1000)
    with object_store() as store:
        where = store.location("log")
        asked = ArchiveJobOptions(
            servers=(log.uri,), place=location_of(where, store.options), batch_messages_max=600
        )
        assert archive_log(spark, asked).rows == len(log_rows(log.data))
        assert archived(where, store.options) == log_rows(log.data)
        publish(log, "second", 300)
        archive_log(spark, asked)
        assert archive_log(spark, asked).commits == 0
        assert archived(where, store.options) == log_rows(log.data)


@pytest.mark.full
def test_driver_failure_around_a_commit_loses_and_duplicates_nothing(
    spark: SparkSession, log: RunningServer, location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(log, "one", 1000)
    asked = wish(log, location, batch_messages_max=600)
    real = ArchiveWriter.add

    def fails_before(self: ArchiveWriter, *given: Any) -> bool:
        raise RuntimeError("died before the commit")

    def fails_after(self: ArchiveWriter, *given: Any) -> bool:
        assert real(self, *given)
        raise RuntimeError("died after the commit")

    with monkeypatch.context() as patch:
        patch.setattr(ArchiveWriter, "add", fails_before)
        with pytest.raises(Exception, match="died before the commit"):
            archive_log(spark, asked)
    assert archived(location) == []
    assert stray_files(location) > 0
    with monkeypatch.context() as patch:
        patch.setattr(ArchiveWriter, "add", fails_after)
        with pytest.raises(Exception, match="died after the commit"):
            archive_log(spark, asked)
    middle = ArchiveWriter(asked.place).coverage.end
    assert len(archived(location)) == 600
    report = archive_log(spark, asked)
    assert report.before == middle
    assert archived(location) == log_rows(log.data)
    check_files(location)


@pytest.mark.full
def test_disconnected_task_adds_nothing_to_the_archive(
    spark: SparkSession, log: RunningServer, location: Path
) -> None:
    publish(log, "one", 20_000, body=b"x" * 400)
    with FaultProxy(log.uri) as proxy:
        asked = wish(log, location, servers=(proxy.uri,), timeout_seconds=5.0)
        prepare(asked)
        was_reset = proxy.to_client.after(4_000_000, "reset")
        with pytest.raises(Exception, match="Disconnected"):
            archive_log(spark, asked)
        assert was_reset.is_set()
    assert archived(location) == []
    archive_log(spark, wish(log, location))
    assert archived(location) == log_rows(log.data)


@pytest.mark.full
def test_continuous_archiving_merges_small_files_until_stopped(
    spark: SparkSession, log: RunningServer, location: Path
) -> None:
    stop = threading.Event()
    reports: list[ArchiveJobReport] = []
    asked = wish(log, location)

    def run() -> None:
        given = {"interval_seconds": 0.1, "compacting": True, "stop": stop}
        reports.append(archive_log(spark, asked, **given))  # type: ignore[arg-type]

    publish(log, "begin", 100)
    runner = threading.Thread(target=run)
    runner.start()
    try:
        for n in range(9):
            publish(log, f"client-{n}", 40)
            end = log_end(log.data)
            wait_until(lambda end=end: end in ends(asked), 60)
    finally:
        stop.set()
        runner.join()
    assert reports[0].commits >= 9
    assert reports[0].compacted.files_before >= 8
    assert archived(location) == log_rows(log.data)
    check_files(location)


def ends(asked: ArchiveJobOptions) -> list[int]:
    return [ArchiveWriter(asked.place).coverage.end] if ArchiveWriter.exists(asked.place) else []


@pytest.mark.full
def test_archive_of_some_topics_ends_at_the_end_of_the_log(
    spark: SparkSession, log: RunningServer, location: Path
) -> None:
    publish(log, "one", 100)
    asked = wish(log, location, topics="^(rare|weather.*)$")
    archive_log(spark, asked)
    rows = [row for row in log_rows(log.data) if row["topic"] != "flights"]
    assert archived(location) == rows
    with Client("two", log.uri) as client:
        client.publish_batch("flights", [b"not archived"] * 10)
        client.publish("rare", b"out of the files")
        client.publish_flush()
    rows = [row for row in log_rows(log.data) if row["topic"] != "flights"]
    archive_log(spark, wish(log, location, topics=asked.topics, directory=str(log.data)))
    assert archived(location) == rows
    coverage = ArchiveWriter(asked.place).coverage
    assert coverage == Coverage(coverage.journal, 0, log_end(log.data), "^(rare|weather.*)$")
    with pytest.raises(ArchiveFailed, match=r"is the archive of the topics '.*', not of all topics"):
        prepare(wish(log, location))


# -- before Spark is started --------------------------------------------------------------------------


def test_archive_of_another_log_is_refused(log: RunningServer, location: Path, tmp_path: Path) -> None:
    publish(log, "one", 20)
    prepare(wish(log, location))
    with running_server(tmp_path / "other") as other:
        publish(other, "one", 20)
        with pytest.raises(WrongJournal):
            prepare(wish(other, location))
    assert prepare(wish(log, location)).behind == log_end(log.data)


def test_log_shorter_than_the_archive_is_refused(log: RunningServer, location: Path) -> None:
    publish(log, "one", 20)
    ready = prepare(wish(log, location))
    ready.archive.add(0, log_end(log.data) + 1, [])
    with pytest.raises(ArchiveFailed, match="The log has lost archived messages"):
        prepare(wish(log, location))


def archive_rows(server: RunningServer, location: Path, rows: list[dict[str, Any]]) -> None:
    """Archive rows up to the end of the log without Spark."""
    made = prepare(wish(server, location)).archive
    files = write_files(made.place, [pa.RecordBatch.from_pylist(rows, SCHEMA)])
    assert made.add(0, log_end(server.data), files)


@pytest.mark.full
def test_restored_log_that_grew_beyond_the_archive_is_refused(location: Path, tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with running_server(data) as server:
        publish(server, "one", 20)
        server.stop()
    shutil.copytree(data, copy)
    with running_server(data) as server:
        publish(server, "one", 20)
        archive_rows(server, location, log_rows(data))
        prepare(wish(server, location))  # the same message is at the same position
        server.stop()
    with running_server(copy) as server:
        publish(server, "one", 60)
        assert log_end(copy) > ArchiveWriter(location_of(str(location))).coverage.end
        with pytest.raises(
            ArchiveFailed, match=r"but the log does not have it\. The log has lost archived messages"
        ):
            prepare(wish(server, location))


def test_log_with_other_positions_than_the_archive_is_refused(log: RunningServer, location: Path) -> None:
    publish(log, "one", 20)
    *rows, last = log_rows(log.data)
    rows[-1]["position"], at = last["position"], rows[-1]["position"]
    archive_rows(log, location, rows)
    with pytest.raises(
        ArchiveFailed, match=f"at position {last['position']}, but the log has it at position {at}"
    ):
        prepare(wish(log, location))


def test_log_that_removed_unarchived_messages_is_refused(location: Path, tmp_path: Path) -> None:
    config = '[journal]\nsegment_size = "1MB"\nretain_size = "3MB"\n'
    with running_server(tmp_path / "data", config) as server:
        publish(server, "one", 20)
        asked = wish(server, location)
        prepare(asked)
        for n in range(4):
            publish(server, f"more-{n}", 2000, body=b"x" * 1000)
        wait_until(lambda: begins(server) > 0, 30)
        with pytest.raises(ArchiveFailed, match="were removed before they were archived"):
            prepare(asked)
        fresh = prepare(wish(server, tmp_path / "fresh"))
        assert fresh.archive.coverage.begin > 0


def begins(server: RunningServer) -> int:
    with LogClient("looking", server.uri) as client:
        return resolve(client, "flights", "0")[1]


def test_continuous_archiving_requires_a_stop_event(log: RunningServer, location: Path) -> None:
    with pytest.raises(BadOption, match="without a stop event"):
        archive_log(None, wish(log, location), interval_seconds=1.0)  # type: ignore[arg-type]


# -- results of tasks ---------------------------------------------------------------------------------


def test_ranges_of_tasks_must_be_contiguous() -> None:
    assert whole([(5, 9, "[]"), (0, 5, "[]")]) == (0, 9, [])
    with pytest.raises(
        ArchiveFailed, match="positions from 6: the previous task archived only up to position 5"
    ):
        whole([(0, 5, "[]"), (6, 9, "[]")])
    with pytest.raises(ArchiveFailed, match="positions from 4"):
        whole([(0, 5, "[]"), (4, 9, "[]")])


def test_batch_repeated_by_spark_is_committed_once(log: RunningServer, location: Path) -> None:
    publish(log, "one", 10)
    ready = prepare(wish(log, location))
    report = ArchiveJobReport(0, 0, 0)
    commits = Commits(ready.archive, report, compacting=False, on_commit=None)
    commits(_frame((0, 4, "[]"), (4, 7, "[]")), 0)
    commits(_frame((0, 4, "[]"), (4, 7, "[]")), 0)
    commits(_frame(), 1)
    assert (report.commits, report.end) == (1, 7)
    with pytest.raises(ArchiveFailed, match="would be missing"):
        commits(_frame((8, 9, "[]")), 2)
    assert isinstance(commits.failure, ArchiveFailed)
    assert ArchiveWriter(ready.archive.place).coverage.end == 7


def _frame(*parts: tuple[int, int, str]) -> Any:
    class Frame:
        collect: Callable[[], list[dict[str, Any]]] = staticmethod(
            lambda: [dict(zip(("start", "end", "files"), part, strict=True)) for part in parts]
        )

    return Frame()
