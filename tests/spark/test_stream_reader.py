"""Stream reader without a Spark session, against real servers: offsets and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from tests.helpers.positions import resolve
from tests.unit.spark.common.test_schema import struct
from tickertape.base.errors import (
    BadFilter,
    BookmarkExpired,
    Disconnected,
    JournalError,
    TopicNotRecorded,
    WrongJournal,
)
from tickertape.client.blocking.client import Client
from tickertape.client.blocking.log_client import LogClient
from tickertape.spark.common.schema import columns_of
from tickertape.spark.source.options import Query, read_options
from tickertape.spark.source.stream_reader import TickertapeStreamReader
from tickertape.testing.server import RunningServer, running_server, wait_until

pytestmark = pytest.mark.spark

CONFIG = """
[journal]
segment_size = "1MB"
retain_size = "4MB"
sync = "never"
"""
ALL = ReadAllAvailable()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", CONFIG) as server:
        yield server


@contextmanager
def reading(uri: str, **options: str) -> Iterator[TickertapeStreamReader]:
    """Yield a reader for one run of a query."""
    given = {"servers": uri, "topic": "flights", "timeout": "10s"} | options
    reader = TickertapeStreamReader(read_options(given, Query.STREAM), columns_of(struct("data binary")))
    try:
        yield reader
    finally:
        reader.stop()


def publish(server: RunningServer, *bodies: bytes, topic: str = "flights") -> None:
    with Client("publisher", server.uri) as client:
        client.publish_batch(topic, list(bodies))
        client.publish_flush()


def rows(reader: TickertapeStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    """Return the bodies that the tasks of a micro-batch read."""
    tables = [table for part in reader.partitions(start, end) for table in reader.read(part)]
    return [row["data"] for table in tables for row in table.to_pylist()]


def batches(
    reader: TickertapeStreamReader, start: dict[str, Any], limit: ReadLimit = ALL
) -> tuple[list[list[bytes]], dict[str, Any]]:
    """Return the micro-batches up to the end, and the last offset."""
    found = []
    while (end := reader.latestOffset(start, limit)) != start:
        found.append(rows(reader, start, end))
        start = end
    return found, start


def test_stream_reader_continues_after_server_and_reader_restarts(log: RunningServer) -> None:
    publish(log, b"1", b"2")
    with reading(log.uri) as reader:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        assert rows(reader, start, end) == [b"1", b"2"]
        log.kill()
        log.start()
        publish(log, b"3")
        after = reader.latestOffset(end, ALL)  # after a lost connection
        assert rows(reader, end, after) == [b"3"]
        assert rows(reader, start, end) == [b"1", b"2"]
        assert reader.latestOffset(after, ALL) == after
        assert reader.partitions(after, after) == []
    with reading(log.uri) as reader:
        publish(log, b"4")
        assert batches(reader, after)[0] == [[b"4"]]


@pytest.mark.parametrize(
    ("options", "limit", "sizes"),
    [
        ({}, ALL, [12]),
        ({"maxRowsPerTrigger": "5"}, ReadMaxRows(5), [5, 5, 2]),
        ({"maxBytesPerTrigger": "25"}, ReadMaxBytes(25), [2, 2, 2, 2, 2, 1, 1]),
        ({"maxRowsPerTrigger": "1", "maxBytesPerTrigger": "25"}, ReadMaxRows(1), [1] * 12),
        ({"maxRowsPerTrigger": "5", "maxBytesPerTrigger": "25"}, ReadMaxRows(5), [2, 2, 2, 2, 2, 1, 1]),
    ],
)
def test_micro_batches_are_bounded_by_the_options(
    log: RunningServer, options: dict[str, str], limit: ReadLimit, sizes: list[int]
) -> None:
    for n in range(11):
        publish(log, b"%010d" % n)
        publish(log, b"rain", topic="weather")
    publish(log, b"x" * 1000)
    with reading(log.uri, **options) as reader:
        assert reader.getDefaultReadLimit() == limit
        found, _ = batches(reader, reader.initialOffset(), reader.getDefaultReadLimit())
        assert [len(batch) for batch in found] == sizes
        assert [row for batch in found for row in batch] == [*(b"%010d" % n for n in range(11)), b"x" * 1000]
        # A limit of the engine overrides the options.
        assert len(batches(reader, reader.initialOffset(), ALL)[0]) == 1


def test_reported_lag_falls_with_each_planned_batch(log: RunningServer) -> None:
    publish(log, *[b"%d" % n for n in range(100)])
    with reading(log.uri) as reader:
        start = reader.initialOffset()
        behind = []
        for _ in range(3):
            start = reader.latestOffset(start, ReadMaxRows(40))
            reported = reader.reportLatestOffset()
            assert reported is not None
            behind.append(reported["behind"])
        assert behind == [60, 20, 0]
        assert reported == start | {"behind": 0}


def test_available_now_ends_at_the_messages_of_the_start(log: RunningServer) -> None:
    publish(log, b"1", b"2", b"3")
    with reading(log.uri) as reader:
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        publish(log, b"4")
        found, end = batches(reader, start, ReadMaxRows(2))
        assert found == [[b"1", b"2"], [b"3"]]
    with reading(log.uri) as reader:
        reader.prepareForTriggerAvailableNow()
        assert batches(reader, end)[0] == [[b"4"]]
        # A start beyond the target, which another run may have reached.
        publish(log, b"5")
        with reading(log.uri) as other:
            beyond = other.latestOffset(end, ALL)
        assert reader.latestOffset(beyond, ALL) == beyond


def test_new_query_starts_at_the_start_option(log: RunningServer) -> None:
    publish(log, *[b"%d" % n for n in range(10)])
    with Client("reader", log.uri) as client:
        messages = list(client.replay("flights"))
    bookmark, timestamp = messages[5].bookmark, messages[0].timestamp
    assert bookmark is not None
    assert timestamp is not None
    for options, first in (
        ({"startingBookmark": bookmark}, 6),
        ({"startingTimestamp": timestamp.strftime("%Y%m%dT%H%M%S.%fZ")}, 0),
        ({"startingBookmark": timestamp.strftime("%Y%m%dT%H%M%S.%fZ")}, 10),
        ({"startingBookmark": "now"}, 10),
        ({"startingBookmark": "now", "topic": "", "topicPattern": "^fl"}, 10),
    ):
        with reading(log.uri, **options) as reader:
            found, _ = batches(reader, reader.initialOffset())
            assert [row for batch in found for row in batch] == [b"%d" % n for n in range(first, 10)]


def test_stream_reader_applies_filter_pattern_and_files(log: RunningServer) -> None:
    publish(log, b'{"n": 1}', b'{"n": 2}')
    publish(log, b'{"n": 1}', topic="weather")
    for files in ({}, {"journal": str(log.data)}):
        options = {"topic": "", "topicPattern": "flights|weather", "filter": "/n = 1"} | files
        with reading(log.uri, **options) as reader:
            assert batches(reader, reader.initialOffset())[0] == [[b'{"n": 1}', b'{"n": 1}']]
    with reading(log.uri, filter="/n =") as reader, pytest.raises(BadFilter):
        reader.initialOffset()


def test_another_log_and_a_truncated_log_are_refused(log: RunningServer, tmp_path: Path) -> None:
    publish(log, b"one")
    with reading(log.uri) as reader:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        ahead = end | {"position": end["position"] + 5}
        for ask in (
            lambda: reader.latestOffset(ahead, ALL),
            lambda: reader.partitions(ahead, ahead | {"position": 99}),
            lambda: reader.partitions(start, ahead),  # planned, and not read before the log was restored
        ):
            with pytest.raises(JournalError, match=r"ends at .* Persisted messages are missing"):
                ask()
        with pytest.raises(WrongJournal, match="of another source"):
            reader.latestOffset({"partition": 3}, ALL)
    with running_server(tmp_path / "other") as other, reading(other.uri) as reader:
        for ask in (lambda: reader.latestOffset(start, ALL), lambda: reader.partitions(start, end)):
            with pytest.raises(WrongJournal, match=rf"the log '{start['journal']}', .* start with another"):
                ask()


def test_removed_history_is_an_error_or_an_accepted_and_logged_loss(
    log: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    publish(log, b"first")
    with LogClient("bulk", log.uri) as client:
        (first,) = [message.bookmark for message in client.replay("flights")]
        assert first is not None
        with reading(log.uri) as reader:
            start = reader.initialOffset()
            planned = reader.latestOffset(start, ALL)
        bulk = [b"%03d" % n + b"x" * 200_000 for n in range(60)]
        for body in bulk:
            client.publish("flights", body)
        client.publish_flush()
        wait_until(lambda: resolve(client, "flights", "0")[1] > planned["position"])
    with reading(log.uri) as reader:
        for ask in (lambda: reader.latestOffset(start, ALL), lambda: reader.partitions(start, planned)):
            with pytest.raises(
                BookmarkExpired, match=r"it has read up to .*failOnDataLoss=false to continue"
            ):
                ask()
    with (
        reading(log.uri, startingBookmark=first) as reader,
        pytest.raises(BookmarkExpired, match="failOnDataLoss"),
    ):
        reader.initialOffset()
    with reading(log.uri, startingBookmark=first, failOnDataLoss="false") as reader:
        assert reader.initialOffset()["position"] > planned["position"]
        assert "starts with the first available message" in caplog.text
        assert rows(reader, start, planned) == []  # planned before the removal of all its messages
        caplog.clear()
        ((*found,),), _ = batches(reader, start)
        assert 0 < len(found) < len(bulk)
        assert found == bulk[-len(found) :]
        assert "were removed by retention" in caplog.text


def test_unreachable_server_is_named_after_the_timeout(log: RunningServer, unused: str) -> None:
    publish(log, b"one")
    with reading(f"{unused},{log.uri}") as reader:
        assert batches(reader, reader.initialOffset())[0] == [[b"one"]]
    with reading(unused, timeout="300ms") as reader, pytest.raises(Disconnected, match=unused):
        reader.initialOffset()


def test_stream_of_a_topic_that_is_not_persistent_is_refused(tmp_path: Path) -> None:
    config = '[[journal.topic]]\nname = "weather"\n'
    with (
        running_server(tmp_path / "data", config) as server,
        reading(server.uri) as reader,
        pytest.raises(TopicNotRecorded),
    ):
        reader.initialOffset()
