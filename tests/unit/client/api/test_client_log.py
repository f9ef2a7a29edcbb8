"""The log of clients: connections, lost connections and attempts to reconnect."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

import tickertape as tt
from tests.unit.client.socket_server import SocketServer, socket_server

NAME = "tickertape.client"


@pytest.fixture
def server() -> Iterator[SocketServer]:
    with socket_server() as running:
        yield running


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(one.levelname, one.getMessage()) for one in caplog.records if one.name == NAME]


def test_client_connection_and_loss_are_logged(
    server: SocketServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, NAME)
    lost = threading.Event()
    with tt.Client("desk", server.uri) as client:
        client.set_disconnect_handler(lambda _: lost.set())
        server.drop()
        assert lost.wait(20)
    connected, gone = lines(caplog)
    assert connected == ("INFO", f"Client 'desk' is connected to {server.uri}.")
    assert gone[0] == "WARNING"
    assert gone[1].startswith(f"Client 'desk' lost its connection to {server.uri}. Cause: ")
    assert gone[1].endswith(" Call connect() again.")


def test_loss_of_asyncio_client_is_logged(server: SocketServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, NAME)

    async def run() -> None:
        lost = asyncio.Event()
        async with tt.AsyncClient("desk", server.uri) as client:
            client.set_disconnect_handler(lambda _: lost.set())
            server.drop()
            await lost.wait()

    asyncio.run(run())
    ((level, text),) = lines(caplog)
    assert level == "WARNING"
    assert text.startswith("Client 'desk' lost its connection")


def test_clean_close_logs_no_loss(server: SocketServer, caplog: pytest.LogCaptureFixture) -> None:
    with tt.Client("desk", server.uri):
        pass
    assert lines(caplog) == []


def test_attempts_are_logged_with_the_next_delay(
    server: SocketServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, NAME)
    dead = "tcp://127.0.0.1:1"
    with tt.HAClient("desk", servers=[dead, server.uri], reconnect_delay=0.01) as client:
        client.connect_and_logon(timeout=20)
    (first, attempt), *rest = lines(caplog)
    assert first == "WARNING"
    assert attempt.startswith(f"Client 'desk' could not connect to {dead}. Next attempt in 0")
    assert f" s at {server.uri}. Cause: " in attempt
    assert "refused" in attempt
    assert ("INFO", f"Client 'desk' is connected to {server.uri}.") in rest
    assert ("INFO", f"Client 'desk' has resubscribed at {server.uri}.") in rest


def test_loss_of_ha_client_is_logged_with_an_automatic_reconnect(
    server: SocketServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, NAME)
    back = threading.Event()
    with tt.HAClient("desk", servers=[server.uri], reconnect_delay=0.01) as client:
        client.add_connection_state_listener(
            lambda state: back.set() if state is tt.ConnectionState.LOGGED_ON else None
        )
        server.drop()
        assert back.wait(20)
    level, text = lines(caplog)[0]
    assert level == "WARNING"
    assert text.startswith(f"Client 'desk' lost its connection to {server.uri}. Cause: ")
    assert text.endswith(" The client reconnects automatically.")
    assert "connect()" not in text
