"""Lost connections of both clients: handlers, stores, reconnection."""

from __future__ import annotations

import threading

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tickertape.testing.server import RunningServer, wait_until


@pytest.mark.behaviour(13)
@pytest.mark.slow
def test_disconnect_handler_is_called_once_per_lost_connection(front: Front, server: RunningServer) -> None:
    lost: list[object] = []
    client = front.make("c", server.uri)
    client.set_disconnect_handler(lost.append)
    client.connect()
    stream = client.subscribe("orders")
    server.kill()
    wait_until(lambda: len(lost) == 1)
    assert list(stream) == []
    assert isinstance(stream.end_error, tt.Disconnected)
    with pytest.raises(tt.Disconnected):
        client.publish("orders", b"1")
    with pytest.raises(tt.Disconnected):
        client.connect()
    server.start()
    client.connect()
    client.publish("orders", b"1")
    client.publish_flush()
    client.close()
    assert len(lost) == 1


@pytest.mark.slow
def test_replay_on_lost_connection_raises_disconnected(front: Front, server: RunningServer) -> None:
    client = front.connect("c", server.uri)
    client.publish_batch("orders", [bytes(1_000)] * 2_000)
    client.publish_flush()
    stream = client.replay("orders", depth="64KB")
    stream.get(10)
    server.kill()
    batches = stream.batches()
    with pytest.raises(tt.Disconnected):
        for _ in batches:
            pass
    with pytest.raises(tt.Disconnected):
        stream.get(0)


@pytest.mark.slow
def test_publisher_with_store_over_reconnects_loses_and_duplicates_nothing(
    front: Front, server: RunningServer
) -> None:
    down, up, back = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)

    def wait_for_server() -> None:
        down.release()
        up.wait(30)

    client = front.make("c", server.uri, publish_store=tt.MemoryPublishStore())
    client.set_disconnect_handler(front.reconnecting(wait_for_server, back.release))
    client.connect()
    sequences: list[int | None] = []
    for _ in range(2):
        up.clear()
        for _ in range(300):
            sequences.append(client.publish("orders", b"%d" % len(sequences)))
        server.kill()
        assert down.acquire(timeout=30)
        for _ in range(50):  # into the store, without a server
            sequences.append(client.publish("orders", b"%d" % len(sequences)))
        assert client.unpersisted_count() >= 50
        server.start()
        up.set()
        assert back.acquire(timeout=30)
    client.publish_flush(timeout=30)
    assert client.unpersisted_count() == 0
    stored = [(message.sequence, message.data) for message in client.replay("orders")]
    assert stored == [(sequence, b"%d" % i) for i, sequence in enumerate(sequences)]


@pytest.mark.slow
def test_client_after_name_takeover_reconnects_only_outside_disconnect_handler(
    front: Front, server: RunningServer
) -> None:
    reported: list[BaseException] = []
    connected: list[object] = []
    first = front.make("c", server.uri)
    first.set_exception_listener(reported.append)
    first.set_disconnect_handler(front.reconnecting(lambda: None, lambda: connected.append(None)))
    first.connect()
    second = front.connect("c", server.uri)
    wait_until(lambda: bool(reported))
    (error,) = reported
    assert isinstance(error, tt.NameInUse)
    assert "outside of the disconnect handler" in str(error)
    assert (first.connected, second.connected, connected) == (False, True, [])
    first.connect()
    wait_until(lambda: not second.connected)
    first.publish("orders", b"1")
    first.publish_flush()


@pytest.mark.slow
def test_disconnect_handler_after_earlier_name_takeover_may_connect(
    front: Front, server: RunningServer
) -> None:
    reported: list[BaseException] = []
    up, back = threading.Event(), threading.Event()
    client = front.make("c", server.uri)
    client.set_exception_listener(reported.append)
    client.connect()
    front.connect("c", server.uri).close()
    wait_until(lambda: not client.connected)
    client.connect()
    client.set_disconnect_handler(front.reconnecting(lambda: up.wait(30), back.set))
    server.kill()
    server.start()
    up.set()
    assert back.wait(30)
    assert reported == []
    assert client.connected
