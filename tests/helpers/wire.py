"""Two connection state machines joined back to back, and functions that feed them.

Must never judge: tests do.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tickertape.base.errors import PeerError
from tickertape.base.interfaces import Buffer
from tickertape.batch import MessageBatch, batch_from_bodies
from tickertape.wire.accepted_connection import AcceptedConnection
from tickertape.wire.commands import PREFACE, Command, LoggedOn, Logon
from tickertape.wire.connection import Connection, Event, Received, Violation
from tickertape.wire.link_connection import LinkConnection

LOGON = Logon(name="pricing-1", software="tests")
LOGGED_ON = LoggedOn(
    version=0, software="tests", instance="ny-1", journal="j-1", epoch=1, publisher=7, last_persisted=41
)


class Seen(NamedTuple):
    """An event as a value that compares: batches by their bytes, errors by code and text."""

    command: Command | None
    batch: bytes | None
    code: str
    text: str


def seen(event: Event) -> Seen:
    if isinstance(event, Received):
        return Seen(event.command, None if event.batch is None else event.batch.encode(), "", "")
    return Seen(None, None, event.error.code, str(event.error))


def read_in(
    connection: Connection | LinkConnection | AcceptedConnection, data: Buffer, step: int | None = None
) -> list[Event]:
    """Bring `data` in through `buffer()` and `received`, at most `step` bytes a read."""
    events: list[Event] = []
    rest = memoryview(data)
    while rest:
        room = connection.buffer()
        size = min(len(room), len(rest), step or len(rest))
        room[:size] = rest[:size]
        events += connection.received(size)
        rest = rest[size:]
    return events


def joined(buffers: Iterable[Buffer]) -> bytes:
    return b"".join(buffers)


def only_error(events: Sequence[Event]) -> PeerError:
    """Return the error of the only event in `events`, a violation."""
    assert len(events) == 1, events
    (event,) = events
    assert isinstance(event, Violation), event
    return event.error


def batch_of(count: int = 1, size: int = 20, topic: str = "orders", first: int = 1) -> MessageBatch:
    """Return a batch of bodies that differ from each other and from zeros."""
    bodies = [(b"%08x" % zlib.crc32(b"%d" % (first + i)) * (size // 8 + 1))[:size] for i in range(count)]
    return batch_from_bodies(topic, bodies, publisher=7, first_sequence=first)


class Pair:
    """A client and a server connection. Each receives the other's bytes, at most `step` a read."""

    def __init__(self, step: int | None = None) -> None:
        self.client = Connection("client")
        self.server = Connection("server")
        self.step = step
        self.at_server: list[Event] = []
        self.at_client: list[Event] = []

    def log_on(self, logon: Logon = LOGON, answer: LoggedOn = LOGGED_ON) -> None:
        """Do the whole logon. `at_server` and `at_client` have the events of both sides."""
        self.at_server += read_in(self.server, self.client.preface(), self.step)
        self.from_client((logon, None))
        self.server.logged_on()
        self.from_server((answer, None))
        self.client.logged_on()

    def from_client(self, *sent: tuple[Command, MessageBatch | None]) -> list[Event]:
        """Send all of `sent` as one piece of stream, and return the events at the server."""
        stream = b"".join(joined(self.client.send(command, batch)) for command, batch in sent)
        events = read_in(self.server, stream, self.step)
        self.at_server += events
        return events

    def from_server(self, *sent: tuple[Command, MessageBatch | None]) -> list[Event]:
        """Send all of `sent` as one piece of stream, and return the events at the client."""
        stream = b"".join(joined(self.server.send(command, batch)) for command, batch in sent)
        events = read_in(self.client, stream, self.step)
        self.at_client += events
        return events


def server_logged_on(scratch: memoryview | None = None) -> Connection:
    """Return a server connection after the logon of its client."""
    server = Connection("server", scratch=scratch)
    events = read_in(server, PREFACE + joined(Connection("client").send(LOGON)))
    assert [seen(event).command for event in events] == [LOGON]
    server.logged_on()
    return server


def client_logged_on() -> Connection:
    """Return a client connection that has its `LoggedOn`."""
    client = Connection("client")
    events = read_in(client, joined(Connection("server").send(LOGGED_ON)))
    assert [seen(event).command for event in events] == [LOGGED_ON]
    client.logged_on()
    return client
