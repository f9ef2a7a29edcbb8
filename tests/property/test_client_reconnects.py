"""Client state machine and a model server on a network that slices, delays and cuts, without sockets.

With a publish store every message is stored exactly once, in order. No message leaves the store before it is
durable. A successful flush is true. Every call has one outcome.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from tests.helpers.tiers import parts
from tests.unit.client.peer import Named
from tickertape.base.errors import Disconnected, PublishRejected
from tickertape.base.interfaces import Now
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.effects import ConnectionDown, EndConnection, FailedWrite, ResolveCall, Send
from tickertape.client.protocol.core import ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.client.publish_store import (
    FilePublishStore,
    HybridPublishStore,
    MemoryPublishStore,
    PublishStore,
)
from tickertape.wire.commands import (
    Ack,
    Command,
    Flush,
    LoggedOn,
    Logon,
    Persisted,
    Processed,
    Publish,
    Rejected,
)
from tickertape.wire.connection import Connection, Received

RUNS = 100
PARTS_FULL = 500
"""A full run has this many times as many: 50,000."""
STEPS = 120


class ModelServer:
    """The server's guarantees without a disk: commits on request, and drops duplicates by sequence."""

    def __init__(self, refuses: bool) -> None:
        self.durable: list[tuple[int, bytes]] = []
        self.unrecorded: list[bytes] = []
        self.refused: list[bytes] = []
        self._refuses = refuses
        self._waiting: list[tuple[int, bytes]] = []
        self._highest = 0
        self._connection = Connection("server")
        self._answers: list[tuple[int, Command]] = []
        """Commands to send, each with the number of durable messages that it waits for."""
        self.out = b""

    @property
    def _accepted(self) -> int:
        return len(self.durable) + len(self._waiting)

    def opened(self) -> None:
        """Open a connection. Messages accepted on the last one may still become durable."""
        self._connection = Connection("server")
        self._answers = []
        self.out = b""

    def crash(self) -> None:
        """Lose the messages that are not durable."""
        self._waiting = []
        self._highest = max((sequence for sequence, _ in self.durable), default=0)

    def commit(self, count: int) -> None:
        """Make the next `count` messages durable, and send the answers that waited for them."""
        self.durable += self._waiting[:count]
        del self._waiting[:count]
        rest = []
        for need, command in self._answers:
            if need <= len(self.durable):
                self._send(command)
            else:
                rest.append((need, command))
        self._answers = rest

    def feed(self, data: bytes) -> None:
        for event in self._connection.feed(data):
            assert isinstance(event, Received), event
            command = event.command
            if isinstance(command, Logon):
                self._connection.logged_on()
                last = max((sequence for sequence, _ in self.durable), default=0)
                self._send(
                    LoggedOn(
                        version=0,
                        software="model",
                        instance="m",
                        journal="j",
                        epoch=1,
                        publisher=1,
                        last_persisted=last,
                        recorded=("orders", "trades", "refused"),
                    )
                )
            elif isinstance(command, Publish):
                assert event.batch is not None
                self._publish(command, event.batch)
            elif isinstance(command, Flush):
                self._answer(Ack(id=command.id))

    def _publish(self, command: Publish, batch: MessageBatch) -> None:
        if not command.sequenced and batch.topics[0].startswith("un"):
            assert all(topic.startswith("un") for topic in batch.topics)
            self.unrecorded += batch.bodies_list()
            self._send(Processed(frame=command.frame))
            return
        assert not any(topic.startswith("un") for topic in batch.topics)
        if self._refuses and "refused" in batch.topics:
            self.refused += batch.bodies_list()
            self._send(Rejected(frame=command.frame, code="bad_message", text="refused"))
            return
        sequences = batch.sequences.tolist() if command.sequenced else [0] * len(batch)
        for sequence, body in zip(sequences, batch.bodies_list(), strict=True):
            if not command.sequenced or sequence > self._highest:
                self._waiting.append((sequence, body))
                self._highest = max(self._highest, sequence)
        self._answer(Persisted(frame=command.frame, sequence=sequences[-1]))

    def _answer(self, command: Command) -> None:
        self._answers.append((self._accepted, command))

    def _send(self, command: Command) -> None:
        self.out += b"".join(self._connection.send(command))


