"""An exception while the protocol machine processes a connection loss: the client still reconnects."""

from __future__ import annotations

import asyncio

import pytest

import tickertape as tt
from tests.unit.client.socket_server import socket_server
from tickertape.client.subscriptions.registry import SubscriptionRegistry
from tickertape.testing.server import wait_until

SECONDS = 20.0


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make the first loss of subscriptions raise, and record it."""
    lost, noted = SubscriptionRegistry.lost, list[str]()

    def fail(
        self: SubscriptionRegistry, reason: str, error: tt.TickertapeError, *, keep: bool = False
    ) -> None:
        if not noted:
            noted.append(reason)
            raise RuntimeError("out of order")
        lost(self, reason, error, keep=keep)

    monkeypatch.setattr(SubscriptionRegistry, "lost", fail)
    return noted


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_blocking_client_reconnects_after_exception_in_connection_loss(failures: list[str]) -> None:
    with socket_server() as server, tt.HAClient("pricing-1", servers=server.uri, reconnect_delay=0) as client:
        server.drop()
        wait_until(lambda: bool(failures))
        client.publish("orders", b"1")
        client.publish_flush(SECONDS)
        assert server.bodies() == [b"1"]


def test_asyncio_client_reconnects_after_exception_in_connection_loss(failures: list[str]) -> None:
    async def publish(uri: str) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        async with tt.AsyncHAClient("pricing-1", servers=uri, reconnect_delay=0) as client:
            server.drop()
            await asyncio.to_thread(wait_until, lambda: bool(failures))
            await client.publish("orders", b"1")
            await client.publish_flush(SECONDS)

    with socket_server() as server:
        asyncio.run(publish(server.uri))
        assert server.bodies() == [b"1"]
