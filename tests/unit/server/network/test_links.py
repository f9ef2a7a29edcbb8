"""Outgoing links: attempts to connect on a real event loop, with a peer that a test controls."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from tickertape.base.errors import TickertapeError
from tickertape.base.limits import receive_buffer_bytes
from tickertape.security.contexts import client_context
from tickertape.security.tls_options import TLS
from tickertape.server.config.replication import DestinationConfig
from tickertape.server.network import links as links_module
from tickertape.server.network.connection import PeerConnection
from tickertape.server.network.link_source import LinkSourceConnection
from tickertape.server.network.links import OutgoingLinks
from tickertape.wire.commands import PREFACE
from tickertape.wire.connection import Received, Violation

SECONDS = 20.0


class Credentials:
    """A token for every destination, and TLS without other certificates than those of the system."""

    def link_token(self, destination: str) -> str | None:
        return f"token of {destination}"

    def link_context(self, destination: str) -> ssl.SSLContext | None:
        return client_context(TLS())


class Handler:
    """Handler of connections that records their events."""

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(receive_buffer_bytes))
        self.cipher_scratch = memoryview(bytearray(receive_buffer_bytes))
        self.connections: dict[int, LinkSourceConnection] = {}
        self.ended: list[int] = []
        self.changed = asyncio.Event()

    def link_connected(self, connection: LinkSourceConnection) -> int:
        number = len(self.connections) + 1
        self.connections[number] = connection
        self.changed.set()
        return number

    def lost(self, conn: int) -> None:
        self.ended.append(conn)
        self.changed.set()

    def connected(self, connection: PeerConnection) -> int:
        raise AssertionError("no peer connects to this end")

    def received(self, conn: int, events: list[Received | Violation]) -> None: ...

    def violated(self, conn: int, error: TickertapeError) -> None: ...

    def writable(self, conn: int, *, writable: bool) -> None: ...

    def large_frame(self, conn: int, size: int, received: int) -> None: ...

    def large_frame_ended(self, conn: int) -> None: ...


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def peer(serve: Serve) -> AsyncIterator[int]:
    """Listen on a free port, which it yields. `serve` gets each connection, which then ends."""
    tasks: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(task for task in tasks if task is not None))
            await asyncio.sleep(0)


async def to_the_end(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Read until the other end closes."""
    while await reader.read(1000):
        pass


def outgoing(*addresses: str) -> OutgoingLinks:
    return OutgoingLinks(
        "ny-1", [DestinationConfig(name="ny-2", addresses=addresses, rules=())], Credentials()
    )


async def failed(links: OutgoingLinks) -> str:
    """Wait for the first failed attempt, and return its text."""
    async with asyncio.timeout(SECONDS):
        while not links.state("ny-2").error:  # noqa: ASYNC110 - the links have no event of a failure
            await asyncio.sleep(0.002)
    return links.state("ny-2").error


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test, which fails for errors that nothing has caught."""
    problems: list[str] = []

    async def watched() -> None:
        handle = asyncio.get_running_loop().set_exception_handler
        handle(lambda _, context: problems.append(str(context.get("exception") or context["message"])))
        await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(watched())
    assert problems == []


def test_established_connection_sends_the_preface_with_the_token_of_the_destination() -> None:
    async def test() -> None:
        got: asyncio.Queue[bytes] = asyncio.Queue()

        async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            got.put_nowait(await reader.readexactly(len(PREFACE)))

        async with peer(serve) as port, asyncio.timeout(SECONDS):
            links, handler = outgoing(f"tcp://127.0.0.1:{port}"), Handler()
            links.start(asyncio.get_running_loop(), handler)
            assert await got.get() == PREFACE
            while not handler.ended:
                handler.changed.clear()
                await handler.changed.wait()
            assert [one.target for one in handler.connections.values()] == [("ny-2", "token of ny-2")]
            assert "token of" not in repr(handler.connections[1].target)
            assert handler.ended == [1], "the handler reports the end of a connection that it has"
            assert links.state("ny-2").wait == 0, "only the handler schedules the next attempt"
            links.ended("ny-2", refused=False)
            assert links.state("ny-2").wait > 0
            links.stop()

    run(test())


def test_addresses_are_tried_until_one_connects() -> None:
    async def test() -> None:
        async with asyncio.timeout(SECONDS), peer(to_the_end) as port:
            async with peer(to_the_end) as unused:
                pass
            links, handler = outgoing(f"tcp://127.0.0.1:{unused}", f"tcp://127.0.0.1:{port}"), Handler()
            links.start(asyncio.get_running_loop(), handler)
            await handler.changed.wait()
            assert links.state("ny-2").address == f"tcp://127.0.0.1:{port}"
            links.stop()
            handler.connections[1].abort()

    run(test())


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "silent"])
def test_peer_without_a_handshake_ends_the_attempt(closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "link_connect_seconds_max", SECONDS if closes else 0.05)

    async def test() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            if closes:
                writer.close()
            await to_the_end(reader, writer)

        async with peer(serve) as port:
            links, handler = outgoing(f"tls://127.0.0.1:{port}"), Handler()
            links.start(asyncio.get_running_loop(), handler)
            text = await failed(links)
            assert ("closed the connection" in text) if closes else ("no connection within" in text)
            links.stop()
        assert (handler.connections, handler.ended) == ({}, [])

    run(test())


def test_stop_ends_an_attempt() -> None:
    async def test() -> None:
        came = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.set()
            await to_the_end(reader, writer)

        async with peer(serve) as port, asyncio.timeout(SECONDS):
            links, handler = outgoing(f"tls://127.0.0.1:{port}"), Handler()
            links.start(asyncio.get_running_loop(), handler)
            await came.wait()
            links.stop()
        assert (handler.connections, handler.ended) == ({}, [])

    run(test())


@pytest.mark.parametrize("address", ["tls://.:1", "tcp://" + "a" * 70 + ".example:1", "unix:///no/such.sock"])
def test_address_that_cannot_be_used_counts_as_a_failed_attempt(address: str) -> None:
    async def test() -> None:
        links, handler = outgoing(address), Handler()
        links.start(asyncio.get_running_loop(), handler)
        assert await failed(links)
        links.stop()

    run(test())


def test_destination_that_opened_a_link_is_connected_at_once() -> None:
    async def test() -> None:
        async with asyncio.timeout(SECONDS), peer(to_the_end) as port:
            links, handler = outgoing(f"tcp://127.0.0.1:{port}"), Handler()
            links.start(asyncio.get_running_loop(), handler)
            await handler.changed.wait()
            handler.changed.clear()
            handler.connections[1].abort()
            links.came("ny-2")  # while it is connected: no second connection
            links.ended("ny-2", refused=True)
            assert links.state("ny-2").wait > SECONDS
            links.came("ldn")
            assert links.state("ny-2").wait > SECONDS, "another server came"
            links.came("ny-2")
            while len(handler.connections) < 2:
                await handler.changed.wait()
                handler.changed.clear()
            links.stop()
            handler.connections[2].abort()

    run(test())
