"""Archive in an object store: concurrent commits, compaction, replay and prune."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

import tickertape as tt
from tests.helpers.admin import stats_of
from tests.helpers.archive_rows import JOURNAL, SCHEMA, archived, batch_of, log_end, log_rows
from tests.helpers.object_store import PYTHON, ObjectStore, object_store
from tickertape.archive.archive_writer import ArchiveWriter
from tickertape.archive.compact import compact
from tickertape.archive.location import ArchiveLocation, location_of
from tickertape.archive.parquet_writer import write_files
from tickertape.base.errors import ArchiveFailed
from tickertape.cli.support.command_group import cli
from tickertape.journal.disk import SystemDisk
from tickertape.journal.format.identity import read_identity
from tickertape.testing.server import running_server

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not PYTHON.exists(), reason="no object store: script/test --full sets one up"),
]

CONFIG = '[journal]\nsegment_size = "1MB"\n'
MESSAGES = 4000


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


def place(store: ObjectStore, name: str) -> ArchiveLocation:
    return location_of(store.location(name), store.options)


def kept(store: ObjectStore, name: str) -> list[dict[str, Any]]:
    """Return the archived rows that delta-rs reads without our code."""
    return archived(store.location(name), store.options)


def fill(data: Path) -> None:
    """Write a log of several segments with a server, and stop it."""
    with running_server(data, CONFIG) as server, tt.Client("publisher", server.uri) as client:
        for first in range(0, MESSAGES, 500):
            client.publish_batch("flights", [b"%d " % n + b"x" * 900 for n in range(first, first + 500)])
            client.publish_flush()
        server.stop()


def test_concurrent_commits_of_one_range_succeed_once(store: ObjectStore) -> None:
    """A conditional put replaces the rename of a directory, so no commit replaces another."""
    where = place(store, "raced")
    ArchiveWriter.create(where, JOURNAL, 0, "")
    start = threading.Barrier(4)
    outcomes: list[bool | str] = []

    def commit() -> None:
        own = ArchiveWriter(where)
        files = write_files(where, [batch_of(range(100))])
        start.wait()
        try:
            outcomes.append(own.add(0, 100, files))
        except ArchiveFailed as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count(True) == 1, outcomes
    assert [row["position"] for row in kept(store, "raced")] == list(range(100))
    assert ArchiveWriter(where).coverage.end == 100


def test_compaction_merges_small_files_and_keeps_the_rows(store: ObjectStore) -> None:
    where = place(store, "small")
    archive = ArchiveWriter.create(where, JOURNAL, 0, "")
    for at in range(0, 500, 100):
        assert archive.add(at, at + 100, write_files(where, [batch_of(range(at, at + 100))]))
    before = kept(store, "small")
    compact(ArchiveWriter(where))
    assert kept(store, "small") == before
    table = DeltaTable(store.location("small"), storage_options=store.options)
    assert len(table.file_uris()) == 1
    assert ArchiveWriter(where).coverage.end == 500


def test_pruned_log_replays_from_the_object_store(store: ObjectStore, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data)
    where = place(store, "flights")
    archive = ArchiveWriter.create(where, read_identity(SystemDisk(data)).journal, 0, "")
    end, rows = log_end(data), log_rows(data)
    assert archive.add(0, end, write_files(where, [pa.RecordBatch.from_pylist(rows, SCHEMA)]))
    assert kept(store, "flights") == rows

    options = [
        part for key, value in store.options.items() for part in ("--storage-option", f"{key}={value}")
    ]
    command = ["journal", "prune", str(data), "--archived", store.location("flights"), *options]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    assert "removed: " in result.output
    assert "desk-secret" not in result.output
    entries = "".join(f"{key} = {json.dumps(value)}\n" for key, value in store.options.items())
    config = (
        f'{CONFIG}[archive]\nlocation = "{store.location("flights")}"\n[archive.storage_options]\n{entries}'
    )
    with running_server(data, config) as server, tt.Client("reader", server.uri) as client:
        assert stats_of(server).journal.first_position > MESSAGES // 2, (
            "most messages are only in the archive"
        )
        got = [int(message.data.split()[0]) for message in client.replay("flights")]
        assert got == list(range(MESSAGES))
        assert "desk-secret" not in server.errors()


def test_lost_object_store_fails_archive_replays_only(tmp_path: Path) -> None:
    """Replays that need the archive fail. The server and its log continue."""
    data = tmp_path / "data"
    with object_store() as store:
        where = place(store, "gone")
        fill(data)
        archive = ArchiveWriter.create(where, read_identity(SystemDisk(data)).journal, 0, "")
        files = write_files(where, [pa.RecordBatch.from_pylist(log_rows(data), SCHEMA)])
        assert archive.add(0, log_end(data), files)
        options = [f"--storage-option={key}={value}" for key, value in store.options.items()]
        command = ["journal", "prune", str(data), "--archived", store.location("gone"), *options]
        assert CliRunner().invoke(cli, command).exit_code == 0
    entries = "".join(f"{key} = {json.dumps(value)}\n" for key, value in store.options.items())
    entries += '"max_retries" = "0"\n"timeout" = "5s"\n'
    config = f'{CONFIG}[archive]\nlocation = "{store.location("gone")}"\n[archive.storage_options]\n{entries}'
    with running_server(data, config) as server, tt.Client("reader", server.uri) as client:
        with pytest.raises(tt.TickertapeError) as raised:
            list(client.replay("flights"))
        assert f"Cannot read the table of archive {store.location('gone')!r}: " in str(raised.value)
        assert str(raised.value).isprintable(), "the colours of delta-rs are removed"
        assert "desk-secret" not in str(raised.value)
        client.publish("flights", b"more")
        client.publish_flush()
