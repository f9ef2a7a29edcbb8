"""A Ctrl-C at any bytecode in `Client.connect`: the connection is dropped, and the next one works."""

from __future__ import annotations

import gc
import socket
import threading

import pytest

from tests.helpers.interrupts import Interrupt, interrupt_until_gone, interrupted_at
from tests.helpers.threads import in_a_thread_of_its_own
from tests.helpers.tiers import parts
from tests.unit.client.socket_server import SocketServer, socket_server
from tickertape.client.blocking.client import Client

PARTS = 12


@pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning"
)  # interrupted before any object held the socket
@pytest.mark.parametrize("part", parts(PARTS, 4))
@in_a_thread_of_its_own
def test_connect_interrupted_at_any_bytecode_can_be_retried(part: int) -> None:
    step, hit = part, True
    with socket_server() as server:
        while hit:
            client = Client("pricing-1", server.uri, connect=False)
            files = tuple(f"client/blocking/{name}.py" for name in ("driver", "sender", "connection"))
            hit = interrupted_at(step, client.connect, files)
            reconnect_and_publish(client, server, b"%d" % step, f"step {step}")
            step += PARTS
    gc.collect()
    assert step > 40


def reconnect_and_publish(client: Client, server: SocketServer, body: bytes, where: str) -> None:
    client._driver._connecting.acquire(
        blocking=False
    )  # a real signal does not interrupt the release of a lock in `with`
    client._driver._connecting.release()
    while client._driver.owns_lock():
        client._driver.lock.release()
    try:
        with client:
            client.connect()
            assert client.connected
            client.publish("orders", body)
            client.publish_flush()
            assert server.bodies()[-1] == body
    except BaseException as error:
        error.add_note(where)
        raise


def test_connect_interrupted_while_the_server_is_silent_can_be_retried(interrupts: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client("pricing-1", f"tcp://127.0.0.1:{silent.getsockname()[1]}", connect=False)

        def interrupt() -> None:
            connection, _ = silent.accept()
            interrupt_until_gone(connection)  # the client waits for the logon, or will soon

        for _ in range(3):
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(Interrupt):
                client.connect()
            thread.join()  # the client has hung up
            assert not client.connected
            assert client._driver.connection is None
        client.close()


def test_connection_with_logon_before_the_interrupt_is_kept(interrupts: None) -> None:
    with socket_server() as server, Client("pricing-1", server.uri) as client:
        link = client._driver.connection
        assert link is not None
        client._driver._abandon(link, Interrupt)  # type: ignore[arg-type]  # the argument is not used
        assert client.connected
        client.connect()
        client.publish("orders", b"1")
        client.publish_flush()
        assert server.bodies() == [b"1"]
