"""Owns a connection between a client machine and a simulated engine: bytes that wait on both ways.

Must never move a byte by itself: whoever has the line says when so many arrive, and when it is cut.
"""

from __future__ import annotations

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.wire.commands import Logon
from tickertape.wire.connection import Connection, Received


class Line(Peer):
    """One connection, from when the engine accepts it. What is on it is lost when it is cut."""

    def __init__(self, world: EngineWorld) -> None:
        world._conn += 1
        super().__init__(world, world._conn, "")
        self.server = Connection("server")
        self.to_server = bytearray()
        self.to_client = bytearray()
        world.peers[self.conn] = self
        world.broker.connected(self.conn)

    def take(self, data: bytes) -> None:
        self.to_client += data

    def arrive(self, count: int) -> None:
        """So many bytes come to the server."""
        data = bytes(self.to_server[:count])
        del self.to_server[:count]
        for event in self.server.feed(data):
            assert isinstance(event, Received), event
            if isinstance(event.command, Logon):
                self.server.logged_on()
            self.world.broker.received(self.conn, event.command, event.batch, self.world.now())
            self.world.collect()

    def leave(self, count: int) -> bytes:
        """So many bytes come to the client."""
        data = bytes(self.to_client[:count])
        del self.to_client[:count]
        return data

    def cut(self) -> None:
        """The server hears that it is gone; one that has started again since does not know it."""
        if self.world.peers.pop(self.conn, None) is not None:
            self.world.broker.disconnected(self.conn)
            self.world.collect()
