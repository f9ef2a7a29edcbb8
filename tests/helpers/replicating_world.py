"""One simulated engine whose log may lack messages of publishers that fail over.

Must never compute an expectation: tests name the rows of the log.
"""

from __future__ import annotations

from typing import Any

from tests.helpers.replication import make_replication
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.simulation.journal_world import read_log
from tickertape.batch import RUN_LATE, BatchBuilder, MessageBatch, Stamp, merge
from tickertape.engine.broker import Broker
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC
from tickertape.journal.format.replication_records import AfterRecord, HolesRecord, decode_record
from tickertape.wire.commands import Publish

Row = tuple[str, object]


class ReplicatingWorld(EngineWorld):
    """One engine with the filter of duplicates, unless `replicating` is false."""

    replicating = True

    def make_broker(self, *arguments: Any, **more: Any) -> Broker:
        replication = make_replication(arguments[0]) if self.replicating else None
        return super().make_broker(*arguments, replication=replication, **more)

    def rows(self) -> list[Row]:
        """Return the messages, and the control records of replication, in log order."""
        found: list[Row] = []
        for _, batch in read_log(self.broker.journal, self.disk):
            late = {run for run in range(batch.run_count) if batch.run(run).flags & RUN_LATE}
            at = [run for run in range(batch.run_count) for _ in range(batch.run(run).message_count)]
            for index in range(batch.count):
                if batch.topic(index) != CONTROL_TOPIC:
                    found.append(("late" if at[index] in late else "new", batch.sequence(index)))
                elif b"latest_of" in bytes(batch.body(index)):
                    record = decode_record(bytes(batch.body(index)))
                    if isinstance(record, AfterRecord):
                        found.append(("unproven" if record.unproven else "after", record.after))
                    elif isinstance(record, HolesRecord):
                        found.append(("holes", [hole[:2] for hole in record.ranges]))
        return found

    def after_records(self) -> list[AfterRecord]:
        """Return the records that open holes, in log order."""
        bodies = [
            bytes(batch.body(index))
            for _, batch in read_log(self.broker.journal, self.disk)
            for index in range(batch.count)
            if batch.topic(index) == CONTROL_TOPIC and b"latest_of" in bytes(batch.body(index))
        ]
        records = [decode_record(body) for body in bodies]
        return [record for record in records if isinstance(record, AfterRecord)]


def send(world: EngineWorld, peer: Peer, sequences: list[int], *, settle: bool = True) -> None:
    """Publish messages with these sequences in one frame."""
    assert peer.logged_on is not None
    builder = BatchBuilder()
    for sequence in sequences:
        builder.add("t", b"x", sequence=sequence)
    batch = builder.build(peer.logged_on.publisher)
    stamped = MessageBatch.parse(
        merge((batch,), (Stamp(peer.logged_on.publisher, sequences[0], 0),)).encode()
    )
    world.frames = getattr(world, "frames", {})  # type: ignore[attr-defined]
    world.frames[peer] = world.frames.get(peer, 0) + 1  # type: ignore[attr-defined]
    peer.send(Publish(frame=world.frames[peer], sequenced=True), stamped)  # type: ignore[attr-defined]
    if settle:
        world.settle()


def logged_on(world: EngineWorld, claim: int | None, name: str = "pub") -> Peer:
    """Return a publisher whose connection has a claim."""
    world.acknowledged = lambda _: None  # type: ignore[assignment,method-assign]  # it counts one by one
    peer = world.connect(name, persisted=claim or 0, session=3)
    world.settle()
    return peer
