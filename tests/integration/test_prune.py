"""Prune of archived segments: the log starts without them, and required segments remain."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.helpers.archive_rows import SCHEMA, archived, log_end, log_rows
from tests.helpers.positions import resolve
from tests.helpers.processes import files_of
from tickertape.archive.archive_writer import ArchiveWriter
from tickertape.archive.compact import compact
from tickertape.archive.location import location_of
from tickertape.archive.parquet_writer import write_files
from tickertape.cli.support.command_group import cli
from tickertape.client.blocking.client import Client
from tickertape.client.blocking.log_client import LogClient
from tickertape.engine.queues.state.checkpoint import QueueCheckpoint, encode_covered
from tickertape.journal.disk import SystemDisk
from tickertape.journal.format.identity import read_identity
from tickertape.journal.format.queue_checkpoint import write_queues
from tickertape.journal.format.segment import segment_path
from tickertape.journal.offline.snapshot import take_snapshot
from tickertape.testing.server import RunningServer, ServerNotReady, running_server

pa = pytest.importorskip("pyarrow", reason="archives are written with pyarrow")
pytest.importorskip("deltalake", reason="the archive is a Delta table")

CONFIG = '[journal]\nsegment_size = "1MB"\n'
SOW = CONFIG + '[[sow]]\nname = "positions"\nkey = ["/id"]\ncheckpoint_interval = "{}"\n'
QUEUE = CONFIG + '[[queue]]\nname = "work"\nunderlying = "jobs"\n'


def fill(data: Path, config: str = CONFIG, rounds: int = 5) -> None:
    """Write a log of several segments with a server, and stop it."""
    with running_server(data, config) as server, Client("publisher", server.uri) as client:
        for n in range(rounds):
            client.publish_batch("flights", [b"%d %d " % (n, i) + b"x" * 900 for i in range(1000)])
            client.publish("rare", b"%d" % n)
            client.publish_flush()
        server.stop()


def archive(
    data: Path, location: Path, *, end: int | None = None, begin: int = 0, topics: str = ""
) -> ArchiveWriter:
    """Write an archive of the log up to `end` without Spark."""
    journal = read_identity(SystemDisk(data)).journal
    made = ArchiveWriter.create(location_of(str(location)), journal, begin, topics)
    end = log_end(data) if end is None else end
    rows = [row for row in log_rows(data) if begin <= row["position"] < end]
    made.add(begin, end, write_files(made.place, [pa.RecordBatch.from_pylist(rows, SCHEMA)]))
    return made


def segments(data: Path) -> list[tuple[int, int, int]]:
    """Return number, first position and end of each segment with messages."""
    view = take_snapshot(SystemDisk(data), unsynced=True).view
    return [(s.number, s.first_position, s.end_position) for s in view.segments if s.end_position]


def prune(data: Path, location: Path, *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["journal", "prune", str(data), "--archived", str(location), *more])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a log and of its complete archive."""
    directory = tmp_path_factory.mktemp("filled")
    fill(directory / "data")
    archive(directory / "data", directory / "archive")
    return directory


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    """Return a copy of the log."""
    return Path(shutil.copytree(filled / "data", tmp_path / "data"))


@pytest.fixture
def whole(filled: Path, tmp_path: Path) -> Path:
    """Return a copy of the complete archive."""
    return Path(shutil.copytree(filled / "archive", tmp_path / "archive"))


def test_prune_removes_archived_segments_and_the_log_starts(data: Path, whole: Path) -> None:
    before, rows = segments(data), log_rows(data)
    code, output = prune(data, whole)
    assert code == 0, output
    assert "removed: " in output
    assert segments(data) == before[-1:]
    assert archived(whole) == rows
    begin = before[-1][1]
    assert log_rows(data) == [row for row in rows if row["position"] >= begin]
    with running_server(data, CONFIG) as server:
        with LogClient("reader", server.uri) as client:
            assert resolve(client, "flights", "0")[1] == begin
            assert len(list(client.replay("flights"))) == sum(
                row["topic"] == "flights" and row["position"] >= begin for row in rows
            )
        with Client("publisher", server.uri) as client:  # sequences continue after the removed ones
            client.publish("flights", b"more")
            client.publish_flush()
        server.stop()
    last = log_rows(data)[-1]
    assert last["data"] == b"more"
    code, output = prune(data, whole)
    assert code == 0
    assert log_rows(data) == [last]  # the stop sealed the segment before, which is archived


