"""Client side of queries of records: collects each result and the messages after it.

Must never look into the engine.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.helpers.sow_engine import SowEngine
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.batch import MessageBatch
from tickertape.wire.commands import (
    Ack,
    Command,
    Completed,
    Ended,
    GroupBegin,
    GroupEnd,
    Records,
    Sow,
    Unsubscribe,
)
from tickertape.wire.sow_command import decode_marks


class Found(NamedTuple):
    """A record as a client got it."""

    publisher: int
    sequence: int
    topic: str
    body: bytes
    key: str | None
    queue: str
    """Name of the queue. Empty for a record of a SOW topic."""
    label: str | None = None
    """Correlation id."""


class Result:
    """The result of one query."""

    def __init__(self) -> None:
        self.groups: list[GroupBegin] = []
        self.records: list[Found] = []
        self.frames: list[int] = []
        """Number of records of each frame."""
        self.end: GroupEnd | None = None
        self.completed: Completed | None = None
        self.ended: Ended | None = None

    @property
    def bodies(self) -> list[bytes]:
        """Bodies of the records, in order."""
        return [record.body for record in self.records]

    @property
    def position(self) -> int:
        """Position of the result."""
        return self.groups[0].position


class SowPeer(Peer):
    """A client that queries records."""

    def __init__(self, world: EngineWorld, conn: int, name: str) -> None:
        super().__init__(world, conn, name)
        self.results: dict[str, Result] = {}

    def query(
        self, sub_id: str, topic: str, *, credit: int = 4096, refused: bool = False, **fields: Any
    ) -> int:
        """Send a query, and return the number of the command.

        `refused`: the query is refused, so the subscription with this id continues."""
        self.ids += 1
        if not refused:
            self._begin(sub_id, credit)
        self.send(Sow(id=self.ids, sub_id=sub_id, topic=topic, credit=credit, **fields))
        return self.ids

    def _begin(self, sub_id: str, credit: int) -> None:
        self.results[sub_id] = Result()
        self.heard[sub_id], self.marks[sub_id], self.stamps[sub_id] = [], [], []
        self.owed_credit[sub_id] = self.outstanding[sub_id] = 0
        self.credit[sub_id] = credit

    def unsubscribe(self, *sub_ids: str) -> int:
        self.ids += 1
        self.send(Unsubscribe(id=self.ids, sub_ids=sub_ids))
        return self.ids

    def answer(self, number: int) -> Ack:
        """Return the answer to a command."""
        answer = self.answers[number]
        assert isinstance(answer, Ack)
        return answer

    def _handle(self, command: Command, batch: MessageBatch | None) -> None:
        super()._handle(command, batch)
        if isinstance(command, GroupBegin):
            assert not self.results[command.sub_id].records, "all groups start before the records"
            self.results[command.sub_id].groups.append(command)
        elif isinstance(command, Records):
            assert batch is not None
            self._found(command, batch)
        elif isinstance(command, GroupEnd):
            result = self.results[command.sub_id]
            assert result.end is None
            assert self.heard[command.sub_id] == [], "messages follow the result"
            result.end = command
        elif isinstance(command, Completed) and command.sub_id in self.results:
            assert self.results[command.sub_id].end is not None
            self.results[command.sub_id].completed = command
        elif isinstance(command, Ended) and command.sub_id in self.results:
            self.results[command.sub_id].ended = command

    def _found(self, command: Records, batch: MessageBatch) -> None:
        batch.verify()
        sub_id = command.sub_id
        result = self.results[sub_id]
        assert result.end is None, "records after the end of the result"
        if batch.cost > self.credit[sub_id] - self.outstanding[sub_id]:
            assert (batch.count, self.outstanding[sub_id]) == (1, 0), "beyond its credit"
        self.outstanding[sub_id] += batch.cost
        self.owed_credit[sub_id] += batch.cost
        marks = decode_marks(command.marks, batch.count)
        result.frames.append(batch.count)
        for i, message in enumerate(batch):
            publisher, sequence = int(marks.publishers[i]), int(marks.sequences[i])
            key, queue, label = batch.key(i), command.queue, message.correlation_id
            found = Found(publisher, sequence, message.topic, message.data, key, queue, label)
            result.records.append(found)


class QueryWorld(SowEngine):
    """One engine with SOW topics, whose clients query."""

    def make_peer(self, conn: int, name: str) -> SowPeer:
        return SowPeer(self, conn, name)

    def reader(self, name: str = "reader") -> SowPeer:
        """Return a client after its logon."""
        peer = self.connect(name)
        assert isinstance(peer, SowPeer)
        return peer
