"""Both clients over TLS with a scripted server: handshakes and ends of connections."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import tickertape as tt
from tests.conformance.fronts import BOTH_FRONTS, Front, front_fixture
from tests.helpers.certificates import Authority
from tickertape.security.contexts import server_context
from tickertape.security.tls_channel import TlsChannel
from tickertape.wire.commands import Command, Goodbye, LoggedOn
from tickertape.wire.frames import encode_frame

SECONDS = 10.0


front = front_fixture(*BOTH_FRONTS)


class Played:
    """A scripted server for one connection. `outcome` is the result or error of the script."""

    def __init__(self, directory: Path, play: Callable[[socket.socket, ssl.SSLContext], object]) -> None:
        authority = Authority(directory)
        self.tls = tt.TLS(ca=authority.ca)
        self.outcome: object = None
        self._context = server_context(*authority.issue("127.0.0.1"), None)
        self._play = play
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(SECONDS)
        self.uri = f"tls://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> object:
        self._thread.join(2 * SECONDS)
        assert not self._thread.is_alive()
        return self.outcome

    def _run(self) -> None:
        with self._listener, self._listener.accept()[0] as connection:
            connection.settimeout(SECONDS)
            try:
                self.outcome = self._play(connection, self._context)
            except OSError as error:
                self.outcome = error


def bytes_of(command: Command) -> bytes:
    return b"".join(bytes(part) for part in encode_frame(command))


LOGGED_ON = LoggedOn(
    version=0, software="played", instance="i", journal="0" * 32, epoch=1, publisher=1, last_persisted=0
)


def log_on(connection: ssl.SSLSocket) -> None:
    connection.recv(65536)
    connection.sendall(bytes_of(LOGGED_ON))


def test_data_with_the_end_of_the_handshake_is_read(front: Front, tmp_path: Path) -> None:
    def play(connection: socket.socket, context: ssl.SSLContext) -> None:
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # the server sends the last message of the handshake
        channel = TlsChannel(context, server=True)
        while not channel.shake():
            connection.sendall(channel.take())
            channel.feed(connection.recv(65536))
        connection.sendall(
            channel.take() + channel.encrypted(bytes_of(Goodbye(code="not_ready", text="full")))
        )
        while connection.recv(65536):
            pass

    server = Played(tmp_path, play)
    with pytest.raises(tt.NotReady, match="full"):
        front.connect("desk", server.uri, tls=server.tls, timeout=SECONDS / 2)
    server.join()


def test_client_close_sends_the_tls_close_notification(front: Front, tmp_path: Path) -> None:
    def play(connection: socket.socket, context: ssl.SSLContext) -> bytes:
        with context.wrap_socket(connection, server_side=True, suppress_ragged_eofs=False) as secure:
            log_on(secure)
            received = b"."
            while data := secure.recv(65536):  # raises without a close notification
                received += data
            return received[:1]

    server = Played(tmp_path, play)
    client = front.connect("desk", server.uri, tls=server.tls)
    client.close()
    assert server.join() == b"."


def test_tls_close_notification_of_the_server_raises_disconnected(front: Front, tmp_path: Path) -> None:
    def play(connection: socket.socket, context: ssl.SSLContext) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            log_on(secure)
            with contextlib.suppress(OSError):  # the client may not answer
                secure.unwrap().close()

    server = Played(tmp_path, play)
    client = front.connect("desk", server.uri, tls=server.tls)
    server.join()

    def use_it() -> None:
        client.publish("orders", b"1")  # raises if the end is already known
        client.publish_flush(SECONDS)

    with pytest.raises(tt.Disconnected, match="was closed by the server"):
        use_it()


def test_tls_close_notification_with_last_data_is_a_clean_close(front: Front, tmp_path: Path) -> None:
    def play(connection: socket.socket, context: ssl.SSLContext) -> None:
        channel = TlsChannel(context, server=True)
        while not channel.shake():
            connection.sendall(channel.take())
            channel.feed(connection.recv(65536))
        while not channel.read_into(memoryview(bytearray(65536))):
            channel.feed(connection.recv(65536))
        connection.sendall(channel.encrypted(bytes_of(LOGGED_ON)) + channel.farewell())

    server = Played(tmp_path, play)

    def use_it() -> None:
        client = front.connect("desk", server.uri, tls=server.tls)
        server.join()
        client.publish("orders", b"1")
        client.publish_flush(SECONDS)

    with pytest.raises(tt.Disconnected, match="was closed by the server"):
        use_it()


def test_connect_to_silent_tls_server_times_out(front: Front, tmp_path: Path) -> None:
    gone = threading.Event()

    def play(connection: socket.socket, context: ssl.SSLContext) -> bool:
        return gone.wait(SECONDS)

    server = Played(tmp_path, play)
    with pytest.raises(tt.TimedOut, match=r"within 0\.2 s"):
        front.connect("desk", server.uri, tls=server.tls, timeout=0.2)
    gone.set()
    assert server.join() is True


def test_connection_closed_in_tls_handshake_raises_tls_failed(front: Front, tmp_path: Path) -> None:
    server = Played(tmp_path, lambda connection, _: connection.recv(65536)[:1])
    with pytest.raises(tt.TlsFailed, match="the server closed the connection during the TLS handshake"):
        front.connect("desk", server.uri, tls=server.tls)
    assert server.join() == b"\x16"