class World:
    """One client, one server, one seed."""

    def __init__(self, seed: int, store: PublishStore | None = None) -> None:
        self.random = Random(seed)
        self.stored = seed % 4 != 0
        self.cuts = seed % 3 != 0
        self.crashes = seed % 5 == 0
        self.server = ModelServer(refuses=not self.cuts)
        self.core = ClientProtocol("model")
        self.store = MemoryPublishStore() if store is None else store
        self.now = Now(1.0, 1_800_000_000_000_000)
        if self.stored:
            self.core.set_store(self.store, self.now)
        self.accepted: dict[int, bytes] = {}
        self.unsequenced: list[bytes] = []
        self.this_connection: list[bytes] = []
        self.refused: list[bytes] = []
        self.flushes: dict[object, list[bytes]] = {}
        self.flush_outcomes = 0
        self.to_server = b""
        self.open = False
        self.connections = 0
        self.downs = 0
        self.number = 0

    # -- events ---------------------------------------------------------------------------------------

    def publish(self) -> None:
        for _ in range(self.random.choice((1, 1, 2, 7, 40))):
            self.number += 1
            size = self.random.choice((0, 10, 10, 100, 5000, 70_000 if self.number % 50 == 0 else 50))
            body = b"%d." % self.number + b"x" * size
            topics = ["orders", "orders", "orders", "trades", "un/ticks"]
            topic = self.random.choice(topics if self.cuts else [*topics, "refused"])
            try:
                sequence = self.core.publishing.publish(topic, body)
            except Disconnected:
                assert self.core.logon.logged_on is None
                assert not self.stored or topic == "un/ticks"
                continue
            if topic == "un/ticks":
                continue  # before the first logon it has a sequence all the same
            self.this_connection.append(body)
            if self.stored:
                assert sequence is not None
                assert sequence not in self.accepted
                assert sequence > max(self.accepted, default=0)
                self.accepted[sequence] = body
            else:
                assert sequence is None
                self.unsequenced.append(body)

    def flush(self) -> None:
        self.number += 1
        token = Named(self.number)
        try:
            self.core.flush(token, "persisted")
        except Disconnected:
            return
        self.flushes[token] = list(self.this_connection)

    def client_to_server(self) -> None:
        count = self.random.choice((1, 50, 1000, 1 << 20))
        data, self.to_server = self.to_server[:count], self.to_server[count:]
        self.server.feed(data)

    def server_to_client(self) -> None:
        count = self.random.choice((1, 50, 1 << 20))
        data, self.server.out = self.server.out[:count], self.server.out[count:]
        if data and self.open:
            self.core.receive(data, self.now)

    def commit(self) -> None:
        self.server.commit(self.random.choice((1, 3, 1000)))

    def cut(self) -> None:
        if not self.open or not self.cuts:
            return
        self.client_to_server()
        if self.crashes and self.random.random() < 0.5:
            self.server.crash()
        self.lose()

    def connect(self) -> None:
        if self.open:
            return
        self.server.opened()
        self.open = True
        self.connections += 1
        self.this_connection = list(self.accepted.values())
        self.core.receive(ConnectionOpened(Named("logon")), self.now)

    def lose(self) -> None:
        self.open = False
        self.to_server = b""
        self.core.receive(ConnectionEnded(Disconnected("cut")), self.now)

    # -- carrying out and checking --------------------------------------------------------------------

    def settle(self) -> None:
        durable = None
        for effect in self.core.effects():
            if isinstance(effect, Send):
                assert self.open
                self.to_server += b"".join(effect.buffers)
            elif isinstance(effect, ResolveCall) and str(effect.token) != "logon":
                self.flush_outcomes += 1
                asked = self.flushes.pop(effect.token)
                if effect.outcome is None:
                    durable = durable or {body for _, body in self.server.durable}
                    missing = set(asked) - durable - set(self.server.refused)
                    assert not missing, "a flush succeeded before all was persisted"
                else:
                    assert isinstance(effect.outcome, Disconnected | PublishRejected)
            elif isinstance(effect, FailedWrite):
                assert not self.cuts, effect.error
                if effect.batch is not None:
                    self.refused += effect.batch.bodies_list()
            elif isinstance(effect, ConnectionDown):
                self.downs += 1
            else:
                assert not isinstance(effect, EndConnection), effect

    def check_store(self) -> None:
        if not self.stored:
            return
        held = [int(n) for stored in self.store.held() for n in stored.batch.sequences]
        assert held == sorted(set(held))
        settled = {sequence for sequence, _ in self.server.durable}
        refused = set(self.server.refused)
        for sequence, body in self.accepted.items():
            if sequence not in settled and body not in refused and held and sequence < held[0]:
                pytest.fail(f"{sequence} left the store before it was durable")
        gathered = self.core.publishing.unpersisted_count() - len(held)
        unsettled = [n for n, body in self.accepted.items() if n not in settled and body not in refused]
        assert set(unsettled) <= {*held, *sorted(self.accepted)[max(0, len(self.accepted) - gathered) :]}

    def run(self) -> None:
        self.connect()
        actions = [
            *[self.publish] * 4,
            *[self.client_to_server] * 5,
            *[self.server_to_client] * 5,
            *[self.commit] * 3,
            self.flush,
            self.cut,
            self.connect,
        ]
        for _ in range(STEPS):
            self.random.choice(actions)()
            self.settle()
            if self.random.random() < 0.1:
                self.check_store()
        self.finish()

    def finish(self) -> None:
        """Let everything arrive, and compare."""
        self.connect()
        self.settle()
        while self.to_server or self.server.out or self.core.publishing.unsettled():
            self.server.feed(self.to_server)
            self.to_server = b""
            self.server.commit(1 << 30)
            data, self.server.out = self.server.out, b""
            self.core.receive(data, self.now)
            self.settle()
        assert self.flushes == {}
        assert self.downs <= self.connections - 1
        if self.stored:
            refused = set(self.server.refused)
            expected = [(n, body) for n, body in self.accepted.items() if body not in refused]
            assert self.server.durable == expected
            assert self.refused == self.server.refused
            assert self.core.publishing.unpersisted_count() == 0
            assert self.store.size_bytes == 0
        else:
            got = [body for _, body in self.server.durable]
            assert len(got) == len(set(got))
            places = [self.unsequenced.index(body) for body in got]
            assert places == sorted(places)
            if not self.cuts:
                refused = set(self.server.refused)
                assert got == [body for body in self.unsequenced if body not in refused]


