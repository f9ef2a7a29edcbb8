"""Client side of simulated engines: sends commands and records the answers.

Must never look into the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tickertape.batch import BatchBuilder, MessageBatch, select
from tickertape.wire.commands import (
    Ack,
    Command,
    Committed,
    Completed,
    Credit,
    Deliver,
    Ended,
    Goodbye,
    LoggedOn,
    Pause,
    Persisted,
    PersistedNotice,
    Publish,
    Resume,
    Staged,
    Subscribe,
)
from tickertape.wire.connection import Connection, Received

if TYPE_CHECKING:
    from tests.simulation.engine_world import EngineWorld


class Heard(NamedTuple):
    """A message as a subscriber got it."""

    publisher: int
    sequence: int
    topic: str
    body: bytes


class Notice(NamedTuple):
    """A persisted notice, and the number of messages that the subscription had received before it."""

    publisher: int
    sequence: int
    heard: int


class Peer:
    """A client at the other end of the wire, as far as the tests need one."""

    def __init__(self, world: EngineWorld, conn: int, name: str) -> None:
        self.world = world
        self.conn = conn
        self.name = name
        self.wire = Connection("client")
        self.wire.logged_on()
        self.received: list[tuple[Command, MessageBatch | None]] = []
        self.frames = 0
        self.acked_frame = 0
        self.acked_sequence = 0
        self.next_sequence = 1
        self.ids = 0
        self.logged_on: LoggedOn | None = None
        self.goodbye: Goodbye | None = None
        self.closed = False
        """Whether the engine has hung up, behind everything that it sent."""
        self.notices: list[tuple[str, Notice]] = []
        self.answers: dict[int, Command] = {}
        self.heard: dict[str, list[Heard]] = {}
        self.stamps: dict[str, list[tuple[float, int]]] = {}
        """Arrival (monotonic seconds) and recorded time of each message."""
        self.order: list[tuple[str, int, int]] = []
        """Subscription, publisher and sequence of every message, in order of arrival."""
        self.marks: dict[str, list[str]] = {}
        self.owed_credit: dict[str, int] = {}
        self.outstanding: dict[str, int] = {}
        self.credit: dict[str, int] = {}

    def take(self, data: bytes) -> None:
        for event in self.wire.feed(data):
            assert isinstance(event, Received), event
            self._handle(event.command, event.batch)

    def _handle(self, command: Command, batch: MessageBatch | None) -> None:
        self.received.append((command, batch))
        if isinstance(command, Deliver | Completed | Ended | PersistedNotice):
            assert not self.closed, "a closed connection has no subscriptions"
        if isinstance(command, LoggedOn):
            self.logged_on = command
            self.next_sequence = command.last_persisted + 1
        elif isinstance(command, Persisted):
            assert command.frame > self.acked_frame or command.sequence > self.acked_sequence
            self.acked_frame = max(command.frame, self.acked_frame)
            self.acked_sequence = max(command.sequence, self.acked_sequence)
            self.world.acknowledged(self)
        elif isinstance(command, Deliver):
            self.world.counts["deliveries"] += 1
            assert batch is not None
            if command.sub_ids:
                self._delivered_to_several(command, batch)
            else:
                self._delivered(command.sub_id, batch)
        elif isinstance(command, Completed):
            self.marks[command.sub_id].append(f"completed after {len(self.heard[command.sub_id])}")
        elif isinstance(command, Ended):
            self.marks[command.sub_id].append(f"ended {command.code}".strip())
        elif isinstance(command, PersistedNotice):
            self.world.counts["notices"] += len(command.sub_ids)
            for sub_id in command.sub_ids:
                notice = Notice(command.publisher, command.sequence, len(self.heard[sub_id]))
                self.notices.append((sub_id, notice))
        elif isinstance(command, Goodbye):
            self.goodbye = command
        elif isinstance(command, Ack | Staged | Committed):
            self.answers[command.id] = command

    def _delivered_to_several(self, command: Deliver, batch: MessageBatch) -> None:
        self.world.counts["frames for several"] += 1
        counts = np.frombuffer(command.counts, "<u4").tolist()
        indices = np.frombuffer(command.indices, "<u4")
        assert len(counts) == len(command.sub_ids) > 1
        assert sum(counts) == len(indices)
        assert set(indices.tolist()) == set(range(batch.count)), "a message belongs to no subscription"
        ends = np.cumsum(counts).tolist()
        order: list[tuple[int, str]] = []
        for sub_id, count, end in zip(command.sub_ids, counts, ends, strict=True):
            own = indices[end - count : end]
            assert count, "a subscription without a message"
            order += [(index, sub_id) for index in own.tolist()]
            heard = len(self.order)
            self._delivered(sub_id, select(batch, own.astype(np.int64)))
            del self.order[heard:]
        for index, sub_id in sorted(order):
            self.order.append((sub_id, batch.publisher(index), batch.sequence(index)))

    def _delivered(self, sub_id: str, batch: MessageBatch) -> None:
        batch.verify()
        if batch.cost > self.credit[sub_id] - self.outstanding[sub_id]:
            assert (batch.count, self.outstanding[sub_id]) == (1, 0), "beyond its credit"
            self.world.counts["oversized message"] += 1
        self.outstanding[sub_id] += batch.cost
        self.owed_credit[sub_id] += batch.cost
        assert "ended" not in self.marks[sub_id], "nothing comes after the end"
        for i, message in enumerate(batch):
            key = Heard(batch.publisher(i), batch.sequence(i), message.topic, message.data)
            self.heard[sub_id].append(key)
            self.stamps[sub_id].append((self.world.mono, batch.timestamp(i)))
            self.order.append((sub_id, key.publisher, key.sequence))

    def send(self, command: Command, batch: MessageBatch | None = None) -> None:
        self.world.broker.received(self.conn, command, batch, self.world.now())
        self.world.collect()

    def publish(self, topic: str, bodies: list[bytes], *, sequenced: bool = True) -> None:
        builder = BatchBuilder()
        for body in bodies:
            builder.add(topic, body)
        self.frames += 1
        assert self.logged_on is not None
        first, publisher = (self.next_sequence, self.logged_on.publisher) if sequenced else (0, 0)
        batch = MessageBatch.parse(builder.build(publisher, first_sequence=first).encode())
        if sequenced:
            self.next_sequence += len(bodies)
        self.send(Publish(frame=self.frames, sequenced=sequenced), batch)

    def subscribe(
        self, sub_id: str, topic: str, *, bookmark: str | None = None, credit: int = 4096, **more: object
    ) -> int:
        self.ids += 1
        self.heard[sub_id], self.marks[sub_id], self.stamps[sub_id] = [], [], []
        self.owed_credit[sub_id] = self.outstanding[sub_id] = 0
        self.credit[sub_id] = credit
        fields: dict[str, Any] = {"bookmark": bookmark, "credit": credit, **more}
        self.send(Subscribe(id=self.ids, sub_id=sub_id, topic=topic, **fields))
        return self.ids

    def pause(self, *sub_ids: str) -> int:
        self.ids += 1
        self.send(Pause(id=self.ids, sub_ids=sub_ids))
        return self.ids

    def resume(self, *sub_ids: str) -> int:
        self.ids += 1
        self.send(Resume(id=self.ids, sub_ids=sub_ids))
        return self.ids

    def give_credit(self, sub_id: str) -> None:
        owed, self.owed_credit[sub_id] = self.owed_credit[sub_id], 0
        if owed:
            self.outstanding[sub_id] -= owed
            self.send(Credit(sub_id=sub_id, bytes=owed))
