"""Engine with SOW topics on a simulated disk, for tests that need many starts.

Must never judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.helpers.reserved_batches import with_reserved
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.simulation.journal_world import drive
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.batch.format import FLAG_DELTA
from tickertape.engine.broker import Broker
from tickertape.engine.runtime.publisher_ids import PublisherDirectory
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.recovery import StateFiles, plan_states
from tickertape.engine.sow.state.delete import DeleteRecord, encode
from tickertape.engine.sow.state.labels import texts_of
from tickertape.engine.sow.topic import StateTopic
from tickertape.journal.journal import Journal
from tickertape.journal.recovery.state_files import (
    find_states,
    forget_named,
    make_durable,
    prepare_directories,
    read_states,
    set_aside_state,
)
from tickertape.wire.commands import Deleted, Publish, Rejected
from tickertape.wire.sow_command import SOW_TOPIC, SowDelete, encode_delete


class SowEngine(EngineWorld):
    """One engine with SOW topics."""

    def __init__(self, *sow: SowDefinition, segment_bytes: int = 32_768, seed: int = 7, **more: Any) -> None:
        """`more` is as for `EngineWorld`."""
        self.sow = sow
        self.rebuild = frozenset[str]()
        self.sow_bytes_max = 1 << 40
        super().__init__(seed, segment_bytes=segment_bytes, **more)

    def make_broker(
        self,
        journal: Journal,
        registry: PublisherDirectory,
        queues: Sequence[QueueDefinition] = (),
        **more: Any,
    ) -> Broker:
        more = {"hash_secret": bytes(range(16)), "sow_bytes_max": self.sow_bytes_max, **more}
        return super().make_broker(journal, registry, queues, **more)

    def open(self) -> None:
        """Start the engine on the contents of the disk, as a server does."""
        super().open()
        broker, journal = self.broker, self.broker.journal
        found = find_states(self.disk, journal.journal_id)
        stored = {
            name: read_states(self.disk, one.manifest)
            for name, one in found.items()
            if one.manifest is not None
        }
        files = StateFiles(found, stored)
        self.plan = plan = drive(self.disk, plan_states(journal.view, self.sow, files, self.rebuild))
        for directory in plan.quarantine:
            set_aside_state(self.disk, directory)
        forget_named(self.disk, journal.view, plan.forgotten)
        kept = [one for name, one in found.items() if name not in plan.quarantine]
        make_durable(self.disk, kept)
        prepare_directories(self.disk, kept, plan.topics)
        recovered = drive(self.disk, broker.states.recover(plan))
        self.report = recovered.report
        broker.begin_states(plan, recovered, self.now())
        self.collect()
        self.settle()

    def reopen(self, *sow: SowDefinition) -> None:
        """Kill the process, and start another, with these SOW topics if given."""
        self.sow = sow or self.sow
        self.disk = self.disk.kill_clone()
        self.open()

    def state(self, name: str) -> StateTopic:
        """Return one SOW topic."""
        (found,) = [topic for topic in self.broker.states.topics if topic.name == name]
        return found

    def append_delete(self, record: DeleteRecord) -> None:
        """Append a delete or expiry record to the log."""
        self.append_control(SOW_TOPIC, encode(record))

    def append_control(self, topic: str, body: bytes) -> None:
        """Append any control record to the log."""
        builder = BatchBuilder()
        builder.add(topic, body, kind=1)
        self.broker._writer.append_control(MessageBatch.parse(builder.build().encode()))

    def write_broken_delete(self) -> None:
        """Append a delete that cannot be decoded, and run until idle."""
        self.append_control(SOW_TOPIC, b"no delete")
        self.wake()
        self.settle()

    def write_delete(self, record: DeleteRecord) -> None:
        """Append a delete or expiry record, and run until idle."""
        self.append_delete(record)
        self.wake()
        self.settle()

    def records(self, name: str) -> dict[bytes, bytes]:
        """Return the bodies of all records of a SOW topic by canonical key."""
        fold = self.state(name).fold
        slots = fold.records.live_slots(0, fold.records.slot_end)
        bodies = fold.records.blocks.take(fold.records.rows(slots).views)
        return dict(zip(fold.keys.keys_of(slots), bodies, strict=True))


def labels_in(world: SowEngine, name: str) -> dict[bytes, str]:
    """Return the correlation ids of the records of a SOW topic that have one, by canonical key."""
    fold = world.state(name).fold
    slots = fold.records.live_slots(0, fold.records.slot_end)
    texts = texts_of(fold.records.rows(slots).labels, len(slots))
    return {key: text for key, text in zip(fold.keys.keys_of(slots), texts, strict=True) if text}


def publish(
    peer: Peer,
    messages: Sequence[tuple[str, bytes]],
    *,
    keys: Sequence[str] = (),
    expirations: Sequence[int] = (),
    labels: Sequence[str] = (),
) -> None:
    """Publish one sequenced frame with messages on any topics."""
    send(peer, messages, keys=keys, expirations=expirations, labels=labels)


def rejected(peer: Peer) -> list[Rejected]:
    """Return the rejections that a client received."""
    return [command for command, _ in peer.received if isinstance(command, Rejected)]


def delta_rows(batch: MessageBatch, deltas: Sequence[bool]) -> MessageBatch:
    """Return a batch with the flag of deltas on some messages."""
    if not any(deltas):
        return batch
    return with_reserved(batch, message_flags=[FLAG_DELTA * delta for delta in deltas])


def send(
    peer: Peer,
    rows: Sequence[tuple[str, bytes] | SowDelete],
    *,
    deltas: Sequence[int] = (),
    keys: Sequence[str] = (),
    expirations: Sequence[int] = (),
    labels: Sequence[str] = (),
    first: int | None = None,
    sequenced: bool = True,
) -> int:
    """Send one frame of messages and deletes, and return its first sequence. `deltas` are indices of messages
    that are deltas. `labels` are correlation ids, empty for none. `first` is the first sequence of a repeated
    frame."""
    builder = BatchBuilder()
    for at, row in enumerate(rows):
        topic, body = (SOW_TOPIC, encode_delete(row)) if isinstance(row, SowDelete) else row
        life = expirations[at] if expirations else 0
        label = labels[at] if labels else ""
        builder.add(topic, body, key=keys[at] if keys else "", expiration_ms=life, correlation_id=label)
    peer.frames += 1
    assert peer.logged_on is not None
    at = peer.next_sequence if first is None else first
    if sequenced:
        batch = builder.build(peer.logged_on.publisher, first_sequence=at)
        peer.next_sequence = max(peer.next_sequence, at + len(rows))
    else:
        batch = builder.build()
    flagged = delta_rows(batch, [row in deltas for row in range(len(rows))])
    peer.send(Publish(frame=peer.frames, sequenced=sequenced), MessageBatch.parse(flagged.encode()))
    return at


def deleted(peer: Peer) -> list[Deleted]:
    """Return the answers to deletes that a client received."""
    return [command for command, _ in peer.received if isinstance(command, Deleted)]


def expiry_in_flight(world: SowEngine) -> None:
    """Let 40 seconds pass, and write an expiry that is not persisted yet."""
    commits = world.broker.journal.commits
    end = commits.accepted_end
    world.wake(40)
    while commits.accepted_end == end:
        assert world.broker.has_work
        world.work()
    assert commits.persisted_end == end
