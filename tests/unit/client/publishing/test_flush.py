"""`publish_flush` that waits for store space or for the next connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import tickertape as tt
from tests.unit.client.socket_server import SocketServer, socket_server
from tickertape.client.publish_store import MemoryPublishStore
from tickertape.client.publish_store.protocol import Stored
from tickertape.wire.commands import Logon, Persisted

SECONDS = 20.0


@pytest.fixture
def server() -> Iterator[SocketServer]:
    with socket_server() as running:
        yield running


def dropped_in_the_middle(client: Any, server: SocketServer) -> None:
    """Make the server ignore publishes until the next logon, and break connections after a flush."""
    flush = client._driver.core.flush
    server.mute = True

    class Logons(list[Logon]):
        def append(self, logon: Logon) -> None:
            server.mute = False
            super().append(logon)

    def flush_once(token: object, level: str) -> None:
        flush(token, level)
        client._driver.core.flush = flush
        server.logons = Logons()
        threading.Thread(target=server.drop).start()

    client._driver.core.flush = flush_once


def test_ha_client_flush_continues_over_a_lost_connection(server: SocketServer) -> None:
    with tt.HAClient("a", servers=server.uri, reconnect_delay=0) as client:
        dropped_in_the_middle(client, server)
        client.publish("orders", b"1")
        client.publish_flush(timeout=SECONDS)
        assert client.unpersisted_count() == 0
        assert set(server.bodies()) == {b"1"}


def test_ha_client_flush_without_store_raises_at_connection_loss(
    server: SocketServer,
) -> None:
    with tt.HAClient("a", servers=server.uri, reconnect_delay=0, publish_store=None) as client:
        dropped_in_the_middle(client, server)
        client.publish("orders", b"1")
        with pytest.raises(tt.Disconnected):
            client.publish_flush(timeout=SECONDS)


def test_ha_client_flush_times_out_without_connection(server: SocketServer) -> None:
    with tt.HAClient("a", servers=server.uri, reconnect_delay=100) as client:
        dropped_in_the_middle(client, server)
        client.publish("orders", b"1")
        with pytest.raises(tt.TimedOut, match=r"^Cannot connect for publish_flush.*: no connection within "):
            client.publish_flush(timeout=0.2)
        assert client.unpersisted_count() == 1
        client.set_exception_listener(lambda _: None)


def test_ha_client_flush_raises_when_the_client_gives_up(server: SocketServer) -> None:
    delay = tt.ExponentialDelayStrategy(initial=0.001, maximum=0.001, give_up_after=0.001)
    with tt.HAClient("a", servers=server.uri, reconnect_delay=delay) as client:
        client.set_exception_listener(lambda _: None)
        dropped_in_the_middle(client, server)
        client.publish("orders", b"1")
        server.close()
        with pytest.raises(tt.Disconnected):
            client.publish_flush(timeout=SECONDS)


def test_async_ha_client_flush_continues_over_a_lost_connection(server: SocketServer) -> None:
    async def run() -> None:
        async with tt.AsyncHAClient("a", servers=server.uri, reconnect_delay=0) as client:
            dropped_in_the_middle(client, server)
            await client.publish("orders", b"1")
            await client.publish_flush(timeout=SECONDS)
            assert client.unpersisted_count() == 0

    asyncio.run(run())
    assert set(server.bodies()) == {b"1"}


def filled(client: Any, server: SocketServer) -> None:
    """Queue a settlement behind a full store, which gets space when a call waits for space."""
    acks, store, wait = client._driver.core.acks, client._publishing.store, client._driver._wait_for_store
    acks.settle("work", "ack", [(5, 1)])
    assert acks.waiting

    def wait_once(*arguments: Any) -> object:
        server.mute = False
        server.sessions[0].say(Persisted(frame=0, sequence=store.last_sequence))
        client._driver._wait_for_store = wait
        return wait(*arguments)

    client._driver._wait_for_store = wait_once


def test_flush_waits_until_a_settlement_fits_the_store(server: SocketServer) -> None:
    server.mute = True
    store = MemoryPublishStore(1000, when_full="raise")
    with tt.Client("a", server.uri, publish_store=store) as client:
        with pytest.raises(tt.StoreFull):
            client.publish_batch("orders", [b"x" * 100] * 20)
        filled(client, server)
        client.publish_flush(timeout=SECONDS)
        assert client.unpersisted_count() == 0
        assert b"work" in server.bodies()[-1]


def test_async_flush_waits_until_a_settlement_fits_the_store(server: SocketServer) -> None:
    async def run() -> None:
        store = MemoryPublishStore(1000, when_full="raise")
        async with tt.AsyncClient("a", server.uri, publish_store=store) as client:
            with pytest.raises(tt.StoreFull):
                await client.publish_batch("orders", [b"x" * 100] * 20)
            filled(client, server)
            await client.publish_flush(timeout=SECONDS)
            assert client.unpersisted_count() == 0

    server.mute = True
    asyncio.run(run())
    assert b"work" in server.bodies()[-1]


def test_flush_without_store_space_times_out(server: SocketServer) -> None:
    server.mute = True
    client = tt.Client("a", server.uri, publish_store=MemoryPublishStore(1000, when_full="raise"))
    with pytest.raises(tt.StoreFull):
        client.publish_batch("orders", [b"x" * 100] * 20)
    client._driver.core.acks.settle("work", "ack", [(5, 1)])
    with pytest.raises(tt.TimedOut, match="no free space"):
        client.publish_flush(timeout=0.05)
    client.set_exception_listener(lambda _: None)
    client.close(timeout=0.05)


class QuotaStore(MemoryPublishStore):
    """A publish store of an application with its own quota."""

    full = False

    def put(self, stored: Stored) -> None:
        if self.full:
            raise tt.StoreFull("the quota is used up")
        super().put(stored)


def test_flush_raises_when_a_user_store_is_full(server: SocketServer) -> None:
    store = QuotaStore()
    client = tt.Client("a", server.uri, publish_store=store)
    server.mute = True
    client.publish("orders", b"1")
    client.publish("orders", b"2")  # batched behind the first message
    store.full = True
    with pytest.raises(tt.StoreFailed, match="the quota is used up"):
        client.publish_flush(timeout=SECONDS)
    store.full = server.mute = False
    client.close(timeout=0.1)


def test_async_flush_raises_when_a_user_store_is_full(server: SocketServer) -> None:
    async def run() -> None:
        store = QuotaStore()
        client = tt.AsyncClient("a", server.uri, publish_store=store)
        await client.connect()
        server.mute = True
        await client.publish("orders", b"1")
        await client.publish("orders", b"2")
        store.full = True
        with pytest.raises(tt.StoreFailed, match="the quota is used up"):
            await client.publish_flush(timeout=SECONDS)
        store.full = server.mute = False
        await client.close(timeout=0.1)

    asyncio.run(run())
