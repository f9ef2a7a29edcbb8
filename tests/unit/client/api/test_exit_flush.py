"""Unclosed clients at the end of the program: messages are sent or counted."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import tickertape as tt
from tests.unit.client.socket_server import SocketServer, socket_server
from tickertape.client.api import exit_flush as exits
from tickertape.client.api.exit_flush import ProgramEnd
from tickertape.client.publish_store import FilePublishStore, HybridPublishStore, MemoryPublishStore

MESSAGES = [b"%d" % i for i in range(500)]


@pytest.fixture
def server() -> Iterator[SocketServer]:
    with socket_server() as running:
        yield running


def publish_all(client: tt.Client) -> None:
    for body in MESSAGES:
        client.publish("orders", body)


@pytest.mark.parametrize("store", [None, MemoryPublishStore])
def test_unclosed_client_is_flushed_at_exit(server: SocketServer, store: type | None) -> None:
    client = tt.Client("a", server.uri, publish_store=None if store is None else store())
    publish_all(client)
    assert client._driver.end_with_program(20) == ProgramEnd("a", 0)
    assert server.bodies() == MESSAGES
    assert client._driver.end_with_program(20) is None, "the client is closed"


def test_unclosed_ha_client_is_flushed_at_exit(server: SocketServer) -> None:
    client = tt.HAClient("a", servers=server.uri)
    client.connect_and_logon()
    publish_all(client)
    assert client._driver.end_with_program(20) == ProgramEnd("a", 0)
    assert server.bodies() == MESSAGES


def test_unsent_messages_at_exit_are_counted_and_reported_to_the_listener(
    server: SocketServer, capsys: pytest.CaptureFixture[str]
) -> None:
    errors: list[BaseException] = []
    for listener in (None, errors.append):
        client = tt.Client("a", server.uri, publish_store=MemoryPublishStore())
        client.set_exception_listener(listener)
        server.mute = True
        publish_all(client)
        server.drop()
        with pytest.raises(tt.Disconnected):
            client.publish_flush()
        assert client._driver.end_with_program(20) == ProgramEnd("a", 500)
        assert capsys.readouterr().err == ""
    assert ["500 message(s)" in str(error) for error in errors] == [True]


class BrokenStore(MemoryPublishStore):
    """A defective publish store of an application."""

    def unpersisted_count(self) -> int:
        """Raise `RuntimeError`."""
        raise RuntimeError("of the application")


def test_exit_flush_continues_after_a_client_that_raises(server: SocketServer) -> None:
    broken = tt.Client("broken", server.uri, publish_store=BrokenStore())
    clients = [tt.Client(f"a{i}", server.uri) for i in range(3)]
    for client in clients:
        client.publish("orders", client.name.encode())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with pytest.raises(RuntimeError, match="of the application"):
            exits.close_all()
    assert [client._driver.core.logon.closed for client in clients] == [True] * 3
    broken._publishing.unanswered_count = lambda: 0  # type: ignore[method-assign]
    broken.close()


def test_unanswered_messages_are_counted_with_the_lock_held(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned: list[bool] = []
    for at_end in (False, True):
        client = tt.Client("a", server.uri)
        client.set_exception_listener(lambda _: None)
        server.mute = True
        client.publish("orders", b"1")

        def count(client: tt.Client = client) -> int:
            owned.append(client._driver.owns_lock())
            return 1

        monkeypatch.setattr(client._publishing, "unanswered_count", count)
        if at_end:
            client._driver.end_with_program(0.1)
        else:
            client.close(timeout=0.1)
        server.mute = False
    assert owned
    assert all(owned)


def test_held_client_lock_does_not_block_the_exit(server: SocketServer) -> None:
    client = tt.Client("a", server.uri)
    server.mute = True
    client.publish("orders", b"1")
    held, end = threading.Event(), threading.Event()

    def hold() -> None:
        with client._driver.lock:
            held.set()
            end.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    assert client._driver.end_with_program(0.01) == ProgramEnd("a", 1)
    end.set()
    holder.join()
    client.close()


def test_unused_client_is_not_reported_at_exit() -> None:
    assert tt.HAClient("a", servers="tcp://127.0.0.1:1")._driver.end_with_program(1) is None


def test_hybrid_store_is_closed_at_exit_and_keeps_messages(tmp_path: Path) -> None:
    store = HybridPublishStore(tmp_path / "store")
    client = tt.HAClient("a", servers="tcp://127.0.0.1:1", publish_store=store)
    publish_all(client)
    assert client._driver.end_with_program(20) == ProgramEnd("a", 0)
    with FilePublishStore(tmp_path / "store") as reopened:
        assert reopened.unpersisted_count() == len(MESSAGES)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # a loop that ended closes nothing
@pytest.mark.parametrize("ha", [False, True])
def test_unclosed_asyncio_client_is_flushed_at_the_end_of_the_loop(server: SocketServer, *, ha: bool) -> None:
    ended: list[tt.AsyncClient] = []
    server.answers_from = len(MESSAGES)  # an answer would send the gathered messages without a flush

    async def run() -> None:
        client = tt.AsyncHAClient("a", servers=server.uri) if ha else tt.AsyncClient("a", server.uri)
        ended.append(client)
        await client.connect()
        for body in MESSAGES:
            await client.publish("orders", body)

    asyncio.run(run())
    assert server.bodies() == MESSAGES
    client = ended.pop()
    assert client._driver.end_with_program(20) == ProgramEnd("a", 0)
    assert client._driver.end_with_program(20) is None, "the client was already reported"
    del client
    gc.collect()  # resource warnings belong to this test


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # a loop that ended closes nothing
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("closed", [False, True])
def test_asyncio_client_on_abandoned_loop_is_flushed_or_counted_at_exit(
    server: SocketServer, *, closed: bool
) -> None:
    _publish_on_abandoned_loop(server, closed=closed)
    gc.collect()


def _publish_on_abandoned_loop(server: SocketServer, *, closed: bool) -> None:
    loop = asyncio.new_event_loop()
    client = tt.AsyncClient("a", server.uri)

    async def run() -> None:
        await client.connect()
        server.mute = closed
        for body in MESSAGES:
            await client.publish("orders", body)

    loop.run_until_complete(run())
    if closed:
        loop.close()
        assert client._driver.end_with_program(20) == ProgramEnd("a", 500)
    else:
        assert client._driver.end_with_program(20) == ProgramEnd("a", 0)
        assert server.bodies() == MESSAGES
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_asyncio_client_on_loop_of_another_thread_is_flushed_at_exit(server: SocketServer) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    client = tt.AsyncClient("a", server.uri)

    async def run() -> None:
        await client.connect()
        for body in MESSAGES:
            await client.publish("orders", body)

    asyncio.run_coroutine_threadsafe(run(), loop).result(20)
    assert client._driver.end_with_program(20) == ProgramEnd("a", 0)
    assert server.bodies() == MESSAGES
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def test_exit_report_names_clients_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        exits._report([None, ProgramEnd("a", 0), ProgramEnd("b", 12)])
    assert [str(one.message).split(".")[0] for one in warned] == [
        "Client 'a' was not closed",
        "Client 'b' was not closed",
    ]
    (text,) = caplog.messages
    assert text.startswith("Cannot send 12 message(s) of client 'b' before the program ends. Call close()")
