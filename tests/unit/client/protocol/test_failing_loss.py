"""An exception while the machine takes in a loss: the session hears of the loss all the same."""

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
    """The first loss of subscriptions that there is to be told of raises, and is noted."""
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
def test_a_blocking_client_connects_again(failures: list[str]) -> None:
    with socket_server() as server, tt.HAClient("pricing-1", servers=server.uri, reconnect_delay=0) as client:
        server.drop()
        wait_until(lambda: bool(failures))
        client.publish("orders", b"1")
        client.publish_flush(SECONDS)
        assert server.bodies() == [b"1"]


def test_an_asyncio_client_connects_again(failures: list[str]) -> None:
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
