"""Product client with a publish store at simulated engines: it logs on, publishes and fails over.

Must never send a command of its own: the protocol machine of the client does.
"""

from __future__ import annotations

from functools import partial

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.errors import Disconnected
from tickertape.batch import batch_from_bodies
from tickertape.client.common.effects import EndConnection, Send
from tickertape.client.protocol.core import ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.client.publish_store.protocol import PublishStore
from tickertape.wire.commands import LoggedOn, Logon, LogonReplication
from tickertape.wire.connection import Connection, Received


class LogonWaiter:
    """Waiter of a logon. Tests read the answers instead."""

    def settle(self, outcome: object) -> None:
        """Ignore the outcome."""


class ProductPublisher(Peer):
    """A client, at one of several engines at a time."""

    def __init__(self, world: EngineWorld, name: str, store: PublishStore) -> None:
        super().__init__(world, 0, name)
        self.store = store
        self.logons: list[Logon] = []
        """All logons that the engines received."""
        self.core = ClientProtocol(name)
        self.core.set_store(store, world.now())
        self._to_engine = Connection("server")

    def connect(self, world: EngineWorld) -> LogonReplication:
        """Log on at an engine that replicates. Return its replication. Unsent bytes of the last connection
        are lost."""
        self.lose()
        self.world = world
        world._conn += 1
        self.conn = world._conn
        self.logged_on = None
        self._to_engine = Connection("server")
        world.peers[self.conn] = self
        world.broker.connected(self.conn)
        self.core.receive(ConnectionOpened(LogonWaiter()), world.now())
        self._act()
        world.settle()
        accepted: LoggedOn | None = self.logged_on
        assert accepted is not None
        assert accepted.replication is not None
        return accepted.replication

    def lose(self) -> None:
        """The network ends the connection, if one is open."""
        if self.conn:
            self.world.peers.pop(self.conn, None)
            self.world.broker.disconnected(self.conn)
            self.world.collect()
            self.core.receive(ConnectionEnded(Disconnected("cut")), self.world.now())
            self.core.effects()
            self.conn = 0

    def publish_each(self, *bodies: bytes) -> list[int]:
        """Publish messages, each in a step of its own. Return their sequences."""
        sequences = []
        for body in bodies:
            sequence = self.core.publishing.publish("orders", body)
            assert sequence is not None
            sequences.append(sequence)
            self._act()
        return sequences

    def publish_whole(self, *bodies: bytes) -> list[int]:
        """Publish messages in one frame. Return their sequences."""
        make = partial(batch_from_bodies, "orders", bodies)
        last = self.core.publishing.publish_whole("orders", len(bodies), sum(map(len, bodies)), make)
        assert last is not None
        self._act()
        return [*range(last - len(bodies) + 1, last + 1)]

    def take(self, data: bytes) -> None:
        """Take bytes of the engine."""
        self.core.receive(data, self.world.now())
        self.logged_on = self.core.logon.accepted or self.logged_on
        self._act()

    def _act(self) -> None:
        for effect in self.core.effects():
            assert not isinstance(effect, EndConnection), effect.error
            if not isinstance(effect, Send):
                continue
            for event in self._to_engine.feed(b"".join(effect.buffers)):
                assert isinstance(event, Received), event
                if isinstance(event.command, Logon):
                    self.logons.append(event.command)
                    self._to_engine.logged_on()
                self.world.broker.received(self.conn, event.command, event.batch, self.world.now())
                self.world.collect()
