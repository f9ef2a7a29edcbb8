"""Blocking client with a real server process, including a server that is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import tickertape as tt
from tests.helpers.positions import resolve
from tickertape.client.blocking.log_client import LogClient
from tickertape.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running


@pytest.mark.slow
def test_flushed_messages_are_replayed_in_order(server: RunningServer) -> None:
    with LogClient("pricing-1", server.uri) as client:
        for i in range(1000):
            client.publish("orders", {"id": i})
        messages = list(client.replay("orders"))
        assert [message.json()["id"] for message in messages] == list(range(1000))
        assert all(message.bookmark and message.timestamp for message in messages)
        middle = messages[499].bookmark
        assert middle is not None
        rest = list(client.replay("orders", middle))
        assert [message.json()["id"] for message in rest] == list(range(500, 1000))
        journal, start, end = resolve(client, "orders", tt.EPOCH)
        batches = list(client.read_positions("orders", start, end, journal).batches())
        assert sum(len(batch) for batch in batches) == 1000
        assert all(batch.positions is None for batch in batches)


@pytest.mark.slow
def test_position_ranges_of_the_log_are_read(server: RunningServer) -> None:
    with LogClient("by-position", server.uri) as client:
        for i in range(300):
            client.publish("parts/a" if i % 3 else "parts/b", {"id": i})
        client.publish_flush()
        whole = client.locate("^parts/", tt.EPOCH, filter="/id > 5")
        assert (whole.topic, whole.types) == ("", {})
        bounds = (whole.start, whole.end)
        part = client.locate("parts/a", positions=bounds, journal=whole.journal, messages_max=50)
        read = client.read_positions(
            "^parts/", part.start, part.end, part.journal, filter="/id % 2 = 0", numbered=True
        )
        found: dict[int, int] = {}
        for batch in read.batches():
            assert batch.positions is not None
            found |= dict(zip(batch.positions.tolist(), [m.json()["id"] for m in batch], strict=True))
        assert [*found.values()] == list(range(0, 75, 2))
        first = min(found)
        assert [*found] == [first + n for n in range(0, 75, 2)]
        assert part.end == first + 76  # the 51st of parts/a is number 76 of both
        with pytest.raises(tt.BadFilter):
            client.locate("parts/a", tt.EPOCH, filter="/id =")
        with pytest.raises(tt.WrongJournal):
            client.locate("parts/a", positions=(0, 1), journal="00" * 16)


@pytest.mark.slow
def test_stream_continues_from_replay_to_live(server: RunningServer) -> None:
    with tt.Client("pricing-2", server.uri) as client:
        client.publish_batch("quotes", [b"%d" % i for i in range(50_000)])
        client.publish_flush(timeout=30)
        stream = client.bookmark_subscribe("quotes", tt.EPOCH, depth="64KB")
        stream.wait_caught_up(timeout=30)
        client.publish("quotes", b"50000")
        assert [stream.get(timeout=30).data for _ in range(50_001)] == [b"%d" % i for i in range(50_001)]


@pytest.mark.slow
def test_publish_store_loses_and_duplicates_nothing_across_server_kills() -> None:
    back = threading.Semaphore(0)
    down = threading.Semaphore(0)
    up = threading.Event()

    def reconnect(client: tt.Client) -> None:
        down.release()
        up.wait(30)
        client.connect(timeout=30)
        back.release()

    with (
        running_server() as server,
        tt.Client("pricing-1", server.uri, publish_store=tt.MemoryPublishStore()) as client,
    ):
        client.set_disconnect_handler(reconnect)
        sequences: list[int | None] = []
        for _ in range(2):
            up.clear()
            for _ in range(5000):
                sequences.append(client.publish("orders", b"%d" % len(sequences)))
            server.kill()
            assert down.acquire(timeout=30)
            for _ in range(500):
                sequences.append(client.publish("orders", b"%d" % len(sequences)))
            server.restart()
            up.set()
            assert back.acquire(timeout=30)
        client.publish_flush(timeout=30)
        assert client.unpersisted_count() == 0
        stored = [(message.sequence, message.data) for message in client.replay("orders")]
    assert stored == [(sequence, b"%d" % i) for i, sequence in enumerate(sequences)]
