"""Connections: close after the last frame, excused silence, and paths of Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tickertape.server.network.connection import ClientConnection, ConnectionHandler, listen


def handler(ended: asyncio.Event) -> ConnectionHandler:
    """Return the handler of a connection, which sets `ended` at its end."""
    return cast(
        "ConnectionHandler",
        SimpleNamespace(
            scratch=memoryview(bytearray(100_000)), connected=lambda _: 1, lost=lambda _: ended.set()
        ),
    )


@pytest.mark.parametrize("linger", [True, False])
def test_last_frame_arrives_before_the_close_while_the_client_sends(linger: bool) -> None:
    async def run() -> tuple[bytes, bool]:
        loop = asyncio.get_running_loop()
        server_end, client_end = socket.socketpair()
        ended = asyncio.Event()
        _, peer = await loop.connect_accepted_socket(lambda: ClientConnection(handler(ended)), server_end)
        peer.set_reading(enabled=False, reason="journal")
        client_end.setblocking(False)
        peer.send([b"goodbye"])
        peer.close("", "", linger=linger)
        said = await loop.sock_recv(client_end, 100) + await loop.sock_recv(client_end, 100)
        try:
            for _ in range(20):
                await loop.sock_sendall(client_end, bytes(50_000))
            took = True
        except OSError:
            took = False
        client_end.close()
        await asyncio.wait_for(ended.wait(), 20)
        return said, took

    assert asyncio.run(run()) == (b"goodbye", linger)


@pytest.mark.parametrize("reasons", [(), ("outbox",), ("journal",), ("outbox", "journal")])
def test_silence_is_excused_only_while_the_server_stops_reading(
    reasons: tuple[str, ...],
) -> None:
    async def run() -> tuple[bool, bool]:
        server_end, client_end = socket.socketpair()
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        _, peer = await loop.connect_accepted_socket(lambda: ClientConnection(handler(ended)), server_end)
        for reason in reasons:
            peer.set_reading(enabled=False, reason=reason)
        paused = peer.liveness().excused
        for reason in reasons:
            peer.set_reading(enabled=True, reason=reason)
        resumed = peer.liveness().excused
        peer.abort()
        await asyncio.wait_for(ended.wait(), 20)
        client_end.close()
        return paused, resumed

    assert asyncio.run(run()) == ("journal" in reasons, False)


@pytest.fixture
def path() -> Iterator[str]:
    """Yield the path of a socket, short enough for the system."""
    with tempfile.TemporaryDirectory(prefix="tt-") as directory:
        yield f"{directory}/s.sock"


def listens(path: str) -> None:
    """Listen at a path, and close the server."""

    async def run() -> None:
        server, uri = await listen(f"unix://{path}", lambda: ClientConnection(handler(asyncio.Event())))
        assert uri == f"unix://{path}"
        server.close()

    asyncio.run(run())


@pytest.mark.parametrize("waiting", [0, 1, 3])
def test_socket_path_of_a_running_server_is_refused(path: str, waiting: int) -> None:
    with socket.socket(socket.AF_UNIX) as running, contextlib.ExitStack() as clients:
        running.bind(path)
        running.listen(0)
        for _ in range(waiting):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(path)
        with pytest.raises(OSError, match="Address already in use: another process listens at this path"):
            listens(path)
        assert stat.S_ISSOCK(os.stat(path).st_mode), "the next client can connect"


def test_socket_path_with_another_socket_type_is_refused(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(path)
        with pytest.raises(OSError, match="Address already in use"):
            listens(path)


def test_socket_left_by_a_killed_server_is_replaced(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(path)
        killed.listen()
    listens(path)


def test_other_file_at_the_socket_path_is_kept(path: str) -> None:
    Path(path).write_text("precious")
    with pytest.raises(OSError, match="in use"):
        listens(path)
    assert Path(path).read_text() == "precious"
