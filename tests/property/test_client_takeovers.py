"""Two clients of one name against a model server: takeovers, lost connections, crashes of all three.

Every message covered by a successful `publish_flush` is in the log, under the number of its client. Messages
that the client cannot know to be stored stay in its store and are reported.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from tests.unit.client.peer import Named
from tickertape.base.errors import Disconnected, NameInUse, PublisherTakenOver
from tickertape.base.interfaces import Now
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.effects import EndConnection, FailedWrite, ResolveCall, Send
from tickertape.client.protocol.core import ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.client.publish_store import (
    FilePublishStore,
    HybridPublishStore,
    MemoryPublishStore,
    PublishStore,
    file,
)
from tickertape.wire.commands import Command, Goodbye, LoggedOn, Logon, Persisted, Publish
from tickertape.wire.connection import Connection, Received

RUNS = 160
RUNS_ON_DISK = 40
STEPS = 300


class Server:
    """One log of numbered bodies. A logon closes the previous connection of its name. A crash loses unsynced
    messages.
    """

    def __init__(self) -> None:
        self.durable: dict[int, bytes] = {}
        self.waiting: dict[int, bytes] = {}
        self.owed: list[tuple[Client, int, int]] = []
        self.holder: Client | None = None

    @property
    def highest(self) -> int:
        return max([*self.durable, *self.waiting], default=0)

    def commit(self) -> None:
        self.durable.update(self.waiting)
        self.waiting.clear()
        for client, frame, sequence in self.owed:
            if client is self.holder:
                client.said += b"".join(client.far.send(Persisted(frame=frame, sequence=sequence)))
        self.owed.clear()

    def crash(self) -> None:
        self.waiting.clear()
        self.owed.clear()
        if self.holder is not None:
            self.holder.lose()

    def take(self, client: Client, command: Command, batch: MessageBatch | None) -> None:
        if isinstance(command, Logon):
            self.logon(client)
        elif isinstance(command, Publish) and client is self.holder:
            assert batch is not None
            numbers = batch.sequences.tolist()
            for number, body in zip(numbers, batch.bodies_list(), strict=True):
                if number > self.highest:
                    self.waiting[number] = body
            self.owed.append((client, command.frame, numbers[-1]))

    def logon(self, client: Client) -> None:
        old, self.holder = self.holder, client
        if old is not None and old is not client:
            old.said += b"".join(old.far.send(Goodbye(code=NameInUse.code, text="taken over")))
            old.cut = True
        self.commit()
        client.far.logged_on()
        last = max(self.durable, default=0)
        answer = LoggedOn(
            version=0, software="m", instance="m", journal="j", epoch=1, publisher=1, last_persisted=last
        )
        client.said += b"".join(client.far.send(answer))


class Client:
    """One process: its state machine, its store, and the results of its flushes."""

    def __init__(self, world: World, label: str, skew: int) -> None:
        self.world = world
        self.label = label
        self.skew = skew
        self.number = 0
        self.far = Connection("server")
        self.begin()

    def begin(self, path: Path | None = None) -> None:
        """Start a new process, with the store at `path` only."""
        self.store, self.path = self.world.opened(path)
        self.core = ClientProtocol("shared")
        self.core.set_store(self.store, self.now)
        self.given: dict[int, bytes] = {
            int(n): body
            for s in self.store.held()
            for n, body in zip(s.batch.sequences, s.batch.bodies_list(), strict=True)
        }
        self.flushes: dict[object, dict[int, bytes]] = {}
        self.open = self.cut = False
        self.sent = self.said = b""

    @property
    def now(self) -> Now:
        now = self.world.now
        return Now(now.mono, now.wall + self.skew)

    def publish(self) -> None:
        for _ in range(self.world.random.choice((1, 1, 3, 20))):
            self.number += 1
            body = b"%s %d" % (self.label.encode(), self.number)
            try:
                sequence = self.core.publishing.publish("orders", body)
            except PublisherTakenOver:
                self.taken_over()
                return
            assert sequence is not None
            assert sequence not in self.given
            past = self.world.server.durable.get(sequence, b"")
            assert not past.startswith(self.label.encode()), "a number of the past is given again"
            self.given[sequence] = body

    def flush(self) -> None:
        self.number += 1
        try:
            self.core.flush(Named(self.number), "persisted")
        except Disconnected:
            return
        except PublisherTakenOver:
            self.taken_over()
            return
        self.flushes[Named(self.number)] = dict(self.given)

    def taken_over(self) -> None:
        self.world.taken_over += 1
        held = {
            int(n): b
            for s in self.store.held()
            for n, b in zip(s.batch.sequences, s.batch.bodies_list(), strict=True)
        }
        missing = {n for n, body in self.given.items() if self.world.server.durable.get(n) != body}
        assert missing <= set(held), "a message that the log lacks is in the store"
        self.settle()
        self.lose()
        self.store.close()
        self.begin()

    def connect(self) -> None:
        if not self.open:
            self.open, self.cut = True, False
            self.sent = self.said = b""
            self.far = Connection("server")
            self.core.receive(ConnectionOpened(Named("logon")), self.now)

    def lose(self) -> None:
        server = self.world.server
        if server.holder is self:
            server.holder = None
        if self.open:
            self.open = False
            self.core.receive(ConnectionEnded(Disconnected("cut")), self.now)

    def kill(self) -> None:
        """Kill the process. The next one has its store, or a new one under the same name."""
        path = None
        if self.path is not None and self.world.random.random() < 0.7:
            path = self.path.with_name(self.path.name + "x")
            shutil.copytree(self.path, path)
            self.world.reopened += 1
        self.lose()
        self.store.close()
        self.begin(path)

    def transfer(self) -> None:
        random, server = self.world.random, self.world.server
        if not self.open:
            return
        if not self.cut:
            count = random.choice((1, 200, 1 << 20))
            data, self.sent = self.sent[:count], self.sent[count:]
            for event in self.far.feed(data):
                assert isinstance(event, Received), event
                server.take(self, event.command, event.batch)
        count = random.choice((1, 200, 1 << 20))
        data, self.said = self.said[:count], self.said[count:]
        if data:
            self.core.receive(data, self.now)
        elif self.cut:
            self.lose()

    def settle(self) -> None:
        for effect in self.core.effects():
            if isinstance(effect, Send):
                self.sent += b"".join(effect.buffers)
            elif isinstance(effect, ResolveCall) and str(effect.token) != "logon":
                promised = self.flushes.pop(effect.token)
                if effect.outcome is None:
                    self.world.promised.update(promised)
            elif isinstance(effect, EndConnection):
                self.cut = True
            assert not isinstance(effect, FailedWrite), effect


class World:
    """A schedule."""

    def __init__(self, seed: int, kind: str = "memory", directory: Path | None = None) -> None:
        self.random = Random(seed)
        self.kind = kind
        self.directory = directory
        self.made = self.reopened = 0
        self.now = Now(1.0, 1_800_000_000_000_000)
        self.server = Server()
        self.promised: dict[int, bytes] = {}
        self.taken_over = 0
        skew = (0, 0, 50, 10**9)[seed % 4]
        self.clients = [Client(self, "a", skew)]
        self.tick()
        self.clients.append(Client(self, "b", 0))

    def opened(self, path: Path | None) -> tuple[PublishStore, Path | None]:
        """Return the store at `path`, or a new one, and its path."""
        if self.directory is None:
            return MemoryPublishStore(), None
        if path is None:
            self.made += 1
            path = self.directory / str(self.made)
        if self.kind == "file":
            return FilePublishStore(path), path
        return HybridPublishStore(path, "1KB"), path

    def tick(self) -> None:
        # Always enough for the clock to stay ahead of the numbers, one a nanosecond, that a step gives.
        self.now = Now(self.now.mono + 0.001, self.now.wall + self.random.choice((1, 40, 10**6)))

    def step(self) -> None:
        self.tick()
        client = self.random.choice(self.clients)
        actions = [
            *[client.publish] * 4,
            *[client.transfer] * 12,
            *[self.server.commit] * 2,
            *[client.connect] * 2,
            client.flush,
            client.flush,
            client.lose,
        ]
        if self.random.random() < 0.05:
            actions = [client.kill, self.server.crash]
        self.random.choice(actions)()
        for each in self.clients:
            each.settle()
        for number, body in self.promised.items():
            assert self.server.durable.get(number) == body, (
                "a flush succeeded and its message is not in the log"
            )


@pytest.mark.parametrize("block", range(8))
def test_flushed_messages_of_two_processes_with_one_name_are_in_the_log(block: int) -> None:
    for seed in range(block * RUNS // 8, (block + 1) * RUNS // 8):
        world = World(seed)
        try:
            for _ in range(STEPS):
                world.step()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "hybrid"])
def test_flushed_messages_with_stores_reopened_by_the_next_process_are_in_the_log(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "publish_segment_bytes", 64 << 10)
    reopened = taken_over = promised = 0
    for seed in range(RUNS_ON_DISK):
        directory = tmp_path / str(seed)
        directory.mkdir()
        world = World(seed, kind, directory)
        try:
            for _ in range(STEPS):
                world.step()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        for client in world.clients:
            client.store.close()
        shutil.rmtree(directory)
        reopened += world.reopened
        taken_over += world.taken_over
        promised += len(world.promised)
    assert min(reopened, taken_over) > 10
    assert promised > 500


def test_takeover_simulation_covers_takeovers_and_flushed_messages() -> None:
    taken_over = promised = 0
    for seed in range(40):
        world = World(seed)
        for _ in range(STEPS):
            world.step()
        taken_over += world.taken_over
        promised += len(world.promised)
    assert taken_over > 10
    assert promised > 500
