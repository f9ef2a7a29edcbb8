"""Table of start points and ranges on a real server, with the blocking client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import NamedTuple

import pytest

import tickertape as tt
from tests.helpers.start_points import MESSAGES, POINTS, RANGES, Row, written
from tickertape.base.bookmarks import format_timestamp, to_micros
from tickertape.base.errors import TickertapeError
from tickertape.testing import RunningServer, running_server

SECONDS = 20.0

pytestmark = pytest.mark.slow


class Recorded(NamedTuple):
    """A server with the ten messages of the table, and their bookmarks and times."""

    server: RunningServer
    client: tt.Client
    bookmarks: list[str]
    times: list[int]
    publisher: int

    def text(self, text: str) -> str:
        return written(text, self.bookmarks, self.times, self.publisher)


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    with running_server() as server, tt.Client("reader", server.uri, timeout=SECONDS) as reader:
        for number in range(MESSAGES):
            # Another connection for each: names keep their publishers, and their sequences rise.
            name = "odd" if number % 2 else "even"
            with tt.Client(
                name, server.uri, publish_store=tt.MemoryPublishStore(), timeout=SECONDS
            ) as client:
                client.publish("t", b"%d" % number)
                client.publish_flush()
        found = list(reader.replay("t"))
        assert [message.data for message in found] == [b"%d" % number for number in range(MESSAGES)]
        bookmarks = [message.bookmark or "" for message in found]
        times = [to_micros(message.timestamp) for message in found if message.timestamp is not None]
        assert len(set(times)) == MESSAGES
        yield Recorded(server, reader, bookmarks, times, int(found[0].publisher))


def policy(row: Row) -> str:
    """Return the policy of a row. The client defaults to `fail`, and the server to `now`."""
    return row.options.removeprefix("bookmark_not_found=") or "now"


ROWS = [row for row in (*POINTS, *RANGES) if row.text != "recent"]  # a word that a client looks up itself


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_replay_from_each_start_point_of_the_table(recorded: Recorded, row: Row) -> None:
    text = recorded.text(row.text)
    if row.code:
        with pytest.raises(TickertapeError) as caught:
            list(recorded.client.replay("t", text, bookmark_not_found=policy(row)))
        assert caught.value.code == row.code
        return
    found = recorded.client.replay("t", text, bookmark_not_found=policy(row))
    assert [int(message.data) for message in found] == row.covers
    assert all(message.bookmark == recorded.bookmarks[int(message.data)] for message in found)


@pytest.mark.behaviour(2)
def test_datetime_is_accepted_as_a_start_point(recorded: Recorded) -> None:
    timestamp = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=recorded.times[4])
    for same in (
        timestamp,
        timestamp.replace(tzinfo=None),
        timestamp.astimezone(timezone(timedelta(hours=-7))),
    ):
        assert [int(message.data) for message in recorded.client.replay("t", same)] == [5, 6, 7, 8, 9]


@pytest.mark.behaviour(4)
def test_client_name_has_one_publisher_id_on_every_instance(recorded: Recorded) -> None:
    with (
        running_server() as other,
        tt.Client("even", other.uri, publish_store=tt.MemoryPublishStore(), timeout=SECONDS) as client,
    ):
        sequence = client.publish("t", b"1")
        client.publish_flush()
        (message,) = client.replay("t")
    assert message.bookmark == f"{recorded.publisher}|{sequence}|"


@pytest.mark.behaviour(4)
def test_new_store_starts_above_the_last_sequence_of_the_server(recorded: Recorded) -> None:
    before = [int(bookmark.split("|")[1]) for bookmark in recorded.bookmarks[0::2]]
    with tt.Client(
        "even", recorded.server.uri, publish_store=tt.MemoryPublishStore(), timeout=SECONDS
    ) as client:
        sequence = client.publish("elsewhere", b"1")
        client.publish_flush()
    assert sequence is not None
    assert sequence > max(before)
    assert before == sorted(before)


@pytest.mark.behaviour(5)
def test_range_with_a_future_end_on_a_quiet_topic_ends_by_the_clock(recorded: Recorded) -> None:
    with tt.Client("waiter", recorded.server.uri, timeout=SECONDS) as client:
        end = datetime.now(UTC) + timedelta(seconds=2)
        stream = client.bookmark_subscribe("quiet", f"[0:{format_timestamp(to_micros(end))})", sub_id="s")
        client.publish("quiet", b"live")
        assert [message.data for message in stream] == [b"live"]
        assert datetime.now(UTC) >= end
        assert stream.end_reason == "complete"
        again = client.bookmark_subscribe("quiet", "0", sub_id="s")
        assert again.get(SECONDS).data == b"live", "the subscription id is free"


@pytest.mark.behaviour(8)
def test_bookmarks_are_sent_only_on_request(recorded: Recorded) -> None:
    with tt.Client("asking", recorded.server.uri, timeout=SECONDS) as client:
        plain = client.subscribe("asked")
        asked = client.subscribe("asked", options="bookmark")
        replayed = client.bookmark_subscribe("asked", tt.NOW)
        client.publish("asked", b"1")
        assert plain.get(SECONDS).bookmark is None
        assert asked.get(SECONDS).bookmark == replayed.get(SECONDS).bookmark is not None


@pytest.mark.behaviour(12)
def test_server_configuration_accepts_variables_and_includes(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path_factory.mktemp("configured")
    (place / "topics.toml").write_text('[[journal.topic]]\nname = "${TICKERTAPE_TEST_TOPIC}"\n')
    (place / "c.toml").write_text('include = ["topics.toml"]\n[journal]\nsync = "never"\n')
    monkeypatch.setenv("TICKERTAPE_TEST_TOPIC", "from-outside")
    with (
        running_server(place / "data", place / "c.toml") as server,
        tt.Client("a", server.uri, timeout=SECONDS) as client,
    ):
        client.publish("from-outside", b"1")
        client.publish_flush()
        assert [message.data for message in client.replay("from-outside")] == [b"1"]
        with pytest.raises(tt.TopicNotRecorded):
            client.replay("another")


@pytest.mark.full
@pytest.mark.behaviour(13)
def test_lost_connection_calls_the_handler_once_and_the_store_resends(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_server(tmp_path_factory.mktemp("lost") / "data") as server:
        client = tt.Client("a", server.uri, timeout=SECONDS)
        client.set_publish_store(tt.MemoryPublishStore())
        calls: list[object] = []
        lost = threading.Event()

        def handler(who: object) -> None:
            calls.append(who)
            lost.set()

        client.set_disconnect_handler(handler)
        server.kill()
        assert lost.wait(SECONDS)
        client.publish("t", b"while it was away")
        server.start()
        client.connect()
        client.publish_flush()
        assert [message.data for message in client.replay("t")] == [b"while it was away"]
        assert calls == [client]
        client.close()
