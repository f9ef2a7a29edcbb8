"""Stop of a real process: accepted messages are persisted and delivered before the goodbye."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import tickertape as tt
from tests.helpers.admin import status_of
from tests.helpers.peer import Peer, frame
from tests.helpers.wire import batch_of
from tickertape.testing import RunningServer, running_server, wait_until
from tickertape.wire.commands import Ack, Goodbye, Persisted, Publish, Subscribe

SECONDS = 20.0

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running_server(config='[instance]\ndrain_timeout = "10m"\n') as running:
        yield running


def events(server: RunningServer) -> list[str]:
    return [line.split()[2] for line in server.errors().splitlines()]


class Writer(threading.Thread):
    """Publisher without pauses, which reconnects when the server is back."""

    def __init__(self, name: str, uri: str) -> None:
        super().__init__(daemon=True)
        self.client = tt.Client(name, uri, publish_store=tt.MemoryPublishStore("1MB"), timeout=SECONDS)
        self.client.set_disconnect_handler(self._reconnect)
        self.published = 0
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.is_set():
            self.client.publish("orders", b"%s %d" % (self.client.name.encode(), self.published))
            self.published += 1

    @property
    def acknowledged(self) -> int:
        published = self.published
        return published - self.client.unpersisted_count()

    def finish(self) -> None:
        self.enough.set()
        self.join(SECONDS)
        wait_until(lambda: self.acknowledged == self.published, SECONDS)  # the client may be reconnecting
        self.client.close()

    def _reconnect(self, client: tt.Client) -> None:
        wait_until(lambda: connected(client), SECONDS)


def connected(client: tt.Client) -> bool:
    try:
        client.connect(timeout=SECONDS)
    except (tt.Disconnected, tt.NotReady):  # stopped or stopping
        return False
    return True


def test_stop_under_load_loses_nothing_and_publishers_continue_after_the_start(
    server: RunningServer,
) -> None:
    writers = [Writer(f"writer-{n}", server.uri) for n in range(2)]
    for writer in writers:
        writer.start()
    for stop in range(1, 3):
        goal = stop * 5_000
        wait_until(lambda goal=goal: all(writer.acknowledged >= goal for writer in writers), SECONDS)
        assert server.stop() == 0
        server.start()
    for writer in writers:
        writer.finish()
    with tt.Client("reader", server.uri, timeout=SECONDS) as reader:
        stored = [message.data for message in reader.replay("orders")]
    for writer in writers:
        name = writer.client.name.encode()
        mine = [body for body in stored if body.startswith(name)]
        assert mine == [b"%s %d" % (name, n) for n in range(writer.published)]
    assert "recovery" not in events(server), "each stop sealed the log"


def test_catching_up_subscriber_gets_all_messages_before_the_goodbye(server: RunningServer) -> None:
    count = 30_000
    with tt.Client("writer", server.uri, timeout=SECONDS) as writer:
        writer.publish_batch("orders", (b"%0200d" % n for n in range(count)))
        writer.publish_flush(SECONDS)
        reader = tt.Client("reader", server.uri, timeout=SECONDS)
        stream = reader.bookmark_subscribe("orders", tt.EPOCH)
        got = [int(stream.get(SECONDS).data)]
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        wait_until(lambda: "drain" in events(server), SECONDS)
        got += [int(message.data) for message in stream]
        assert stream.end_reason == "not_ready"
        stopping.join(SECONDS)
        assert got == list(range(count))
        reader.close()
    assert "subscribers_left_behind" not in events(server)


class BlockedSubscriber(Peer):
    """Subscriber of the whole log that reads nothing."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, "blocked")
        self.send(frame(Subscribe(id=1, sub_id="a", topic="orders", bookmark="0", credit=1 << 29)))
        self.until(Ack)


@pytest.fixture
def blocked(server: RunningServer) -> Iterator[BlockedSubscriber]:
    """Yield a subscriber that reads nothing, with a log larger than all socket buffers."""
    with tt.Client("writer", server.uri, timeout=SECONDS) as writer:
        writer.publish_batch("orders", (b"%010000d" % n for n in range(3_000)))
        writer.publish_flush(SECONDS)
    with BlockedSubscriber(server.uri) as peer:
        time.sleep(0.2)  # wait until the socket buffers are full
        yield peer