def test_prune_removes_only_whole_segments_below_the_archive_end(data: Path, tmp_path: Path) -> None:
    before = segments(data)
    archive(data, tmp_path / "archive", end=before[2][2] - 1)
    code, output = prune(data, tmp_path / "archive", "--output", "json")
    assert code == 0, output
    report = json.loads(output)
    assert report["segments"] == [1, 2]
    assert (report["first_position"], report["removed"], report["kept_by"]) == (before[2][1], True, "")
    assert segments(data) == before[2:]


def test_prune_dry_run_changes_nothing(data: Path, whole: Path) -> None:
    before = files_of(data / "journal")
    code, output = prune(data, whole, "--dry-run")
    assert code == 0, output
    assert "would be removed: " in output
    assert files_of(data / "journal") == before
    assert not (data / "retired.bin").exists()


def test_prune_honours_keep_age_and_keep_size(data: Path, whole: Path) -> None:
    before = segments(data)
    code, output = prune(data, whole, "--keep-age", "1d")
    assert code == 0
    assert "removed: nothing" in output
    assert "by --keep-age or --keep-size" in output
    code, output = prune(data, whole, "--keep-size", "3MB", "--output", "json")
    assert code == 0
    report = json.loads(output)
    assert 0 < len(report["segments"]) < len(before) - 1
    assert report["kept_by"] == "--keep-age or --keep-size"
    assert sum(path.stat().st_size for path in (data / "journal").glob("*")) <= 5_000_000


