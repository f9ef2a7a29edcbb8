"""Connection between a client state machine and a simulated engine: bytes in flight in both directions.

Must never move a byte by itself: the test decides how many bytes arrive and when the connection is cut.
"""

from __future__ import annotations

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.wire.commands import Logon
from tickertape.wire.connection import Connection, Received


class Line(Peer):
    """One connection, from its acceptance by the engine. A cut loses the bytes in flight."""

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
        """Deliver `count` bytes to the server."""
        data = bytes(self.to_server[:count])
        del self.to_server[:count]
        for event in self.server.feed(data):
            assert isinstance(event, Received), event
            if isinstance(event.command, Logon):
                self.server.logged_on()
            self.world.broker.received(self.conn, event.command, event.batch, self.world.now())
            self.world.collect()

    def leave(self, count: int) -> bytes:
        """Deliver `count` bytes to the client."""
        data = bytes(self.to_client[:count])
        del self.to_client[:count]
        return data

    def cut(self) -> None:
        """Report the lost connection to the server. A server that has restarted since does not know it."""
        if self.world.peers.pop(self.conn, None) is not None:
            self.world.broker.disconnected(self.conn)
            self.world.collect()
