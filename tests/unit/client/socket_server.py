"""A small server on real sockets for client tests: one thread per connection, all data in memory.

It is not the product's server: it records every topic except those starting with `un/`, supports no patterns
and answers at once.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.listen_addresses import listening
from tickertape.batch.derive import select_topic, slice_batch
from tickertape.batch.message_batch import MessageBatch
from tickertape.wire.commands import (
    Ack,
    Command,
    Completed,
    Credit,
    Deleted,
    Deliver,
    Ended,
    Flush,
    Goodbye,
    LoggedOn,
    Logon,
    LogonReplication,
    Persisted,
    Processed,
    Publish,
    Rejected,
    Resolve,
    Resolved,
    Subscribe,
    Unsubscribe,
)
from tickertape.wire.connection import Connection, Received
from tickertape.wire.sow_command import SOW_TOPIC


class SocketServer:
    """A server on a free port or a Unix socket. `log` has the recorded batches in order."""

    def __init__(self, path: Path | None = None) -> None:
        self._listener, self.uri = listening(path)
        self.lock = threading.Lock()
        self.log: list[MessageBatch] = []
        self.last_persisted = 0
        self.refuse: Goodbye | None = None
        self.replication: LogonReplication | None = None
        self.mute = False
        """Whether publishes get no answer."""
        self.answers_from = 0
        """The number of recorded messages before the first answer to a publish."""
        self.deaf = False
        """Whether each connection gets an answer to its first subscribe only."""
        self.backlog = 0
        """The backlog granted to subscriptions. If it is not 0, all messages go through queues."""
        self.deletes: deque[tuple[int | None, bool]] = deque()
        """Answers to the next deletes: the number of records, None if unknown, and whether more match."""
        self.logons: list[Logon] = []
        self.sessions: list[Session] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def bodies(self) -> list[bytes]:
        """Return all recorded bodies."""
        with self.lock:
            return [body for batch in self.log for body in batch.bodies_list()]

    def drop(self) -> None:
        """Break every connection. The server processes no data of them afterwards."""
        threads = tuple(self._threads)
        for session in tuple(self.sessions):
            session.hang_up()
        for thread in threads:
            if thread.is_alive():
                thread.join()

    def close(self) -> None:
        """Stop the server and wait for its threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        self.drop()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            session = Session(self, connection)
            thread = threading.Thread(target=session.run)
            self._threads.append(thread)
            self.sessions.append(session)
            thread.start()