def test_prune_of_a_running_server_is_refused_with_the_alternative(data: Path, whole: Path) -> None:
    with running_server(data, CONFIG):
        code, output = prune(data, whole)
    assert code == 1
    assert "in use by" in output
    assert "[archive], and retain in [journal]" in output
    assert len(segments(data)) > 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topics": "flights"}, "has the topics 'flights' only"),
        ({"end": 10**9}, "The log has lost archived messages"),
    ],
)
def test_prune_with_an_archive_that_does_not_match_is_refused(
    data: Path, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    archive(data, tmp_path / "archive", **given)
    code, output = prune(data, tmp_path / "archive")
    assert code == 1
    assert said in output
    assert not (data / "retired.bin").exists()


def test_prune_with_the_archive_of_another_journal_is_refused(data: Path, tmp_path: Path) -> None:
    fill(tmp_path / "other", rounds=1)
    archive(tmp_path / "other", tmp_path / "archive")
    code, output = prune(data, tmp_path / "archive")
    assert code == 2
    assert "is the archive of the journal" in output


def test_prune_with_an_archive_that_starts_later_removes_nothing(data: Path, tmp_path: Path) -> None:
    archive(data, tmp_path / "archive", begin=10)
    code, output = prune(data, tmp_path / "archive")
    assert code == 0
    assert "removed: nothing" in output
    assert "before the start of this archive" in output


def damaged_size(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damaged_bytes(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [os.unlink, damaged_size, damaged_bytes])
def test_prune_with_missing_or_damaged_archive_files_removes_nothing(
    data: Path, whole: Path, damage: Callable[[Path], None]
) -> None:
    for path in (whole).rglob("*.parquet"):
        damage(path)
    code, output = prune(data, whole)
    assert code == 1
    assert ".parquet" in output
    assert not (data / "retired.bin").exists()


@pytest.mark.parametrize(
    ("column", "other"),
    [
        ("topic", "rare"),
        ("publisher", "1"),
        ("sequence", 1),
        ("timestamp", datetime.fromtimestamp(0, UTC)),
        ("data", b"0 9 " + b"x" * 901),
        ("expiration_ms", 1),
        ("correlation_id", "c"),
        ("key", "k"),
    ],
)
def test_prune_with_other_archived_messages_removes_nothing(
    data: Path, tmp_path: Path, column: str, other: object
) -> None:
    journal = read_identity(SystemDisk(data)).journal
    made = ArchiveWriter.create(location_of(str(tmp_path / "archive")), journal, 0, "")
    rows = log_rows(data)
    assert rows[10][column] != other
    rows[10][column] = other
    files = write_files(made.place, [pa.RecordBatch.from_pylist(rows, SCHEMA)])
    made.add(0, log_end(data), files)
    code, output = prune(data, tmp_path / "archive")
    assert code == 1
    assert "and the log differ at positions" in output
    assert "Nothing was removed" in output
    assert not (data / "retired.bin").exists()


def test_replay_is_unchanged_after_compaction_and_prune(data: Path, whole: Path) -> None:
    config = f'{CONFIG}[archive]\nlocation = "{whole}"\n'
    with running_server(data, CONFIG) as server:
        before = replayed(server)
        server.stop()
    made = ArchiveWriter(location_of(str(whole)))
    rows = [row for row in log_rows(data) if row["position"] >= made.coverage.end]
    end, files = log_end(data), [pa.RecordBatch.from_pylist(rows, SCHEMA)] if rows else []
    made.add(made.coverage.end, end, write_files(made.place, files))
    compact(made)
    assert prune(data, whole)[0] == 0
    assert log_rows(data)[0]["position"] > rows_before(before)
    with running_server(data, config) as server:
        assert replayed(server) == before


def replayed(server: RunningServer) -> list[tuple[str, str, bytes]]:
    """Return all messages that a client replays."""
    with Client("reader", server.uri) as client:
        return [(message.topic, str(message.bookmark), message.data) for message in client.replay(".*")]


def rows_before(messages: list[tuple[str, str, bytes]]) -> int:
    """Return half of the message count, a position below the start of a pruned log."""
    return len(messages) // 2


# -- queues -------------------------------------------------------------------------------------------


def fill_queue(data: Path, *, acknowledged: int) -> None:
    """Publish jobs among other messages, and acknowledge the first `acknowledged` jobs."""
    with running_server(data, QUEUE) as server:
        with Client("publisher", server.uri) as client:
            for n in range(6):
                client.publish("jobs", b"job %d" % n)
                client.publish_batch("flights", [b"x" * 900] * 1200)
                client.publish_flush()
        if acknowledged:
            with Client("worker", server.uri) as client:
                stream = client.subscribe("work", options="max_backlog=100")
                for _, message in zip(range(acknowledged), stream, strict=False):
                    message.ack()
                client.publish_flush()
        server.stop()


@pytest.mark.full
@pytest.mark.parametrize("without_checkpoint", [False, True])
def test_prune_keeps_segments_that_a_queue_needs(tmp_path: Path, without_checkpoint: bool) -> None:
    data = tmp_path / "data"
    fill_queue(data, acknowledged=3)
    jobs = [row["position"] for row in log_rows(data) if row["topic"] == "jobs"]
    before = segments(data)
    archive(data, tmp_path / "archive")
    if without_checkpoint:
        (data / "queues.bin").unlink()
    code, output = prune(data, tmp_path / "archive")
    assert code == 0, output
    assert "by queue 'work', which needs the log from position" in output
    needed = 0 if without_checkpoint else jobs[3]
    assert segments(data) == [segment for segment in before if segment[2] > needed]
    with running_server(data, QUEUE) as server, Client("worker", server.uri) as client:
        stream = client.subscribe("work", options="max_backlog=100")
        left = [message.data for _, message in zip(range(3), stream, strict=False)]
    assert left == [b"job 3", b"job 4", b"job 5"]


def test_prune_ignores_a_queue_checkpoint_beyond_the_log_end(tmp_path: Path) -> None:
    """The checkpoint contains acknowledgements that the log has lost, so the jobs are open again."""
    data = tmp_path / "data"
    fill_queue(data, acknowledged=0)
    archive(data, tmp_path / "archive")
    end = log_end(data)
    covered = [QueueCheckpoint("work", b"", end + 6, end + 6)]
    journal = bytes.fromhex(read_identity(SystemDisk(data)).journal)
    write_queues(SystemDisk(data), journal, encode_covered(covered))
    before = segments(data)
    code, output = prune(data, tmp_path / "archive")
    assert code == 0, output
    assert "by queue 'work', which needs the log from position 0" in output
    assert segments(data) == before


@pytest.mark.full
def test_prune_keeps_segments_of_a_queue_that_cannot_be_recovered(tmp_path: Path) -> None:
    """Damage stops the queue, and its jobs are available after the repair."""
    data = tmp_path / "data"
    fill_queue(data, acknowledged=3)
    before = segments(data)
    jobs = [row["position"] for row in log_rows(data) if row["topic"] == "jobs"]
    number, first, _ = before[-2]
    assert first > jobs[4]
    archive(data, tmp_path / "archive", end=first)
    path = data / segment_path(number)
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with running_server(data, QUEUE) as server:
        assert "Queues are not served" in server.errors()
        server.stop()
    code, output = prune(data, tmp_path / "archive")
    assert code == 0, output
    assert "by queue 'work', which needs the log from position" in output
    assert segments(data)[0][2] > jobs[3]
    assert segments(data)[0][1] <= jobs[3]
    path.write_bytes(whole)
    with running_server(data, QUEUE) as server, Client("worker", server.uri) as client:
        assert "The definition of queue" not in server.errors()
        stream = client.subscribe("work", options="max_backlog=100")
        left = [message.data for _, message in zip(range(3), stream, strict=False)]
    assert left == [b"job 3", b"job 4", b"job 5"]


# -- SOW topics ---------------------------------------------------------------------------------------


def fill_records(data: Path) -> None:
    """Write a checkpoint of a SOW topic, and then segments that its checkpoint does not include."""
    with running_server(data, SOW.format("1s")) as server, Client("publisher", server.uri) as client:
        client.publish("positions", {"id": 0})
        client.publish_flush()
        end = time.monotonic() + 30
        while not list(data.glob("sow/*/manifest")):
            assert time.monotonic() < end, "no checkpoint"
            time.sleep(0.05)
        server.stop()
    with running_server(data, SOW.format("24h")) as server, Client("publisher", server.uri) as client:
        for n in range(5):
            client.publish_batch("positions", [{"id": n, "i": i, "x": "x" * 900} for i in range(1000)])
            client.publish_flush()
        server.kill()  # a clean stop would write a checkpoint


def test_prune_keeps_segments_of_a_sow_topic_unless_forgotten(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill_records(data)
    archive(data, tmp_path / "archive")
    before = segments(data)
    code, output = prune(data, tmp_path / "archive")
    assert code == 0, output
    assert "by SOW topic 'positions', which needs the log from position " in output
    assert len(segments(data)) >= len(before) - 1
    code, output = prune(data, tmp_path / "archive", "--forget-sow", "position")
    assert code == 2, output
    assert "Did you mean 'positions'?" in output
    assert len(segments(data)) >= len(before) - 1
    code, output = prune(data, tmp_path / "archive", "--forget-sow", "positions")
    assert code == 0, output
    assert segments(data) == before[-1:]
    with (
        pytest.raises(ServerNotReady, match="start with --rebuild-sow NAME"),
        running_server(data, SOW.format("1s")),
    ):
        pass
    file = tmp_path / "tickertape.toml"
    file.write_text(SOW.format("1s"))
    server = RebuildingServer(data, file)
    try:
        server.start()
        assert "SOW topic 'positions' is not complete (--rebuild-sow: " in server.errors()
        assert server.stop() == 0
    finally:
        server.kill()
        server.release()


class RebuildingServer(RunningServer):
    """A server that rebuilds the SOW topic."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--rebuild-sow", "positions"]


# -- interrupted --------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [0, 1, 2])
def test_interrupted_prune_leaves_a_log_that_starts(
    data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """Fail after `retired.bin` is written and `files` segments are removed."""
    before, rows = segments(data), log_rows(data)
    removed: list[str] = []
    real = SystemDisk.remove

    def fails(self: SystemDisk, path: str) -> None:
        if len(removed) == files:
            raise RuntimeError("failed")
        removed.append(path)
        real(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(SystemDisk, "remove", fails)
        patch.setenv("TICKERTAPE_DEBUG", "1")
        result = CliRunner().invoke(cli, ["journal", "prune", str(data), "--archived", str(whole)])
        assert isinstance(result.exception, RuntimeError)
    begin = before[-1][1]
    assert log_rows(data) == [row for row in rows if row["position"] >= begin]
    with running_server(data, CONFIG) as server:
        with LogClient("reader", server.uri) as client:
            assert resolve(client, "flights", "0")[1] == begin
        server.stop()
    assert segments(data)[0] == before[-1]
