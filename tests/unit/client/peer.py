"""Owns a scripted server for the client machine: commands in, commands out, no socket.

Must never decide anything: a test says every answer.
"""

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
from tickertape.wire.commands import Command, LoggedOn, Logon, Publish
from tickertape.wire.connection import Connection, Received

START = Now(100.0, 1_800_000_000_000_000)
FRESH = START.wall * 1000 + 1
"""The first sequence of a fresh store at `START`."""

Kind = TypeVar("Kind")


class UnusedSink:
    """A sink of which nothing is called: the test looks at the effects."""

    __slots__ = ()

    def push(self, batch: MessageBatch) -> None:
        raise AssertionError(self)

    def started(self, after: str, found: bool) -> None:
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
    """A waiter that is not called."""

    __slots__ = ()

    def settle(self, outcome: object) -> None:
        raise AssertionError(self)


class Named(UnusedSink, UnusedWaiter, str):
    """A waiter and a sink with a name."""

    __slots__ = ()


class Peer:
    """A client machine and the server it talks to, without anything between them."""

    def __init__(self, store: PublishStore | None = None, *, name: str = "pricing-1") -> None:
        self.core = ClientProtocol(name, user="ann", password="secret")
        self.now = START
        self.commands: list[tuple[Command, MessageBatch | None]] = []
        self.effects: list[Effect] = []
        self._server = Connection("server")
        if store is not None:
            self.core.set_store(store, self.now)

    def open(self) -> Logon:
        """Bring a connection up as far as the client's logon."""
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
    ) -> Peer:
        """Bring a connection up and log on."""
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
            )
        )
        return self

    def say(self, command: Command, batch: MessageBatch | None = None) -> None:
        """The server sends a command."""
        self.core.receive(b"".join(self._server.send(command, batch)), self.now)

    def lose(self) -> None:
        """The connection breaks."""
        self.core.receive(ConnectionEnded(Disconnected("broken")), self.now)

    def later(self, seconds: float) -> None:
        """Time passes, and the machine is woken if it wanted that."""
        self.now = Now(self.now.mono + seconds, self.now.wall + int(seconds * 1e6))
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= self.now.mono:
            self.core.wake(self.now)

    def publish_whole(self, topic: str, bodies: list[bytes]) -> int | None:
        """The application publishes many messages as one batch."""
        make = partial(batch_from_bodies, topic, bodies)
        return self.core.publishing.publish_whole(topic, len(bodies), sum(map(len, bodies)), make)

    def sent(self) -> list[tuple[Command, MessageBatch | None]]:
        """The commands that came from the client since the last call."""
        self._collect()
        taken, self.commands = self.commands, []
        return taken

    def published(self) -> list[tuple[Publish, MessageBatch]]:
        """As `sent`, when there are only publishes."""
        frames = []
        for command, batch in self.sent():
            assert isinstance(command, Publish)
            assert batch is not None
            frames.append((command, batch))
        return frames

    def took(self, kind: type[Kind]) -> list[Any]:
        """The effects of one kind since the last call; waiters and sinks are the names given to them."""
        self._collect()
        taken = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return taken

    def outcome(self, token: object) -> object:
        """What the call with this token was resolved with; exactly one outcome."""
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
    """Publish each of them; what the client machine returned."""
    return [peer.core.publishing.publish(topic, text) for text in texts]


def bodies(frames: list[tuple[Publish, MessageBatch]]) -> list[list[bytes]]:
    """The bodies of each frame."""
    return [batch.bodies_list() for _, batch in frames]
