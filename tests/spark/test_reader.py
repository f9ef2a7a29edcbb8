"""Batch reader without a Spark session, against real servers: partitions and failures."""

from __future__ import annotations

import pickle
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers.positions import resolve
from tests.unit.spark.common.test_schema import struct
from tickertape.base.errors import BookmarkExpired, Disconnected, NotAJournal, WrongJournal
from tickertape.client.blocking.client import Client
from tickertape.client.blocking.log_client import LogClient
from tickertape.spark.common.schema import columns_of
from tickertape.spark.source.batch_reader import TickertapeReader
from tickertape.spark.source.options import read_options
from tickertape.spark.source.partitions import LogPartition
from tickertape.testing.server import RunningServer, running_server, wait_until

pytestmark = pytest.mark.spark


def reader_of(uri: str, topic: str, **options: str) -> TickertapeReader:
    given = {"servers": uri, "topic": topic} | options
    return TickertapeReader(read_options(given), columns_of(struct("sequence long, data binary")))


def parts_of(reader: TickertapeReader) -> list[LogPartition]:
    parts = reader.partitions()
    assert all(isinstance(part, LogPartition) for part in parts)
    return [part for part in parts if isinstance(part, LogPartition)]


def test_partition_of_another_log_is_refused(server: RunningServer, tmp_path: Path) -> None:
    with Client("wrong-journal", server.uri) as client:
        client.publish("quiet", b"one")
        client.publish_flush()
    part = parts_of(reader_of(server.uri, "quiet"))[0]
    with running_server(tmp_path / "data") as other:
        moved = replace(part, servers=(other.uri,))
        with pytest.raises(WrongJournal, match=part.journal):
            list(reader_of(server.uri, "quiet").read(moved))


def test_interrupted_read_raises_disconnected(tmp_path: Path) -> None:
    with running_server(tmp_path / "data") as server:
        with Client("cut-short", server.uri) as client:
            for _ in range(40):
                client.publish("large", b"x" * 1_000_000)
                client.publish_flush()
        reader = pickle.loads(pickle.dumps(reader_of(server.uri, "large", minPartitions="1")))
        batches = reader.read(parts_of(reader)[0])
        assert next(batches).num_rows >= 4
        server.kill()
        with pytest.raises(Disconnected):
            list(batches)


def test_tasks_try_the_planning_server_first(server: RunningServer, unused: str) -> None:
    part = parts_of(reader_of(f"{unused},{server.uri}", "flights"))[0]
    assert part.servers == (server.uri, unused)


def test_empty_partition_needs_no_server(unused: str) -> None:
    part = LogPartition((unused,), "any", "flights", 7, 7, 1.0)
    assert list(reader_of(unused, "flights").read(part)) == []


def test_unreachable_servers_are_all_named_in_the_error(unused: str) -> None:
    with socket.socket() as quiet:
        quiet.bind(("127.0.0.1", 0))
        other = f"tcp://127.0.0.1:{quiet.getsockname()[1]}"
        with pytest.raises(Disconnected) as caught:
            reader_of(f"{unused},{other}", "flights").partitions()
    assert unused in str(caught.value)
    assert other in str(caught.value)
    assert "\n" not in str(caught.value)


def bodies_of(reader: TickertapeReader, part: LogPartition) -> list[bytes]:
    return [row["data"] for table in reader.read(part) for row in table.to_pylist()]


def test_wrong_or_unreadable_journal_files_are_refused_without_a_server_read(
    server: RunningServer, tmp_path: Path
) -> None:
    with Client("files-refused", server.uri) as client:
        client.publish("quiet", b"one")
        client.publish_flush()
    reader = reader_of(server.uri, "quiet", journal=str(server.data), minPartitions="1")
    part = parts_of(reader)[0]
    assert bodies_of(reader, part)
    with running_server(tmp_path / "other") as other:
        moved = replace(part, directory=str(other.data))
        with pytest.raises(
            WrongJournal,
            match=f"directory {other.data} of option 'journal' on .*{part.journal}.*or omit the option",
        ):
            list(reader.read(moved))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotAJournal, match=f"directory {tmp_path}/empty of option 'journal' on"):
        list(reader.read(replace(part, directory=str(tmp_path / "empty"))))
    with pytest.raises(NotAJournal, match=f"directory {tmp_path}/missing of option 'journal' on"):
        list(reader.read(replace(part, directory=str(tmp_path / "missing"))))