def when_draining(server: RunningServer, act: Callable[[], None]) -> int:
    """Send SIGTERM, act after the start of the drain, and return the exit code."""
    os.kill(server.pid, signal.SIGTERM)
    wait_until(lambda: "drain" in events(server), SECONDS)
    act()
    return server.wait()


def test_draining_server_is_not_ready_and_refuses_connections(
    server: RunningServer, blocked: BlockedSubscriber
) -> None:
    host, port = server.uri.removeprefix("tcp://").split(":")

    def check_state() -> None:
        assert status_of(server, "/ready") == (
            503,
            {"status": "draining", "reason": "the server is stopping"},
        )
        assert status_of(server, "/health")[0] == 200
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=SECONDS)

    assert when_draining(server, check_state) == 0, (
        "the drain does not wait ten minutes for a blocked subscriber"
    )
    assert "subscribers_left_behind" in events(server)


def test_second_signal_stops_the_server_at_once(server: RunningServer, blocked: BlockedSubscriber) -> None:
    code = when_draining(server, lambda: os.kill(server.pid, signal.SIGINT))
    last = server.errors().splitlines()[-1]
    assert " stopped_at_once signal=SIGINT sealed=" in last
    sealed = last.endswith("sealed=true")
    assert code == (0 if sealed else 1)
    server.start()
    assert not sealed or "recovery" not in events(server)


def test_publish_during_the_drain_is_neither_stored_nor_acknowledged(
    server: RunningServer, blocked: BlockedSubscriber
) -> None:
    with Peer(server.uri, "raw") as peer:
        peer.send(frame(Publish(frame=1), batch_of(3, topic="raw")))
        peer.until(Persisted)
        peer.send(frame(Subscribe(id=2, sub_id="b", topic="orders", bookmark="0", credit=200_000)))
        peer.until(Ack)

        def publish() -> None:
            peer.send(frame(Publish(frame=2), batch_of(3, topic="raw", first=4)))

        assert when_draining(server, publish) == 0
        said = peer.until_closed()
    assert not [command for command in said if isinstance(command, Persisted)]
    assert isinstance(said[-1], Goodbye)
    assert said[-1].code == "not_ready"
    server.start()
    with tt.Client("reader", server.uri, timeout=SECONDS) as reader:
        assert len(list(reader.replay("raw"))) == 3


@pytest.mark.full
def test_drain_timeout_of_the_configuration_limits_slow_subscribers() -> None:
    with running_server(config="[instance]\ndrain_timeout = 0\n") as server:
        with tt.Client("writer", server.uri, timeout=SECONDS) as writer:
            writer.publish_batch("orders", (b"%010000d" % n for n in range(3_000)))
            writer.publish_flush(SECONDS)
        with BlockedSubscriber(server.uri):
            assert server.stop() == 0
        assert "subscribers_left_behind" in events(server)
        server.start()
        with tt.Client("reader", server.uri, timeout=SECONDS) as reader:
            assert len(list(reader.replay("orders"))) == 3_000


@pytest.mark.behaviour(18)
def test_conflated_messages_are_delivered_before_the_goodbye() -> None:
    config = '[[journal.topic]]\npattern = "^log/"\n'
    with running_server(config=config) as server, tt.Client("c", server.uri, timeout=SECONDS) as client:
        keyed = "conflation=1h,conflation_key=[/k]"
        streams = [
            client.subscribe("/a$", options=keyed),  # recorded and unrecorded topics
            client.bookmark_subscribe("log/a", tt.EPOCH, options=keyed),
        ]
        for number in range(4):
            client.publish("log/a", {"k": number % 2, "n": number})
            client.publish("live/a", {"k": number % 2, "n": number})
        client.publish_flush()
        os.kill(server.pid, signal.SIGTERM)
        received = [sorted((m.topic, m.json()["n"]) for m in stream) for stream in streams]
        assert received == [
            [("live/a", 2), ("live/a", 3), ("log/a", 2), ("log/a", 3)],
            [("log/a", 2), ("log/a", 3)],
        ]