@pytest.mark.parametrize("part", parts(PARTS_FULL))
def test_publish_store_with_network_faults_stores_each_message_once_in_order(part: int) -> None:
    for seed in range(part * RUNS, (part + 1) * RUNS):
        world = World(seed)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("kind", ["file", "hybrid"])
def test_publish_store_on_disk_with_network_faults_stores_each_message_once_in_order(
    tmp_path: Path, kind: str
) -> None:
    for seed in (n for n in range(24) if n % 4):
        path = tmp_path / str(seed)
        store = FilePublishStore(path) if kind == "file" else HybridPublishStore(path, "2KB")
        world = World(seed, store)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        last = store.last_sequence
        store.close()
        with FilePublishStore(path) as again:
            assert (again.unpersisted_count(), again.size_bytes) == (0, 0)
            assert again.last_sequence >= last
        shutil.rmtree(path)


def test_reconnect_simulation_covers_losses_flushes_and_refusals() -> None:
    connections = flushes = outcomes = refused = 0
    for seed in range(24):
        world = World(seed)
        world.run()
        connections += world.connections
        flushes += world.flush_outcomes
        refused += len(world.server.refused)
        outcomes += len(world.server.durable)
    assert connections > 60
    assert flushes > 60
    assert refused > 60
    assert outcomes > 2000