def test_server_restart_between_planning_and_reading_keeps_the_rows(tmp_path: Path) -> None:
    bodies = [b"%d" % n for n in range(3000)]
    with running_server(tmp_path / "data") as server:
        with Client("before", server.uri) as client:
            client.publish_batch("flights", bodies)
            client.publish_flush()
        readers = [
            reader_of(server.uri, "flights"),
            reader_of(server.uri, "flights", journal=str(server.data)),
        ]
        planned = [(reader, parts_of(reader)) for reader in readers]
        server.kill()
        found = [bodies_of(readers[1], part) for part in planned[1][1]]  # files need no server
        assert [body for part in found for body in part] == bodies
        server.start()
        with Client("after", server.uri) as client:
            client.publish_batch("flights", [b"later"])
            client.publish_flush()
        for reader, parts in planned:
            assert [body for part in parts for body in bodies_of(reader, part)] == bodies


def test_partition_read_repeatedly_has_the_same_rows(server: RunningServer) -> None:
    with Client("again", server.uri) as client:
        client.publish_batch("quiet", [b"%d" % n for n in range(500)])
        client.publish_flush()
    for options in ({}, {"journal": str(server.data)}):
        reader = reader_of(server.uri, "quiet", **options)
        for part in parts_of(reader):
            cut_short = reader.read(part)
            next(cut_short)
            del cut_short
            assert bodies_of(reader, part) == bodies_of(reader, part)


def test_end_in_the_future_is_the_end_of_the_log_at_planning(server: RunningServer) -> None:
    with LogClient("future", server.uri) as client:
        client.publish("quiet", b"last")
        client.publish_flush()
        _, _, end = resolve(client, "quiet", "0")
        parts = parts_of(reader_of(server.uri, "quiet", endingTimestamp="29990101T000000"))
        assert parts[-1].end == end
        client.publish("quiet", b"later")
        client.publish_flush()
    assert all(b"later" not in bodies_of(reader_of(server.uri, "quiet"), part) for part in parts)
    parts = parts_of(reader_of(server.uri, "quiet", startingTimestamp="29990101T000000"))
    assert [part.start == part.end for part in parts] == [True]


RETAINED = """
[journal]
segment_size = "1MB"
retain_size = "4MB"
sync = "never"
"""


def test_removed_messages_are_an_error_or_skipped_with_a_log_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_server(tmp_path / "data", RETAINED) as server, LogClient("gone", server.uri) as client:
        client.publish("flights", b"first")
        client.publish_flush()
        (first,) = [message.bookmark for message in client.replay("flights")]
        assert first is not None
        whole = {"minPartitions": "1", "startingBookmark": f"[{first}:29990101T000000)"}
        both: tuple[dict[str, str], ...] = ({}, {"journal": str(server.data)})
        planned = [parts_of(reader_of(server.uri, "flights", **files))[0] for files in both]
        bulk = [b"%03d" % n + b"x" * 200_000 for n in range(60)]
        for body in bulk:
            client.publish("flights", body)
        client.publish_flush()
        wait_until(lambda: resolve(client, "flights", "0")[1] > planned[0].start)
        _, _, end = resolve(client, "flights", "0")
        for files, part in zip(both, planned, strict=True):
            # Planned before the removal, read after it.
            part = replace(part, end=end)
            reader = reader_of(server.uri, "flights", **files)
            with pytest.raises(BookmarkExpired, match="Set failOnDataLoss=false to continue with the first"):
                list(reader.read(part))
            caplog.clear()
            found = bodies_of(reader, replace(part, fail_on_data_loss=False))
            assert 0 < len(found) < len(bulk)
            assert found == bulk[-len(found) :]
            assert "were removed by retention before they were read" in caplog.text
            # Planned after the removal.
            with pytest.raises(BookmarkExpired, match="Set failOnDataLoss=false to continue with the first"):
                reader_of(server.uri, "flights", **files, **whole).partitions()
            caplog.clear()
            accepting = reader_of(server.uri, "flights", **files, **whole, failOnDataLoss="false")
            (part,) = parts_of(accepting)
            found = bodies_of(accepting, part)
            assert found == bulk[-len(found) :] != bulk
            assert "continues with the first available message" in caplog.text
