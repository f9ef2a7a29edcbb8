"""The fault proxy against a plain echo server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.helpers.listen_addresses import listening
from tickertape.base.errors import BadOption
from tickertape.testing import FaultProxy, wait_until
from tickertape.testing.fault_proxy import Fault

SECONDS = 20.0
QUIET = 0.05
"""A connection without data for this many seconds counts as quiet."""


class Echo:
    """An echo server. `ends` has the end of each connection: `eof` or `reset`."""

    def __init__(self, path: Path | None = None) -> None:
        self._listener, self.uri = listening(path)
        self.got = 0
        self.ends: SimpleQueue[str] = SimpleQueue()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(SECONDS)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    self.got += len(data)
                    connection.sendall(data)
            except OSError:
                self.ends.put("reset")
            else:
                self.ends.put("eof")


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy(echo.uri) as running:
        yield running


def dial(proxy: FaultProxy) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(proxy.uri.rsplit(":", 1)[1])), SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def take(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, data
        data += piece
    return data


def is_quiet(connection: socket.socket) -> bool:
    connection.settimeout(QUIET)
    try:
        return connection.recv(1) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(SECONDS)


def test_proxy_passes_bytes_unchanged_and_counts_each(proxy: FaultProxy, echo: Echo) -> None:
    body = bytes(range(256)) * 2_000
    with dial(proxy) as one, dial(proxy) as two:
        sender = threading.Thread(target=one.sendall, args=(body,))
        sender.start()
        assert take(one, len(body)) == body
        sender.join()
        two.sendall(b"two")
        assert take(two, 3) == b"two"
        assert (proxy.accepted, proxy.connections) == (2, 2)
        one.shutdown(socket.SHUT_WR)
        assert one.recv(1) == b""
    wait_until(lambda: proxy.connections == 0)
    assert echo.ends.get(timeout=SECONDS) == echo.ends.get(timeout=SECONDS) == "eof"
    assert proxy.to_server.passed_bytes == proxy.to_client.passed_bytes == len(body) + 3
    assert proxy.to_server.swallowed_bytes == 0


@pytest.mark.parametrize("fault", ["cut", "reset"])
def test_proxy_cut_or_reset_ends_the_connection_on_both_sides(
    proxy: FaultProxy, echo: Echo, fault: Fault
) -> None:
    with dial(proxy) as client:
        client.sendall(b"x")
        assert take(client, 1) == b"x"
        (proxy.cut if fault == "cut" else proxy.reset)()
        if fault == "cut":
            assert client.recv(1) == b""
        else:
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        assert echo.ends.get(timeout=SECONDS) == ("eof" if fault == "cut" else "reset")
    wait_until(lambda: proxy.connections == 0)
    with dial(proxy) as again:
        again.sendall(b"y")
        assert take(again, 1) == b"y"


@pytest.mark.parametrize("count", [0, 1, 7, 10])
@pytest.mark.parametrize("to_server", [True, False])
@pytest.mark.parametrize("fault", ["cut", "reset", "stall", "half_open"])
def test_proxy_fault_occurs_after_the_given_bytes_of_a_direction(
    proxy: FaultProxy, echo: Echo, to_server: bool, count: int, fault: Fault
) -> None:
    way = proxy.to_server if to_server else proxy.to_client
    occurred = way.after(count, fault)
    with dial(proxy) as client:
        client.sendall(b"0123456789")
        assert occurred.wait(SECONDS)
        assert way.passed_bytes == count
        if fault in ("stall", "half_open"):
            received = b"" if to_server else take(client, count)
            client.sendall(b"!")
            assert is_quiet(client) or to_server
            proxy.go()
        else:
            received = b""
        with contextlib.suppress(ConnectionResetError):
            if fault == "stall":
                client.shutdown(socket.SHUT_WR)
            while data := client.recv(100):
                received += data
        if fault == "stall":
            assert received == b"0123456789!"
        elif fault == "reset":
            assert b"0123456789"[:count].startswith(received)  # a reset may overtake earlier data
        else:
            assert len(received) <= count
    assert echo.got <= 11 if fault == "stall" else echo.got <= 10


def test_proxy_stall_delays_bytes_without_loss(proxy: FaultProxy, echo: Echo) -> None:
    with dial(proxy) as client:
        client.sendall(b"a")
        assert take(client, 1) == b"a"
        proxy.stall(to_server=False)
        client.sendall(b"b")
        wait_until(lambda: echo.got == 2)
        assert is_quiet(client)
        proxy.stall()
        client.sendall(b"c")
        assert is_quiet(client)
        assert echo.got == 2
        proxy.go()
        assert take(client, 2) == b"bc"


def test_proxy_stall_buffers_nothing_beyond_the_sockets(proxy: FaultProxy) -> None:
    with dial(proxy) as client:
        client.sendall(b"a")
        assert take(client, 1) == b"a"
        proxy.stall()
        client.settimeout(QUIET)
        with pytest.raises(TimeoutError):
            client.sendall(bytes(64 << 20))
        assert proxy.to_server.passed_bytes == 1


def test_proxy_half_open_swallows_bytes_and_reports_no_end(proxy: FaultProxy, echo: Echo) -> None:
    client = dial(proxy)
    with client:
        client.sendall(b"a")
        assert take(client, 1) == b"a"
        proxy.half_open()
        client.sendall(b"bc")
        wait_until(lambda: proxy.to_server.swallowed_bytes == 2)
        assert is_quiet(client)
    time.sleep(QUIET)
    assert echo.ends.empty()
    assert proxy.connections == 1
    with dial(proxy) as later:
        later.sendall(b"d")
        assert take(later, 1) == b"d"
    proxy.go()
    assert sorted(echo.ends.get(timeout=SECONDS) for _ in range(2)) == ["eof", "reset"]


def test_proxy_delays_and_slices_bytes(
    proxy: FaultProxy, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []
    sleep = asyncio.sleep

    async def noting(seconds: float) -> None:
        delays.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", noting)
    proxy.to_client.delay = 0.02
    proxy.to_client.slice_bytes = 2
    with dial(proxy) as client:
        client.sendall(b"012345")
        assert [client.recv(100) for _ in range(3)] == [b"01", b"23", b"45"]
        assert delays.count(0.02) == 3


def test_proxy_refuses_new_connections_until_accept(proxy: FaultProxy) -> None:
    with dial(proxy) as open_before:
        open_before.sendall(b"a")
        assert take(open_before, 1) == b"a"
        proxy.refuse()
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            dial(proxy)
        open_before.sendall(b"b")
        assert take(open_before, 1) == b"b"
        proxy.accept()
        proxy.accept()
        with dial(proxy) as after:
            after.sendall(b"c")
            assert take(after, 1) == b"c"


def test_proxy_without_server_resets_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with FaultProxy(f"tcp://127.0.0.1:{port}") as proxy:
        with pytest.raises(ConnectionResetError), dial(proxy) as client:
            client.recv(1)
        assert proxy.accepted == 1


def test_proxy_connects_to_server_on_unix_socket_and_rejects_http(tmp_path: Path) -> None:
    echo = Echo(tmp_path / "echo")
    with FaultProxy(echo.uri) as proxy, dial(proxy) as client:
        client.sendall(b"a")
        assert take(client, 1) == b"a"
        proxy.cut()
        assert client.recv(1) == b""
    echo.close()
    with pytest.raises(BadOption):
        FaultProxy("http://127.0.0.1:1")


def test_proxy_close_ends_connections_in_every_state(echo: Echo) -> None:
    with FaultProxy(echo.uri) as proxy:
        clients = []
        for fault in (proxy.cut, proxy.half_open, proxy.stall, lambda: None):
            clients.append(dial(proxy))
            wait_until(lambda: proxy.accepted == len(clients))
            fault()
    for client in clients:
        client.close()
    assert {echo.ends.get(timeout=SECONDS) for _ in clients} <= {"eof", "reset"}


def test_proxy_rejects_unknown_fault_and_schedules_nothing(proxy: FaultProxy) -> None:
    misspelt: Any = "resett"
    with pytest.raises(
        ValueError, match=r"'resett'\. Did you mean 'reset'\? Use cut, reset, stall or half_open"
    ):
        proxy.to_server.after(3, misspelt)
    with pytest.raises(ValueError, match="0 or more bytes"):
        proxy.to_server.after(-1, "cut")
    with dial(proxy) as client:
        client.sendall(b"12345")
        assert take(client, 5) == b"12345"


@pytest.mark.parametrize("count", [0, -1])
def test_proxy_rejects_slices_below_one_byte(proxy: FaultProxy, count: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        proxy.to_client.slice_bytes = count
    assert proxy.to_client.slice_bytes == 65_536
    with dial(proxy) as client:
        client.sendall(b"a")
        assert take(client, 1) == b"a"
