"""Heartbeats of suspended processes: clients and servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tickertape as tt
from tests.helpers.processes import source_environment
from tickertape.testing.server import RunningServer, running_server, wait_until

SECONDS = 30.0
INTERVAL = 0.4

pytestmark = pytest.mark.slow

CLIENT = """
import sys, time, asyncio
import tickertape as tt
uri, kind = sys.argv[1:]
if kind == "blocking":
    client = tt.Client("stopped", uri, connect=False)
    client.set_heartbeat(0.4)
    client.connect()
    print("up", flush=True)
    while client.connected:
        time.sleep(0.01)
else:
    async def main():
        client = tt.AsyncClient("stopped", uri)
        client.set_heartbeat(0.4)
        await client.connect()
        print("up", flush=True)
        while client.connected:
            await asyncio.sleep(0.01)
    asyncio.run(main())
print("lost", flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data") as running:
        yield running


def closes(server: RunningServer, name: str) -> list[str]:
    lines = server.errors().splitlines()
    return [line for line in lines if " connection_close " in line and f"client={name} " in line]


@pytest.mark.behaviour(30)
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_suspended_client_is_disconnected(server: RunningServer, kind: str) -> None:
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, server.uri, kind],
        env=source_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    with client:
        assert client.stdout.readline() == "up\n"
        time.sleep(2 * INTERVAL)
        assert closes(server, "stopped") == []
        os.kill(client.pid, signal.SIGSTOP)
        wait_until(lambda: bool(closes(server, "stopped")), SECONDS)
        assert "reason=heartbeat " in closes(server, "stopped")[0]
        assert " warning " in closes(server, "stopped")[0].lower()
        os.kill(client.pid, signal.SIGCONT)
        assert client.stdout.readline() == "lost\n"


@pytest.mark.full
@pytest.mark.parametrize("seconds", [0.6, 1.5])
def test_suspended_server_keeps_waiting_clients_connected(server: RunningServer, seconds: float) -> None:
    """Their heartbeats wait in the sockets of the server."""
    with tt.Client("waits", server.uri, connect=False) as client:
        client.set_heartbeat(0.4, idle=30)
        client.connect()
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(server.pid, signal.SIGCONT)
        client.publish("orders", b"1")
        client.publish_flush()
        time.sleep(1.0)
        assert client.connected
    assert "reason=heartbeat" not in server.errors()


@pytest.mark.behaviour(30)
def test_suspended_server_raises_heartbeat_missed(server: RunningServer) -> None:
    with tt.Client("leaves", server.uri, connect=False) as client:
        client.set_heartbeat(INTERVAL)
        client.connect()
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(tt.HeartbeatMissed):
            client.publish_flush(timeout=None, level="processed")
        os.kill(server.pid, signal.SIGCONT)
        client.connect()
        client.publish_flush()


@pytest.mark.full
def test_draining_server_sends_heartbeats(tmp_path: Path) -> None:
    """During the drain the server must not appear dead to a slow subscriber."""
    with running_server(tmp_path / "data") as server:
        with tt.Client("reader", server.uri, connect=False) as client:
            client.set_heartbeat(0.4)
            client.connect()
            client.publish_batch("orders", [bytes(20_000)] * 300)
            client.publish_flush()
            stream = client.bookmark_subscribe("orders", tt.EPOCH, depth="64KB")
            taken = len(stream.get(SECONDS).data)
            os.kill(server.pid, signal.SIGTERM)
            for _ in range(50):
                taken += len(stream.get(SECONDS).data)
                time.sleep(0.03)
            assert client.connected
            for message in stream:
                taken += len(message.data)
            assert stream.end_reason == "not_ready"
        assert taken == 300 * 20_000
        assert server.wait() == 0


# -- client names -------------------------------------------------------------------------------------


@pytest.mark.behaviour(35)
def test_client_names_are_not_exclusive_without_persistent_topics(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", "[journal]\ntopic = []\n") as server:
        users = (None, None, "ann", "bob")
        clients = [tt.Client("twin", server.uri, user=user) for user in users]
        streams = [client.subscribe("orders") for client in clients]
        for number, client in enumerate(clients):
            client.publish("orders", b"%d" % number)
            client.publish_flush(level="processed")
        for stream in streams:
            assert [stream.get(SECONDS).data for _ in clients] == [b"0", b"1", b"2", b"3"]
        clients[0].close()
        clients[1].publish("orders", b"4")
        assert streams[3].get(SECONDS).data == b"4"
        for client in clients:
            client.close()
        assert "name_in_use" not in server.errors()


@pytest.mark.behaviour(35)
def test_clients_without_users_take_over_the_name(
    server: RunningServer,
) -> None:
    with tt.Client("twin", server.uri) as first, tt.Client("twin", server.uri) as second:
        wait_until(lambda: not first.connected, SECONDS)
        assert second.connected
        wait_until(lambda: bool(closes(server, "twin")), SECONDS)
        (close,) = closes(server, "twin")
        assert "reason=name_in_use " in close
        assert "took over the client name" in close


@pytest.mark.behaviour(35)
def test_name_in_use_by_another_user_is_refused(server: RunningServer) -> None:
    with tt.Client("twin", server.uri, user="ann") as first:
        for user in ("bob", None):
            with pytest.raises(tt.NameInUse, match="in use by another user"):
                tt.Client("twin", server.uri, user=user)
        assert first.connected
        first.publish_flush()
        wait_until(lambda: server.errors().count("reason=name_in_use") == 2, SECONDS)
        with tt.Client("twin", server.uri, user="ann") as second:
            wait_until(lambda: not first.connected, SECONDS)
            assert second.connected
            wait_until(lambda: bool(closes(server, "twin")), SECONDS)
    assert "reason=name_in_use " in closes(server, "twin")[0]
