"""Closing while others publish: accepted messages are sent or reported, and nothing more is accepted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import tickertape as tt
from tests.unit.client.peer import Named, Peer, bodies, publish
from tests.unit.client.socket_server import SocketServer, socket_server
from tickertape.base.errors import BadOption, Closed, Disconnected, StoreFull
from tickertape.client.publish_store import FilePublishStore, MemoryPublishStore
from tickertape.wire.commands import Persisted


@pytest.fixture
def server() -> Iterator[SocketServer]:
    with socket_server() as running:
        yield running


# -- protocol state machine ---------------------------------------------------------------------------


def test_publisher_after_end_rejects_messages_and_sends_accepted_ones() -> None:
    peer = Peer().connect()
    publish(peer, b"1", b"2", b"3")
    peer.core.publishing.end()
    with pytest.raises(Closed):
        publish(peer, b"4")
    with pytest.raises(Closed):
        peer.publish_whole("orders", [b"4"])
    assert peer.core.publishing.unanswered_count() == 3
    peer.core.flush(Named("f"), "persisted")
    assert bodies(peer.published()) == [[b"1"], [b"2", b"3"]]
    peer.say(Persisted(frame=2))
    assert peer.outcome("f") is None
    assert peer.core.publishing.unanswered_count() == 0


def test_publisher_end_closes_the_open_run_of_a_thread() -> None:
    peer = Peer().connect()
    publishing = peer.core.publishing
    for body in (b"1", b"2", b"3"):
        publishing.publish("orders", body, owner=7)
    run = publishing.run
    run.bodies.append(b"4")  # as the owner does, without the lock
    publishing.end()
    run.bodies.append(b"5")
    assert publishing.publish_again(run, 2, b"4") is None
    with pytest.raises(Closed):
        publishing.publish_again(run, 3, b"5")
    publishing.flush()
    assert [body for batch in bodies(peer.published()) for body in batch] == [b"1", b"2", b"3", b"4"]


def test_publisher_after_end_accepts_settlements() -> None:
    peer = Peer().connect()
    peer.core.publishing.end()
    peer.core.publishing.settle(b"{}")
    assert len(peer.published()) == 1


def test_unanswered_count_excludes_messages_stored_in_files(tmp_path: Any) -> None:
    with FilePublishStore(tmp_path / "store") as store:
        for kept, expected in ((None, 2), (MemoryPublishStore(), 3), (store, 2)):
            peer = Peer(kept).connect(recorded=("orders",) if kept else ())
            publish(peer, b"1", b"2", topic="ticks")
            if kept:
                publish(peer, b"3")
            assert peer.core.publishing.unanswered_count() == expected


# -- the fronts ---------------------------------------------------------------------------------------


class LatePublisher(tt.Client):
    """A client with another thread that publishes during the flush of `close()`."""

    outcome: object = None

    def flush_late(self, monkeypatch: pytest.MonkeyPatch, server: SocketServer) -> None:
        flush = self._driver.flush
        server.lock.acquire()  # until then the server does not answer

        def late(timeout: Any, level: str) -> None:
            thread = threading.Thread(target=self._publish_late)
            thread.start()
            thread.join()
            server.lock.release()
            flush(timeout, level)

        monkeypatch.setattr(self._driver, "flush", late)

    def _publish_late(self) -> None:
        try:
            self.outcome = self.publish("orders", b"late")
        except tt.TickertapeError as error:
            self.outcome = error


def test_close_rejects_messages_of_other_threads_during_the_flush(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = LatePublisher("pricing-1", server.uri, publish_store=MemoryPublishStore())
    client.flush_late(monkeypatch, server)
    client.publish("orders", b"1")
    client.publish("orders", b"2")
    client.close()
    assert isinstance(client.outcome, Closed)
    assert server.bodies() == [b"1", b"2"]


def test_close_sends_every_message_accepted_on_many_threads(server: SocketServer) -> None:
    client = tt.Client("pricing-1", server.uri)
    accepted = [0] * 4
    begun = threading.Barrier(5)

    def work(worker: int) -> None:
        begun.wait()
        try:
            while True:
                client.publish("orders", b"%d" % worker)
                accepted[worker] += 1
        except Closed:
            return

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in workers:
        thread.start()
    begun.wait()
    while sum(accepted) < 2_000:
        server.lock.acquire()
        server.lock.release()
    client.close()
    for thread in workers:
        thread.join()
    server.drop()
    stored = server.bodies()
    assert [stored.count(b"%d" % worker) for worker in range(4)] == accepted


def test_close_wakes_publishers_that_wait_for_store_space(server: SocketServer) -> None:
    server.mute = True
    store = MemoryPublishStore(1000)
    client = tt.Client("a", server.uri, publish_store=store, timeout=None)
    while client.unpersisted_count() < 2:
        client.publish("orders", b"x" * 300)
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(client.publish("orders", b"x" * 300))
        except tt.TickertapeError as error:
            outcome.append(error)

    waiting = threading.Thread(target=work)
    waiting.start()
    while not client._publishing.starved:  # the publisher waits, or will soon
        pass
    client.close(timeout=0.05)
    waiting.join()
    assert [type(error) for error in outcome] == [Closed]


def test_publish_that_waits_for_store_space_after_close_raises_closed(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.mute = True
    client = tt.Client("a", server.uri, publish_store=MemoryPublishStore(1000), timeout=None)
    while client.unpersisted_count() < 2:
        client.publish("orders", b"x" * 300)
    wait = client._driver._wait_for_store

    def close_first(full: StoreFull, seconds: float | None, deadline: float | None) -> None:
        client.close(timeout=0.05)
        wait(full, seconds, deadline)

    monkeypatch.setattr(client._driver, "_wait_for_store", close_first)
    with pytest.raises(Closed):
        client.publish("orders", b"x" * 300)


@pytest.mark.parametrize("store", [False, True])
def test_close_reports_the_number_of_unanswered_messages(server: SocketServer, *, store: bool) -> None:
    reported_errors: list[BaseException] = []
    client = tt.Client("a", server.uri, publish_store=MemoryPublishStore() if store else None)
    client.set_exception_listener(reported_errors.append)
    server.mute = True
    for body in (b"1", b"2", b"3"):
        client.publish("orders", body)
    server.drop()
    with pytest.raises(Disconnected):
        client.publish_flush()
    client.close()
    assert ["3 message(s) have no answer" in str(error) for error in reported_errors] == [True] * store


def test_close_on_the_receive_thread_reports_unanswered_messages(server: SocketServer) -> None:
    reported_errors: list[BaseException] = []
    closed = threading.Event()
    client = tt.Client("a", server.uri)
    client.set_exception_listener(reported_errors.append)

    def handle(_message: tt.Message) -> None:
        client.publish("un/other", b"1")
        client.close()
        closed.set()

    client.subscribe("orders", on_message=handle)
    client.publish("orders", b"0")
    assert closed.wait(20)
    assert ["message(s) have no answer" in str(error) for error in reported_errors] == [True]


def test_async_close_rejects_messages_of_other_tasks_during_the_flush(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome: list[object] = []

    async def run() -> None:
        async with tt.AsyncClient("a", server.uri) as client:
            await client.publish("orders", b"1")
            await client.publish("orders", b"2")
            flush = client._driver.flush

            async def late(timeout: Any, level: str) -> None:
                try:
                    outcome.append(await client.publish("orders", b"late"))
                except tt.TickertapeError as error:
                    outcome.append(error)
                await flush(timeout, level)

            monkeypatch.setattr(client._driver, "flush", late)

    asyncio.run(run())
    assert [type(error) for error in outcome] == [Closed]
    assert server.bodies() == [b"1", b"2"]


def test_cancelled_async_close_reports_unanswered_messages(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported_errors: list[BaseException] = []

    async def cancelled(timeout: Any, level: str) -> None:
        raise asyncio.CancelledError

    async def run() -> None:
        client = tt.AsyncClient("a", server.uri)
        monkeypatch.setattr(client._driver, "flush", cancelled)
        client.set_exception_listener(reported_errors.append)
        await client.connect()
        server.mute = True
        await client.publish("orders", b"1")
        with pytest.raises(asyncio.CancelledError):
            await client.close()

    asyncio.run(run())
    assert ["1 message(s) have no answer" in str(error) for error in reported_errors] == [True]


def test_connect_of_a_closed_client_raises_closed_and_opens_no_connection() -> None:
    nobody = "tcp://127.0.0.1:1"
    client = tt.Client("desk", nobody, connect=False)
    client.close()
    with pytest.raises(Closed):
        client.connect()

    async def scene() -> None:
        later = tt.AsyncClient("desk", nobody)
        await later.close()
        with pytest.raises(Closed):
            await later.connect()

    asyncio.run(scene())


def test_close_with_an_invalid_timeout_raises_and_keeps_the_client_open() -> None:
    nobody = "tcp://127.0.0.1:1"
    for client in (tt.Client("desk", nobody, connect=False), tt.HAClient("desk", servers=nobody)):
        with pytest.raises(BadOption, match="Invalid interval 'soon'"):
            client.close(timeout="soon")
        assert "not connected" in repr(client)
        client.close()
        assert "closed" in repr(client)

    async def scene() -> None:
        for later in (tt.AsyncClient("desk", nobody), tt.AsyncHAClient("desk", servers=nobody)):
            with pytest.raises(BadOption, match="Invalid interval 'soon'"):
                await later.close(timeout="soon")
            assert "not connected" in repr(later)
            await later.close()
            assert "closed" in repr(later)

    asyncio.run(scene())
