"""Connections with TLS on a real instance: limits before the logon, and paused reads."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

import tickertape as tt
from tests.helpers.certificates import Authority
from tests.helpers.renegotiation import LIBRARY, RenegotiatingClient
from tickertape.base.errors import LogonTimeout, TlsFailed
from tickertape.security.contexts import server_context
from tickertape.server import engine_driver as instance_module
from tickertape.server.config.config import Config, InstanceConfig
from tickertape.server.engine_driver import EngineDriver
from tickertape.server.network.connection import listen
from tickertape.server.network.tls_connection import TlsClientConnection
from tickertape.server.startup import open_instance

SECONDS = 20.0


class Running:
    """An instance that listens with TLS at `uri`, on a separate thread."""

    def __init__(self, data: Path, authority: Authority) -> None:
        self.ca = authority.ca
        self.uri = ""
        self.peers: list[TlsClientConnection] = []
        self._context = server_context(*authority.issue("127.0.0.1"), None)
        self._opened = open_instance(Config(instance=InstanceConfig(data=str(data))))
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.loop: asyncio.AbstractEventLoop
        self.instance: EngineDriver

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(SECONDS)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.instance.close)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        self._opened.executor.close()
        self._opened.disk.close_all()

    def call(self, work: Callable[[], object]) -> None:
        """Run a call on the loop of the instance, and wait until it is done."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(work)
        self.loop.call_soon_threadsafe(done.set)
        assert done.wait(SECONDS)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(self.uri.rpartition(":")[2])), SECONDS)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.instance = EngineDriver(self._opened, self.loop)
        server, self.uri = await listen("tls://127.0.0.1:0", self._peer)
        self.instance.flush()
        self._ready.set()
        assert await self.instance.stopped is None
        server.close()
        self.instance.disconnect_all()
        self.instance.release()
        await self.instance.empty.wait()

    def _peer(self) -> TlsClientConnection:
        self.peers.append(TlsClientConnection(self.instance, self._context))
        return self.peers[-1]


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    made = Running(tmp_path / "data", Authority(tmp_path))
    made.start()
    try:
        yield made
    finally:
        made.stop()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.slow
def test_tls_handshake_has_the_logon_timeout(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_module, "logon_seconds_max", 0.3)
    stalled = [running.connect() for _ in range(20)]
    for number, connection in enumerate(stalled):
        connection.sendall(b"\x16\x03\x01\x02\x00\x01"[:number])
    until(lambda: len(running.instance.connections) == 20)  # counted like any other connection
    for connection in stalled:
        assert connection.recv(100) == b""
        connection.close()
    assert running.instance.broker.statistics.ended[LogonTimeout.code] == 20
    until(lambda: not running.instance.connections)


def test_completed_handshake_without_logon_gets_no_extra_time(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_module, "logon_seconds_max", 0.1)
    context = ssl.create_default_context(cafile=running.ca)
    connection = context.wrap_socket(
        running.connect(), server_hostname="127.0.0.1", suppress_ragged_eofs=False
    )
    with connection:
        assert b"logon_timeout" in connection.recv(1000)  # sent in a frame over TLS
        assert connection.recv(1000) == b""  # closed as TLS requires


def test_paused_tls_connection_decrypts_nothing_and_loses_nothing(running: Running) -> None:
    with tt.Client("writer", running.uri, tls=tt.TLS(ca=running.ca)) as client:
        (peer,) = running.peers
        running.call(lambda: peer.set_reading(enabled=False, reason="scheduler"))
        bodies = [bytes([number]) * 50_000 for number in range(200)]  # 10 MB: more than all buffers hold
        client.publish_batch("orders", bodies[:20])
        with pytest.raises(tt.TimedOut):
            client.publish_flush(0.2)
        # The system decides how many more bytes it buffers before the server reads.
        publishing = threading.Thread(target=client.publish_batch, args=("orders", bodies[20:100]))
        publishing.start()
        assert running.instance.broker.statistics.persisted_messages == 0
        running.call(lambda: peer.set_reading(enabled=True, reason="scheduler"))
        publishing.join(SECONDS)
        assert not publishing.is_alive()
        client.publish_flush(SECONDS)
        client.publish_batch("orders", bodies[100:])
        client.publish_flush(SECONDS)
        assert [message.data for message in client.replay("orders")] == bodies


def test_pause_between_frames_of_one_tls_read_delivers_nothing_early(running: Running) -> None:
    with tt.Client("writer", running.uri, tls=tt.TLS(ca=running.ca)) as client:
        (peer,) = running.peers
        took, pauses = peer._decode, []

        def pausing(nbytes: int) -> None:
            pauses.append(nbytes if not peer.unread_for("scheduler") else -1)
            took(nbytes)
            peer.set_reading(enabled=False, reason="scheduler")
            running.loop.call_later(0.001, lambda: peer.set_reading(enabled=True, reason="scheduler"))

        peer._decode = pausing  # type: ignore[method-assign]
        bodies = [bytes([number]) * 9_000 for number in range(250)]
        client.publish_batch("orders", bodies)
        client.publish_flush(SECONDS)
        assert len(pauses) > 3
        assert min(pauses) > 0  # no bytes were delivered in a pause
        assert [message.data for message in client.replay("orders")] == bodies


def test_alert_for_a_second_handshake_is_sent_at_once(running: Running) -> None:
    """OpenSSL answers each attempt with an alert, which no other limit counts."""
    connection = running.connect()
    try:
        client = RenegotiatingClient(connection)
    except OSError:
        pytest.skip(f"no {LIBRARY}")
    with client:
        until(lambda: bool(running.peers) and running.peers[0]._channel.established)
        client.renegotiate()
        assert client.hears_alert()
        assert not running.instance.broker.statistics.ended, "the alert is not sent only with the goodbye"


@pytest.mark.parametrize("method", ["GET", "DELETE", "CONNECT"])
def test_http_request_gets_the_same_answer_for_every_split(running: Running, method: str) -> None:
    request = f"{method} /stats HTTP/1.1\r\nHost: h\r\n\r\n".encode()
    answers = {split_answer(running, request, at) for at in range(1, 12)}
    assert len(answers) == 1
    assert answers.pop().startswith(b"HTTP/1.1 400 Bad Request\r\n")


def split_answer(running: Running, data: bytes, at: int) -> bytes:
    """Return the answer to `data`, after the server has read the first `at` bytes alone."""
    before = len(running.peers)
    with running.connect() as connection:
        connection.sendall(data[:at])
        until(lambda: len(running.peers) > before and running.peers[-1]._read_bytes == at)
        connection.sendall(data[at:])
        return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.mark.parametrize("said", [b"P", b"GE"])
def test_start_of_an_http_method_alone_is_not_an_error(running: Running, said: bytes) -> None:
    with running.connect() as connection:
        connection.sendall(said)
        until(lambda: bool(running.peers) and running.peers[0]._read_bytes == len(said))
        assert running.instance.broker.statistics.ended[TlsFailed.code] == 0
        connection.sendall(b"X")  # no method continues so
        assert connection.recv(100) == b""
    assert running.instance.broker.statistics.ended[TlsFailed.code] == 1
