"""Heartbeats between both clients and a real server, through a proxy that can fall silent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tickertape.testing import FaultProxy
from tickertape.testing.server import RunningServer, wait_until

INTERVAL = 0.4
"""Tests of the detection time use simulated time: `simulation/test_silent_stalls.py`."""
SECONDS = 20.0

pytestmark = pytest.mark.slow


@pytest.fixture
def proxy(uri: str) -> Iterator[FaultProxy]:
    with FaultProxy(uri) as running:
        yield running


def removed(server: RunningServer, name: str) -> Callable[[], bool]:
    """Return a check whether the event log has this client as silent."""

    def look() -> bool:
        lines = [line for line in server.errors().splitlines() if f"client={name} " in line]
        return any(" connection_close " in line and "reason=heartbeat" in line for line in lines)

    return look


@pytest.mark.behaviour(30)
def test_half_open_connection_is_closed_by_client_and_server(
    front: Front, proxy: FaultProxy, shared_server: RunningServer, name: str, topic: str
) -> None:
    lost = threading.Event()
    client = front.make(name, proxy.uri)
    client.set_disconnect_handler(lambda _: lost.set())
    client.set_heartbeat(INTERVAL)
    client.connect()
    stream = client.subscribe(topic)
    waiting = threading.Thread(target=lambda: list(stream))
    waiting.start()
    time.sleep(1.2 * INTERVAL)
    proxy.half_open()
    assert lost.wait(SECONDS)
    waiting.join(SECONDS)
    assert stream.end_reason == "heartbeat"
    assert isinstance(stream.end_error, tt.HeartbeatMissed)
    with pytest.raises(tt.Disconnected, match=r"it sent nothing for 0\.8 seconds"):
        client.publish(topic, b"1")
    wait_until(removed(shared_server, name), SECONDS)
    client.connect()
    client.publish(topic, b"1")
    client.publish_flush()


@pytest.mark.behaviour(30)
def test_idle_connection_with_heartbeats_stays_open(
    front: Front, proxy: FaultProxy, name: str, topic: str
) -> None:
    lost: list[object] = []
    client = front.make(name, proxy.uri)
    client.set_disconnect_handler(lost.append)
    client.set_heartbeat("300ms")
    client.connect()
    sent, back = proxy.to_server.passed_bytes, proxy.to_client.passed_bytes
    time.sleep(2.1)
    assert lost == []
    assert client.connected
    # about seven heartbeats each, of a few bytes
    assert 32 * 3 < proxy.to_server.passed_bytes - sent < 64 * 9
    assert 32 * 3 < proxy.to_client.passed_bytes - back < 64 * 9
    client.publish(topic, b"1")
    client.publish_flush()


@pytest.mark.behaviour(30)
def test_heartbeat_of_connected_client_can_be_changed(
    front: Front, proxy: FaultProxy, shared_server: RunningServer, name: str
) -> None:
    client = front.connect(name, proxy.uri)
    client.set_heartbeat("1h")
    client.set_heartbeat(None)
    back = proxy.to_client.passed_bytes
    time.sleep(0.3)
    assert proxy.to_client.passed_bytes == back
    client.set_heartbeat(0.15)
    wait_until(lambda: proxy.to_client.passed_bytes > back + 32)
    proxy.half_open()
    wait_until(lambda: not client.connected)
    wait_until(removed(shared_server, name), SECONDS)


@pytest.mark.behaviour(30)
def test_heartbeat_idle_applies_to_the_client_and_not_to_the_server(
    front: Front, proxy: FaultProxy, shared_server: RunningServer, name: str
) -> None:
    client = front.make(name, proxy.uri)
    client.set_heartbeat(0.2, idle=30)
    client.connect()
    proxy.half_open()
    wait_until(removed(shared_server, name), SECONDS)
    assert client.connected
    proxy.go()
    wait_until(lambda: not client.connected)


def test_heartbeat_with_invalid_interval_or_idle_raises(front: Front, name: str, uri: str) -> None:
    client = front.make(name, uri)
    for interval in (0.05, "99ms", 3_601, "2h", -1, "soon", float("inf")):
        with pytest.raises(tt.BadOption):
            client.set_heartbeat(interval)
    for idle in (0.5, "1s", "soon"):
        with pytest.raises(tt.BadOption):
            client.set_heartbeat(1, idle=idle)
    with pytest.raises(tt.BadOption, match="Invalid idle '3': it requires an interval"):
        client.set_heartbeat(None, idle=3)
    client.connect()
    with pytest.raises(tt.BadOption):
        client.set_heartbeat(0.01)
    assert client.connected


@pytest.mark.behaviour(30)
def test_logon_at_silent_server_raises_heartbeat_missed(front: Front, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = front.make(name, f"tcp://127.0.0.1:{mute.getsockname()[1]}")
        client.set_heartbeat(0.2)
        with pytest.raises(tt.HeartbeatMissed, match=r"for 0\.4 seconds"):
            client.connect(timeout=None)


def test_large_message_in_transit_counts_as_heartbeat(
    front: Front, proxy: FaultProxy, name: str, topic: str
) -> None:
    """The message takes many intervals in each direction, without a heartbeat in between."""
    client = front.make(name, proxy.uri)
    lost: list[object] = []
    client.set_disconnect_handler(lost.append)
    client.set_heartbeat(0.3)
    client.connect()
    stream = client.bookmark_subscribe(topic, tt.NOW)
    for way in (proxy.to_server, proxy.to_client):
        way.slice_bytes, way.delay = 20_000, 0.04
    client.publish(topic, bytes(300_000))
    assert len(stream.get(SECONDS).data) == 300_000
    client.publish_flush(timeout=SECONDS)
    assert lost == []


def test_connection_with_one_dead_direction_is_closed(
    front: Front, proxy: FaultProxy, shared_server: RunningServer, name: str
) -> None:
    client = front.make(name, proxy.uri)
    client.set_heartbeat(0.2)
    client.connect()
    proxy.stall(to_client=False)
    wait_until(lambda: not client.connected, SECONDS)  # the server closes the connection
    with pytest.raises(
        tt.Disconnected, match=r"it sent nothing for 0\.4 seconds \(heartbeat interval 0\.2 seconds\)"
    ):
        client.publish_flush()
    wait_until(removed(shared_server, name), SECONDS)


def test_heartbeat_thread_ends_with_the_connection(uri: str, name: str, tmp_path: Path) -> None:
    with FaultProxy(uri) as proxy:
        before = {thread.name for thread in threading.enumerate()}
        client = tt.Client(name, proxy.uri, connect=False)
        client.set_heartbeat(60)
        for end in (proxy.cut, proxy.reset):
            client.connect()
            wait_until(lambda: sum("beats" in thread.name for thread in threading.enumerate()) >= 1)
            end()
            wait_until(lambda: {thread.name for thread in threading.enumerate()} <= before)
        client.connect()
        client.set_heartbeat(None)
        wait_until(lambda: not any(f"beats {proxy.uri}" in thread.name for thread in threading.enumerate()))
        client.set_heartbeat(60)
        client.close()
        wait_until(lambda: {thread.name for thread in threading.enumerate()} <= before)


# -- busy handlers ------------------------------------------------------------------------------------


@pytest.mark.behaviour(30)
def test_blocking_handler_does_not_lose_the_connection(uri: str, name: str, topic: str) -> None:
    lost: list[object] = []
    client = tt.Client(name, uri, connect=False)
    client.set_disconnect_handler(lost.append)
    client.set_heartbeat(0.4)
    client.connect()
    begun = threading.Event()
    handled: list[bytes] = []

    def handle(message: tt.Message) -> None:
        begun.set()
        if not handled:
            time.sleep(2.0)
        handled.append(message.data)

    client.bookmark_subscribe(topic, tt.NOW, on_message=handle)
    client.publish(topic, b"first")
    assert begun.wait(SECONDS)
    for number in range(200):
        client.publish(topic, b"%d" % number)
        time.sleep(0.005)
    wait_until(lambda: len(handled) == 201, SECONDS)
    assert lost == []
    client.publish_flush()
    client.close()


def test_dead_server_is_detected_while_a_handler_blocks(uri: str, name: str, topic: str) -> None:
    begun, go_on, lost = threading.Event(), threading.Event(), threading.Event()

    def handle(_message: tt.Message) -> None:
        begun.set()
        go_on.wait(SECONDS)

    with FaultProxy(uri) as proxy:
        client = tt.Client(name, proxy.uri, connect=False)
        client.set_disconnect_handler(lambda _: lost.set())
        client.set_heartbeat(0.2)
        client.connect()
        client.subscribe(topic, on_message=handle)
        client.publish(topic, b"1")
        assert begun.wait(SECONDS)
        proxy.half_open()
        for _ in range(2):
            with pytest.raises(tt.Disconnected):
                client.publish_flush(timeout=None, level="processed")
        assert not lost.is_set()
        assert not client.connected
        with pytest.raises(tt.TimedOut, match=r"a handler .* did not return .*\. Return from the handler"):
            client.connect(timeout=0.05)
        go_on.set()
        client.connect()
        client.publish_flush()
        assert lost.wait(SECONDS)
        client.close()


# -- HA clients ---------------------------------------------------------------------------------------


def make_ha(front: Front, name: str, uri: str, **options: Any) -> tt.HAClient:
    return front.make_ha(name, **{"servers": [uri], "reconnect_delay": 0.05, **options})


@pytest.mark.behaviour(30)
def test_ha_client_with_dead_connection_reconnects(
    front: Front, proxy: FaultProxy, name: str, topic: str
) -> None:
    client = make_ha(front, name, proxy.uri, heartbeat=0.2)
    client.connect_and_logon(timeout=SECONDS)
    client.publish(topic, b"1")
    client.publish_flush()
    proxy.half_open()
    client.publish(topic, b"2")
    wait_until(lambda: proxy.accepted == 2, SECONDS)
    client.publish_flush(timeout=SECONDS)
    assert client.unpersisted_count() == 0
    assert [message.data for message in client.replay(topic)] == [b"1", b"2"]


@pytest.mark.behaviour(30)
def test_set_heartbeat_on_connected_ha_client_raises(front: Front, proxy: FaultProxy, name: str) -> None:
    client = make_ha(front, name, proxy.uri)
    client.set_heartbeat("1h")
    with pytest.raises(tt.BadOption):
        client.set_heartbeat(0.01)
    client.set_heartbeat(0.2, idle=1)
    client.connect_and_logon(timeout=SECONDS)
    with pytest.raises(tt.UsageError, match="Cannot change the heartbeat"):
        client.set_heartbeat(0.3)
    assert client.connected
    back = proxy.to_client.passed_bytes
    wait_until(lambda: proxy.to_client.passed_bytes > back, SECONDS)
    with pytest.raises(tt.BadOption):
        make_ha(front, name, proxy.uri, heartbeat="1ms")


def test_ha_client_skips_silent_server(front: Front, uri: str, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        servers = [f"tcp://127.0.0.1:{mute.getsockname()[1]}", uri]
        client = make_ha(front, name, uri, servers=servers, heartbeat=0.2)
        client.connect_and_logon(timeout=SECONDS)
        assert client.connected
        with mute.accept()[0] as tried:
            assert tried.recv(1), "the client tried the first server"
