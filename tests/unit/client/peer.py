"""A scripted server for the client protocol machine, without a socket. Tests give every answer."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from tickertape.base.errors import Disconnected, TickertapeError
from tickertape.base.interfaces import Now
from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.effects import Effect, ResolveCall, Send
from tickertape.client.protocol.core import ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.client.publish_store.protocol import PublishStore
from tickertape.wire.commands import Command, LoggedOn, Logon, LogonReplication, Publish
from tickertape.wire.connection import Connection, Received

START = Now(100.0, 1_800_000_000_000_000)
FRESH = START.wall * 1000 + 1
"""The first sequence of a fresh store at `START`."""

Kind = TypeVar("Kind")


class UnusedSink:
    """A sink whose methods must not be called: the test reads the effects."""

    __slots__ = ()

    def push(self, batch: MessageBatch) -> None:
        raise AssertionError(self)

    def started(self, after: str, found: bool) -> None:
        raise AssertionError(self)

    def snapshot_begun(self, as_of: str, position: int | None) -> None:
        raise AssertionError(self)

    def snapshot_ended(self, as_of: str, matches: int, topic_matches: int, records: int) -> None:
        raise AssertionError(self)

    def caught_up(self) -> None:
        raise AssertionError(self)

    def noticed(self, bookmark: str) -> None:
        raise AssertionError(self)

    def end(self, reason: str, error: TickertapeError | None) -> None:
        raise AssertionError(self)

    def again(self) -> None:
        raise AssertionError(self)


class UnusedWaiter:
    """A waiter whose methods must not be called."""

    __slots__ = ()

    def settle(self, outcome: object) -> None:
        raise AssertionError(self)


class Named(UnusedSink, UnusedWaiter, str):
    """A waiter and a sink with a name."""

    __slots__ = ()


class Peer:
    """A client protocol machine, directly connected to a scripted server."""

    def __init__(self, store: PublishStore | None = None, *, name: str = "pricing-1") -> None:
        self.core = ClientProtocol(name, user="ann", password="secret")
        self.now = START
        self.commands: list[tuple[Command, MessageBatch | None]] = []
        self.effects: list[Effect] = []
        self._server = Connection("server")
        if store is not None:
            self.core.set_store(store, self.now)

    def open(self) -> Logon:
        """Open a connection and return the client's logon."""
        self._server = Connection("server")
        self.core.receive(ConnectionOpened(Named("logon")), self.now)
        ((logon, _),) = self.sent()
        assert isinstance(logon, Logon)
        return logon

    def connect(
        self,
        last_persisted: int = 0,
        recorded: tuple[str, ...] | None = None,
        validated: tuple[str, ...] = (),
        replication: LogonReplication | None = None,
    ) -> Peer:
        """Open a connection and log on."""
        self.open()
        self.say(
            LoggedOn(
                version=0,
                software="test",
                instance="ny-1",
                journal="j1",
                epoch=1,
                publisher=7,
                last_persisted=last_persisted,
                recorded=recorded,
                validated=validated,
                replication=replication,
            )
        )
        return self

    def say(self, command: Command, batch: MessageBatch | None = None) -> None:
        """Send a command from the server."""
        self.core.receive(b"".join(self._server.send(command, batch)), self.now)

    def lose(self) -> None:
        """Break the connection."""
        self.core.receive(ConnectionEnded(Disconnected("broken")), self.now)

    def later(self, seconds: float) -> None:
        """Advance the time and wake the machine if its deadline is due."""
        self.now = Now(self.now.mono + seconds, self.now.wall + int(seconds * 1e6))
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= self.now.mono:
            self.core.wake(self.now)

    def publish_whole(self, topic: str, bodies: list[bytes]) -> int | None:
        """Publish many messages as one batch."""
        make = partial(batch_from_bodies, topic, bodies)
        return self.core.publishing.publish_whole(topic, len(bodies), sum(map(len, bodies)), make)

    def sent(self) -> list[tuple[Command, MessageBatch | None]]:
        """Return the commands of the client since the last call."""
        self._collect()
        taken, self.commands = self.commands, []
        return taken

    def published(self) -> list[tuple[Publish, MessageBatch]]:
        """Return the commands of the client, which must all be publishes."""
        frames = []
        for command, batch in self.sent():
            assert isinstance(command, Publish)
            assert batch is not None
            frames.append((command, batch))
        return frames

    def took(self, kind: type[Kind]) -> list[Any]:
        """Return the effects of one kind since the last call."""
        self._collect()
        taken = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return taken

    def outcome(self, token: object) -> object:
        """Return the only outcome of the call with this token."""
        outcomes = [effect.outcome for effect in self.took(ResolveCall) if effect.token == token]
        assert len(outcomes) == 1, outcomes
        return outcomes[0]

    def _collect(self) -> None:
        for effect in self.core.effects():
            if isinstance(effect, Send):
                for event in self._server.feed(b"".join(effect.buffers)):
                    assert isinstance(event, Received), event
                    if isinstance(event.command, Logon):
                        self._server.logged_on()
                    self.commands.append((event.command, event.batch))
            else:
                self.effects.append(effect)


def publish(peer: Peer, *texts: bytes, topic: str = "orders") -> list[int | None]:
    """Publish each text and return the sequences."""
    return [peer.core.publishing.publish(topic, text) for text in texts]


def bodies(frames: list[tuple[Publish, MessageBatch]]) -> list[list[bytes]]:
    """Return the bodies of each frame."""
    return [batch.bodies_list() for _, batch in frames]