class Session:
    """A connection of the server."""

    def __init__(self, server: SocketServer, connection: socket.socket) -> None:
        self._server = server
        self._socket = connection
        self._wire = Connection("server")
        self._subscriptions: dict[str, str] = {}
        self._sending = threading.Lock()
        self.credits: list[Credit] = []
        self.unanswered = threading.Event()
        """Whether a subscribe got no answer."""
        self.unsubscribed = threading.Event()
        """Whether the connection has unsubscribed."""
        self._windows: dict[str, int] = {}
        self._remaining: dict[str, int] = {}
        """The remaining credit of each replay."""
        self._due: dict[str, deque[tuple[Command, MessageBatch | None]]] = {}
        """The unsent commands of each replay."""

    @property
    def subscribed(self) -> bool:
        """Whether the connection has a live subscription."""
        return bool(self._subscriptions)

    def run(self) -> None:
        """Serve until the connection ends."""
        with self._socket:
            while True:
                try:
                    data = self._socket.recv(1 << 18)
                except OSError:
                    break
                if not data:
                    break
                for event in self._wire.feed(data):
                    assert isinstance(event, Received), event
                    self._take(event.command, event.batch)

    def hang_up(self) -> None:
        """Break the connection."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def say(self, command: Command, batch: MessageBatch | None = None) -> None:
        """Send a command."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(b"".join(self._wire.send(command, batch)))

    def _take(self, command: Command, batch: MessageBatch | None) -> None:
        server = self._server
        if isinstance(command, Logon):
            self._log_on(command)
        elif isinstance(command, Publish):
            assert batch is not None
            if not server.mute:
                self._publish(command, batch)
        elif isinstance(command, Flush):
            self.say(Ack(id=command.id))
        elif isinstance(command, Subscribe):
            self._subscribe(command)
        elif isinstance(command, Unsubscribe):
            for sub_id in command.sub_ids:
                self._subscriptions.pop(sub_id, None)  # a deaf server does not have it
            self.unsubscribed.set()
            self.say(Ack(id=command.id))
        elif isinstance(command, Resolve):
            with server.lock:
                end = sum(len(batch) for batch in server.log)
            self.say(Resolved(id=command.id, journal="j1", start=0, end=end))
        elif isinstance(command, Credit):
            self.credits.append(command)
            if command.sub_id in self._remaining:
                self._remaining[command.sub_id] += command.bytes
                self._replay(command.sub_id)

    def _log_on(self, command: Logon) -> None:
        server = self._server
        server.logons.append(command)
        if server.refuse is not None:
            self.say(server.refuse)
            self.hang_up()
            return
        self._wire.logged_on()
        answer = LoggedOn(
            version=0,
            software="test",
            instance="ny-1",
            journal="j1",
            epoch=1,
            publisher=7,
            last_persisted=server.last_persisted,
            recorded=("orders", "^rec/"),
            replication=server.replication,
        )
        self.say(answer)

    def _publish(self, command: Publish, batch: MessageBatch) -> None:
        server = self._server
        if "rec/refused" in batch.topics:
            self.say(Rejected(frame=command.frame, code="bad_message", text="refused"))
            return
        if any(topic.startswith("un/") for topic in batch.topics):
            self.say(Processed(frame=command.frame))
        else:
            with server.lock:
                server.log.append(batch)
                if command.sequenced:
                    server.last_persisted = int(batch.sequences[-1])
                recorded = sum(len(batch) for batch in server.log)
            if SOW_TOPIC in batch.topics and server.deletes:
                self.say(self._deleted(command, batch))
            if recorded >= server.answers_from:
                self.say(Persisted(frame=command.frame, sequence=server.last_persisted))
        for session in tuple(server.sessions):
            session.hand_on(batch)

    def _deleted(self, command: Publish, batch: MessageBatch) -> Deleted:
        server = self._server
        answers = server.deletes
        count, more = answers.popleft()
        counted = count is not None
        return Deleted(
            frame=command.frame,
            sequence=int(batch.sequences[0]) if command.sequenced else 0,
            matches=(count or 0) + sum(left or 0 for left, _ in answers),
            topic_matches=100,
            deleted=count or 0,
            more=more,
            position=1_000 + len(server.log) if counted else None,
            counted=counted,
        )

    def hand_on(self, batch: MessageBatch) -> None:
        """Deliver to the subscriptions of this connection."""
        for sub_id, topic in list(self._subscriptions.items()):
            part = select_topic(batch, topic)
            if part is not None:
                self.say(Deliver(sub_id=sub_id, queue=topic if self._server.backlog else ""), part)

    def _subscribe(self, command: Subscribe) -> None:
        server = self._server
        if server.deaf and self._subscriptions:
            self.unanswered.set()
            return
        if command.journal not in (None, "j1"):
            self.say(Ack(id=command.id, code="wrong_journal", text="this is j1"))
            return
        self.say(Ack(id=command.id, start=0, backlog=server.backlog))
        if command.bookmark is None and command.positions is None:
            self._subscriptions[command.sub_id] = command.topic
            return
        self._remaining[command.sub_id] = self._windows[command.sub_id] = command.credit
        due = self._due[command.sub_id] = deque()
        start, stop = command.positions or (0, 1 << 60)
        position = 0
        for batch in list(server.log):
            begin, end = max(start - position, 0), min(stop - position, len(batch))
            position += len(batch)
            part = slice_batch(batch, begin, end) if begin < end else None
            part = None if part is None else select_topic(part, command.topic)
            if part is not None:
                step = len(part) if part.cost <= command.credit else 1
                for at in range(0, len(part), step):
                    piece = slice_batch(part, at, at + step)
                    due.append((Deliver(sub_id=command.sub_id, next=position), piece))
        due.append((Completed(sub_id=command.sub_id, next=position), None))
        if command.until_caught_up or command.positions is not None:
            due.append((Ended(sub_id=command.sub_id), None))
        else:
            self._subscriptions[command.sub_id] = command.topic
        self._replay(command.sub_id)

    def _replay(self, sub_id: str) -> None:
        """Send commands of a replay up to the credit."""
        due = self._due[sub_id]
        while due:
            command, batch = due[0]
            cost = 0 if batch is None else batch.cost
            if cost > self._remaining[sub_id] < self._windows[sub_id]:
                return
            due.popleft()
            self._remaining[sub_id] -= cost
            self.say(command, batch)


@contextlib.contextmanager
def socket_server(path: Path | None = None) -> Iterator[SocketServer]:
    """Run a server."""
    server = SocketServer(path)
    try:
        yield server
    finally:
        server.close()


def log_on_and_stop_reading(listener: socket.socket, read_on: threading.Event) -> None:
    """Serve one connection: accept its logon, then read nothing until `read_on`."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        answer = LoggedOn(
            version=0, software="t", instance="i", journal="j", epoch=1, publisher=1, last_persisted=0
        )
        connection.sendall(b"".join(Connection("server").send(answer)))
        read_on.wait(20)
        with contextlib.suppress(ConnectionError):
            while connection.recv(1 << 20):
                pass
