"""Simulation of checkpoints of SOW topics: crashes at any disk call, retention, and starts.

The expected records are computed from the persisted messages alone, which are kept beside the log.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple, cast

import msgspec

from tests.helpers.sow_engine import SowEngine, publish
from tests.simulation.engine_peer import Peer
from tests.simulation.journal_world import FailingDisk, PowerLost, read_log
from tickertape.base.errors import TickertapeError
from tickertape.batch import MessageBatch
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.state.delete import DeleteBuilder, encode
from tickertape.journal.commit.group_commit import SyncPolicy
from tickertape.journal.retention import RetentionPolicy
from tickertape.testing.disk import StrictDisk

Name = tuple[int, int]
"""Publisher and sequence of a message."""
BUSY = SowDefinition("orders", key=("/id",), checkpoint_interval=1.0)
QUIET = SowDefinition("rates", key=("/id",), checkpoint_interval=1.0)
KEYS = 24
_PACK = msgspec.msgpack.encode


class Row(NamedTuple):
    """A persisted message or delete."""

    topic: str
    name: Name
    body: bytes


class CheckpointWorld(SowEngine):
    """An engine with two SOW topics: one changes all the time, the other one rarely."""

    def __init__(self, seed: int, *, policy: SyncPolicy = SyncPolicy.ALWAYS, **more: Any) -> None:
        self.history: list[Row] = []
        """All persisted messages by position, also those that retention removed."""
        self.deletes: dict[bytes, dict[bytes, Name]] = {}
        """Messages by key that each delete record names, by its body."""
        self.rows = set[int]()
        self.lost = False
        super().__init__(
            BUSY,
            QUIET,
            seed=seed,
            segment_bytes=8_192,
            policy=policy,
            retention=RetentionPolicy(size_bytes=24_000),
            **more,
        )

    def open(self) -> None:
        self.lost = False
        super().open()
        end = self.broker.journal.commits.persisted_end
        if self.policy is SyncPolicy.ALWAYS:
            assert end >= len(self.history), "persisted messages are never lost"
        del self.history[end:]
        for first, batch in read_log(self.broker.journal, self.disk, len(self.history)):
            self.record(first, batch)
        assert len(self.history) == end
        self.check()

    def make_broker(self, journal: Any, *arguments: Any, **more: Any) -> Any:
        broker = super().make_broker(journal, *arguments, **more)
        take = journal.take_persisted

        def taking() -> Any:
            commits = take()
            for commit in commits:
                self.record(commit.first_position, commit.batch)
            return commits

        journal.take_persisted = taking
        return broker

    def record(self, first: int, batch: MessageBatch) -> None:
        """Keep persisted messages."""
        for index in range(batch.count):
            if first + index == len(self.history):
                name = batch.publisher(index), batch.sequence(index)
                self.history.append(Row(batch.topic(index), name, bytes(batch.body(index))))

    def expected(self, topic: str) -> dict[bytes, bytes]:
        """Return the records that all persisted messages give."""
        state: dict[bytes, tuple[Name, bytes]] = {}
        for row in self.history:
            if row.topic == topic:
                state[_PACK(msgspec.json.decode(row.body)["id"])] = row.name, row.body
            elif row.body in self.deletes:
                for key, name in self.deletes[row.body].items():
                    if key in state and state[key][0] == name:
                        del state[key]
        return {key: body for key, (_, body) in state.items()}

    def check(self) -> None:
        """Compare the records with the expected ones, when everything is folded."""
        assert self.broker.states.fold.folded == len(self.history)
        names = [row.name for row in self.history if not row.topic.startswith("$")]
        last = self.broker.states.fold.last
        assert (None if last is None else (last.publisher, last.sequence)) == (names[-1] if names else None)
        for topic in ("orders", "rates"):
            assert self.records(topic) == self.expected(topic), topic

    # -- steps ------------------------------------------------------------------------------------------

    def random_step(self, peer: Peer) -> None:
        """Publish, delete, or let time pass."""
        choice = self.rng.random()
        if choice < 0.45:
            self.publish_some(peer)
        elif choice < 0.6:
            self.delete_some()
        elif choice < 0.7:
            self.wake(1.1)
        for _ in range(self.rng.choice((0, 1, 3, 10))):
            self.step()

    def publish_some(self, peer: Peer) -> None:
        topic = "rates" if self.rng.random() < 0.03 else "orders"
        publish(
            peer,
            [
                (topic, msgspec.json.encode({"id": key, "t": topic, "x": "x" * self.rng.choice((1, 9, 300))}))
                for key in self.rng.choices(range(KEYS), k=self.rng.randrange(1, 6))
            ],
        )
        self.collect()

    def delete_some(self) -> None:
        """Append a delete of some current records of one topic."""
        topic = "rates" if self.rng.random() < 0.1 else "orders"
        fold = self.state(topic).fold
        keys = sorted({_PACK(key) for key in self.rng.choices(range(KEYS), k=self.rng.choice((1, 3, 12)))})
        slots = fold.keys.find(keys)
        keys = [key for key, slot in zip(keys, slots.tolist(), strict=True) if slot >= 0]
        if not keys:
            return
        rows = fold.records.rows(slots[slots >= 0])
        publishers = fold.records.publishers.ids(rows.publishers)
        builder = DeleteBuilder(topic, self.state(topic).key_fingerprint)
        builder.add(keys, publishers, rows.sequences, rows.order_stamps)
        record = builder.build(len(keys), len(keys))
        names = zip(publishers.tolist(), rows.sequences.tolist(), strict=True)
        self.deletes[encode(record)] = dict(zip(keys, names, strict=True))
        self.append_delete(record)
        self.wake()

    def live(self, steps: int, operations: int) -> bool:
        """Work for some steps. Return False if the machine stopped after `operations` disk calls."""
        failing = FailingDisk(self.disk, operations)
        self.disk = cast("StrictDisk", failing)
        self._executor._disk = failing
        try:
            peer = self.connect("p")
            self.settle()
            for _ in range(steps):
                self.random_step(peer)
            self.settle()
            self.check()
        except PowerLost:
            return False
        finally:
            self.disk = failing.disk
        return True

    def stop(self, operations: int) -> bool:
        """Stop cleanly. Return False if the machine stopped after `operations` disk calls."""
        failing = FailingDisk(self.disk, operations)
        self.disk = cast("StrictDisk", failing)
        self._executor._disk = failing
        try:
            self.broker.close(self.now())
            self.collect()
            self.settle()
            assert self.broker.journal.commits.closed
            assert not self.broker.state_checkpoints.stop_pending
        except PowerLost:
            return False
        finally:
            self.disk = failing.disk
        return True

    def restart(self, *, power: bool) -> None:
        """Start on the contents of the disk, perhaps with further crashes in the start."""
        while True:
            rng = Random(self.rng.random())
            disk = self.disk.crash_clone(rng) if power else self.disk.kill_clone()
            failing = FailingDisk(disk, self.rng.choice((3, 8, 15, 10**9)))
            self.disk = cast("StrictDisk", failing)
            try:
                self.open()
            except PowerLost:
                self.disk = failing.disk
                continue
            self.disk = failing.disk
            self._executor._disk = failing.disk
            return

    @property
    def removed(self) -> int:
        """Segments that retention removed in this run."""
        return self.broker.retention.removed_segments


def refusal_of(world: CheckpointWorld) -> TickertapeError:
    """Start, and return the refusal."""
    try:
        world.open()
    except TickertapeError as error:
        return error
    raise AssertionError("the start was not refused")
