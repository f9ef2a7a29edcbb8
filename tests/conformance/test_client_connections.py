"""What holds when connections are lost: handlers, stores, reconnection."""

from __future__ import annotations

import threading

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tickertape.testing.server import RunningServer, wait_until


@pytest.mark.behaviour(13)
@pytest.mark.slow
def test_the_disconnect_handler_is_called_once_a_loss(front: Front, server: RunningServer) -> None:
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
def test_a_reading_that_was_cut_short_raises(front: Front, server: RunningServer) -> None:
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
def test_a_publisher_with_a_store_loses_and_doubles_nothing(front: Front, server: RunningServer) -> None:
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
        for _ in range(50):  # into the store, while there is no server
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
def test_a_displaced_client_does_not_fight_for_its_name_but_may_be_told_to_connect(
    front: Front, server: RunningServer
) -> None:
    told: list[BaseException] = []
    connected: list[object] = []
    first = front.make("c", server.uri)
    first.set_exception_listener(told.append)
    first.set_disconnect_handler(front.reconnecting(lambda: None, lambda: connected.append(None)))
    first.connect()
    second = front.connect("c", server.uri)
    wait_until(lambda: bool(told))
    (error,) = told
    assert isinstance(error, tt.NameInUse)
    assert "outside of the disconnect handler" in str(error)
    assert (first.connected, second.connected, connected) == (False, True, [])
    first.connect()
    wait_until(lambda: not second.connected)
    first.publish("orders", b"1")
    first.publish_flush()


@pytest.mark.slow
def test_a_handler_that_lost_a_connection_for_another_reason_may_connect_after_a_takeover(
    front: Front, server: RunningServer
) -> None:
    told: list[BaseException] = []
    up, back = threading.Event(), threading.Event()
    client = front.make("c", server.uri)
    client.set_exception_listener(told.append)
    client.connect()
    front.connect("c", server.uri).close()
    wait_until(lambda: not client.connected)
    client.connect()
    client.set_disconnect_handler(front.reconnecting(lambda: up.wait(30), back.set))
    server.kill()
    server.start()
    up.set()
    assert back.wait(30)
    assert told == []
    assert client.connected
