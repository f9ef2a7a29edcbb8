"""Descriptions of servers that choosers get with the result of an attempt, and claims of HA clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tickertape as tt
from tests.unit.client.socket_server import SocketServer, socket_server
from tickertape.wire.commands import Goodbye, LogonReplication

SECONDS = 20


class Reported(tt.DefaultServerChooser):
    """Keeps the reports of the client. It has no server after a failure."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.successes: list[tt.ConnectionInfo] = []
        self.failures: list[tt.ConnectionInfo] = []

    def current_uri(self) -> str | None:
        return None if self.failures else super().current_uri()

    def report_success(self, info: tt.ConnectionInfo) -> None:
        self.successes.append(info)

    def report_failure(self, error: tt.TickertapeError, info: tt.ConnectionInfo) -> None:
        self.failures.append(info)


def connected(chooser: Reported, *, blocking: bool, store: tt.PublishStore | None = None) -> None:
    """Log on, publish a message and wait until it is persisted."""
    if blocking:
        with tt.HAClient("pricing-1", server_chooser=chooser, publish_store=store, timeout=SECONDS) as client:
            client.publish("orders", b"1")
            client.publish_flush()
        return

    async def run() -> None:
        async with tt.AsyncHAClient(
            "pricing-1", server_chooser=chooser, publish_store=store, timeout=SECONDS
        ) as client:
            await client.publish("orders", b"1")
            await client.publish_flush()

    asyncio.run(run())


def described(server: SocketServer, *, blocking: bool) -> Reported:
    chooser = Reported(server.uri)
    connected(chooser, blocking=blocking)
    return chooser


@pytest.mark.parametrize("blocking", [True, False])
def test_chooser_gets_instance_group_and_behind_of_a_replicating_server(blocking: bool) -> None:
    with socket_server() as server:
        server.replication = LogonReplication(start=3, group="ny", behind=True)
        chooser = described(server, blocking=blocking)
    assert chooser.successes == [
        tt.ConnectionInfo("pricing-1", server.uri, instance="ny-1", group="ny", behind=True)
    ]


@pytest.mark.parametrize("blocking", [True, False])
def test_chooser_gets_the_instance_alone_of_a_server_without_replication(blocking: bool) -> None:
    with socket_server() as server:
        chooser = described(server, blocking=blocking)
    assert chooser.successes == [tt.ConnectionInfo("pricing-1", server.uri, instance="ny-1")]


def test_chooser_gets_no_description_with_a_failed_logon() -> None:
    with socket_server() as server:
        server.refuse = Goodbye(code="authentication_failed", text="no")
        chooser = Reported(server.uri)
        client = tt.HAClient("pricing-1", server_chooser=chooser)
        with pytest.raises(tt.Disconnected):
            client.connect_and_logon(SECONDS)
        client.close()
    assert chooser.failures == [tt.ConnectionInfo("pricing-1", server.uri)]


@pytest.mark.parametrize("blocking", [True, False])
def test_next_client_of_a_store_claims_the_messages_of_the_first(blocking: bool, tmp_path: Path) -> None:
    with socket_server() as server:
        for _ in range(2):
            with tt.FilePublishStore(tmp_path / "s") as store:
                connected(Reported(server.uri), blocking=blocking, store=store)
                last = store.last_sequence
        first, second = server.logons
        assert first.persisted == 0
        assert 0 < second.persisted < last
        assert 0 < first.session < second.session


def test_plain_clients_claim_too() -> None:
    with socket_server() as server:
        store = tt.MemoryPublishStore()
        with tt.Client("pricing-1", server.uri, publish_store=store) as client:
            client.publish("orders", b"1")
            client.publish_flush()

        async def run() -> None:
            async with tt.AsyncClient("pricing-1", server.uri, publish_store=store) as client:
                await client.publish("orders", b"2")
                await client.publish_flush()

        first = store.last_sequence
        asyncio.run(run())
        assert [logon.persisted for logon in server.logons] == [0, first]
        assert server.logons[0].session < server.logons[1].session


def test_ha_client_stops_with_the_error_of_a_store_that_cannot_claim() -> None:
    class Broken(tt.MemoryPublishStore):
        def next_session(self, clock: int) -> int:
            raise OSError(5, "no disk")

    with socket_server() as server:
        chooser = Reported(server.uri)
        client = tt.HAClient("pricing-1", server_chooser=chooser, publish_store=Broken())
        with pytest.raises(tt.StoreError, match="no disk"):
            client.connect_and_logon(SECONDS)
        assert chooser.failures == [], "the server is not the cause"
        assert server.logons == []
        client.close()
