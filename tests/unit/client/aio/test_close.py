"""Closing asyncio clients with handlers or authenticators that ignore cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import tickertape as tt
from tests.unit.client.socket_server import socket_server

SECONDS = 3.0


async def stubborn(until: asyncio.Event, begun: asyncio.Event) -> None:
    """Ignore cancellation, for `SECONDS` at most."""
    asyncio.get_running_loop().call_later(SECONDS, until.set)
    while not until.is_set():
        begun.set()
        try:
            await until.wait()
        except asyncio.CancelledError:
            continue


async def seconds_of(closing: Awaitable[None]) -> float:
    loop = asyncio.get_running_loop()
    start = loop.time()
    await closing
    return loop.time() - start


Make = Callable[[str], tt.AsyncClient]


@pytest.mark.parametrize(
    "make", [lambda uri: tt.AsyncClient("a", uri), lambda uri: tt.AsyncHAClient("a", servers=uri)]
)
def test_async_close_does_not_wait_for_handler_that_ignores_cancellation(make: Make) -> None:
    async def run() -> None:
        until, begun = asyncio.Event(), asyncio.Event()
        reported: list[BaseException] = []
        with socket_server() as server:
            client = make(server.uri)
            client.set_exception_listener(reported.append)
            client.set_disconnect_handler(lambda _: stubborn(until, begun))
            await client.connect()
            server.drop()
            await asyncio.wait_for(begun.wait(), SECONDS)
            assert await seconds_of(client.close(timeout=0.05)) < SECONDS / 2
            assert ["did not end after close()" in str(error) for error in reported] == [True]
            until.set()

    asyncio.run(run())


def test_async_close_waits_for_cleanup_of_cancelled_handler() -> None:
    async def run() -> None:
        begun, rolled_back = asyncio.Event(), asyncio.Event()
        reported: list[BaseException] = []

        async def handler(_: object) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(20):
                    await asyncio.sleep(0)
                rolled_back.set()

        with socket_server() as server:
            client = tt.AsyncClient("a", server.uri)
            client.set_exception_listener(reported.append)
            client.set_disconnect_handler(handler)
            await client.connect()
            server.drop()
            await asyncio.wait_for(begun.wait(), SECONDS)
            await client.close(timeout=0)
            assert rolled_back.is_set()
            assert reported == []

    asyncio.run(run())


def test_async_close_has_one_deadline_for_all_waits() -> None:
    until, begun = asyncio.Event(), asyncio.Event()

    class Tokens(tt.DefaultAuthenticator):
        async def authenticate(  # type: ignore[override]
            self, user: str | None, password: str | None
        ) -> str | None:
            await stubborn(until, begun)
            return password

    async def run() -> None:
        chooser = tt.DefaultServerChooser("tcp://127.0.0.1:1", authenticator=Tokens())
        client = tt.AsyncHAClient("a", server_chooser=chooser, timeout=SECONDS)
        connecting = asyncio.create_task(client.connect_and_logon())
        await asyncio.wait_for(begun.wait(), SECONDS)
        handled = asyncio.Event()
        client._driver._spawn(stubborn(until, handled))
        await handled.wait()
        assert 0.9 < await seconds_of(client.close(timeout=1.0)) < 1.9
        until.set()
        with pytest.raises(tt.Closed):
            await connecting

    asyncio.run(run())
