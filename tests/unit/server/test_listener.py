"""How a connection ends: its goodbye arrives, unless it was one too many."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import cast

import pytest

from tickertape.server.instance import Instance
from tickertape.server.listener import Peer


def instance(ended: asyncio.Event) -> Instance:
    """What a connection sees of an instance; `ended` is set when it is over."""
    return cast(
        "Instance",
        SimpleNamespace(
            scratch=memoryview(bytearray(100_000)), connected=lambda _: 1, disconnected=lambda _: ended.set()
        ),
    )


@pytest.mark.parametrize("linger", [True, False])
def test_what_was_said_last_arrives_though_bytes_are_on_their_way(linger: bool) -> None:
    async def run() -> tuple[bytes, bool]:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ended = asyncio.Event()
        _, peer = await loop.connect_accepted_socket(lambda: Peer(instance(ended)), ours)
        peer.read(enabled=False, why="journal")
        theirs.setblocking(False)
        peer.send([b"goodbye"])
        peer.close(linger=linger)
        said = await loop.sock_recv(theirs, 100) + await loop.sock_recv(theirs, 100)
        try:
            for _ in range(20):
                await loop.sock_sendall(theirs, bytes(50_000))
            took = True
        except OSError:
            took = False
        theirs.close()
        await asyncio.wait_for(ended.wait(), 20)
        return said, took

    assert asyncio.run(run()) == (b"goodbye", linger)
