"""Errors of a client about peers that are not Tickertape servers or have another version."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import tickertape as tt
from tests.conformance.fronts import Front
from tests.helpers.wire import LOGGED_ON
from tickertape.testing import running_server
from tickertape.wire.connection import Connection


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The address of a peer that answers the first connection with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=run)
        thread.start()
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(30)


def test_http_server_is_reported_as_not_tickertape(front: Front) -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as uri:
        client = front.make("c", uri)
        with pytest.raises(
            tt.NotTickertape, match="Use the listen address of the server, not its admin address"
        ):
            client.connect()
        client.close()


def test_wire_version_not_offered_raises_bad_version(front: Front) -> None:
    with answering(b"".join(Connection("server").send(replace(LOGGED_ON, version=7)))) as uri:
        client = front.make("c", uri)
        with pytest.raises(tt.BadVersion, match="version 7"):
            client.connect()
        assert not client.connected
        client.close()


@pytest.mark.full
@pytest.mark.slow
def test_connect_to_admin_address_raises_and_names_the_cause(front: Front) -> None:
    with running_server() as server:
        client = front.make("c", server.admin_url.replace("http://", "tcp://"))
        with pytest.raises(
            tt.NotTickertape, match="Use the listen address of the server, not its admin address"
        ):
            client.connect()
        client.close()


def test_connect_to_silent_address_names_the_address(front: Front) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        client = front.make("c", uri)
        with pytest.raises(tt.TimedOut, match=f"no Tickertape server answered at '{uri}' within 0.2 s"):
            client.connect(timeout=0.2)
        client.close()
