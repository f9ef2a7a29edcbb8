"""Simulation of live subscriptions: a publisher, stalled and reading subscribers, a failing disk.

Must never take the expected messages of a subscriber from the engine: the oracle is the list of messages
published during the subscription.
"""

from __future__ import annotations

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.limits import block_memory_bytes
from tickertape.engine.runtime.effects import SpillRead, SpillWrite
from tickertape.engine.transient.backlog import Backlog, BacklogBlock
from tickertape.engine.transient.delivery import TransientDelivery
from tickertape.engine.transient.slow_consumers import SlowConsumerLimits
from tickertape.journal.limits import batch_memory_bytes
from tickertape.wire.commands import Publish, Unsubscribe

TOPICS = ("a", "b", "c")
PEERS = 4


class LiveSimulation:
    """A few connections, and the expected messages of each of their subscriptions."""

    def __init__(self, step_bytes_max: int, limits: SlowConsumerLimits) -> None:
        self.world = EngineWorld(1, recorded=frozenset(), slow_clients=limits)
        self.unrecorded: TransientDelivery = self.world.broker.services.transient
        self.unrecorded.step_bytes_max = step_bytes_max
        self.limits = limits
        self.faults: list[str] = []
        """Faults of the next disk jobs: a `write` or a `read` fails, or a read returns wrong `bits` or lacks
        the `end` of the written data.
        """
        self.world.spilled.fails = self.fails
        self.world.spilled.damages = self.damages
        self.unrecorded.written()
        self.publisher = self.world.connect("publisher")
        self.peers = [self.world.connect(f"s{number}") for number in range(PEERS)]
        self.expected: dict[tuple[int, str], list[bytes]] = {}
        self.topic_of: dict[tuple[int, str], str] = {}
        self.count = 0

    def fails(self, job: SpillWrite | SpillRead) -> OSError | None:
        kind = "read" if isinstance(job, SpillRead) else "write"
        if kind not in self.faults:
            return None
        self.faults.remove(kind)
        return OSError(28, f"this {kind} failed")

    def damages(self, data: bytes) -> bytes:
        for kind in ("bits", "end"):
            if kind in self.faults:
                self.faults.remove(kind)
                return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:] if kind == "bits" else data[:-8]
        return data

    def publish(self, messages: list[tuple[str, int]]) -> None:
        builder = BatchBuilder()
        for topic, size in messages:
            self.count += 1
            body = b"%d " % self.count + bytes(size)
            builder.add(topic, body)
            for key, wanted in self.topic_of.items():
                if wanted == topic:
                    self.expected[key].append(body)
        self.publisher.frames += 1
        batch = MessageBatch.parse(builder.build().encode())
        self.publisher.send(Publish(frame=self.publisher.frames), batch)

    def act(self, what: str, number: int, topic: str) -> None:
        peer = self.peers[number]
        if what == "work":
            if self.world.broker.has_work:
                self.world.work()
        elif what == "disk":
            if self.world.spilled.jobs:
                self.world.run_spill()
        elif what == "fault":
            self.faults.append(("write", "read", "bits", "end")[number])
        elif what == "age":
            self.world.wake(1.0)
        elif peer.goodbye is not None:
            return
        elif what == "subscribe":
            self._subscribe(number, peer, topic)
        elif what == "leave":
            self._leave(number, peer, topic)
        elif what == "block":
            self.world.broker.blocked(peer.conn)
        elif what == "unblock":
            self.world.broker.writable(peer.conn)
            self.world.collect()
        elif topic in peer.heard:
            peer.give_credit(topic)

    def _subscribe(self, number: int, peer: Peer, topic: str) -> None:
        if topic not in peer.heard:
            peer.subscribe(topic, topic, credit=500)
            self.expected[number, topic] = []
            self.topic_of[number, topic] = topic

    def _leave(self, number: int, peer: Peer, topic: str) -> None:
        if self.topic_of.pop((number, topic), None) is not None:
            peer.send(Unsubscribe(id=10_000 + self.count, sub_ids=(topic,)))

    def backlogs(self) -> list[Backlog]:
        """Return every backlog, and the one in delivery, which may have lost its subscribers."""
        backlogs = dict.fromkeys(self.unrecorded._standing.groups())
        newest = self.unrecorded.slow_consumers.newest
        if newest is not None:
            backlogs[newest.block.backlog] = None
        return list(backlogs)

    def blocks(self) -> list[BacklogBlock]:
        """Return every block of every backlog."""
        found = []
        for backlog in self.backlogs():
            block = backlog.head
            while block is not None:
                found.append(block)
                block = block.next
        return found

    def check_accounts(self) -> None:
        """Check the counters of held data, in memory and on disk, against the blocks and their bounds."""
        backlogs, spill = self.unrecorded.slow_consumers, self.unrecorded.slow_consumers.spill
        blocks = self.blocks()
        memory = {block: sum(p.batch.nbytes + batch_memory_bytes for p in block.pieces) for block in blocks}
        assert backlogs.held_bytes == sum(memory.values()) + block_memory_bytes * len(blocks)
        assert backlogs.dirty_bytes == sum(memory[block] for block in blocks if not block.on_disk)
        assert backlogs.idle_bytes == sum(
            memory[block] for block in blocks if not (block.on_disk or block.backlog.offline)
        )
        pinned = sum(block.place.size for block in blocks if block.pins)
        assert backlogs.pinned_bytes >= pinned
        newest = 0
        if backlogs.newest is not None:
            newest = backlogs.newest.frames.memory_bytes + 2 * block_memory_bytes
        # A block in delivery stays until every subscriber has it. Reads back from disk are one block here.
        most_read = max((block.place.size for block in blocks if block.on_disk), default=0)
        slack = newest + max(backlogs.pinned_bytes, most_read) + batch_memory_bytes
        assert backlogs.held_bytes <= self.limits.memory_bytes + slack
        assert self.world.spilled.bytes <= spill.disk_bytes <= self.limits.disk_bytes
        waiting = [sub for sub in self.unrecorded._standing if sub.left]
        for session in {sub.session for sub in waiting}:
            state = backlogs.waiting[session]
            assert state.bytes == sum(sub.backlog_bytes for sub in waiting if sub.session is session)
        assert len(backlogs.waiting) == len({sub.session for sub in waiting})

    def check_order(self) -> None:
        """Check that every subscriber has a prefix of its expected messages."""
        for (number, sub_id), expected in self.expected.items():
            heard = [heard.body for heard in self.peers[number].heard[sub_id]]
            assert heard == expected[: len(heard)]

    def check_end(self) -> None:
        """Check that every subscriber has all messages or was ended as slow, and that no data is left."""
        for number in range(PEERS):
            self.act("unblock", number, "a")
        self.world.settle()
        self.check_accounts()
        self.check_order()
        backlogs = self.unrecorded.slow_consumers
        assert backlogs.held_bytes == backlogs.dirty_bytes == backlogs.pinned_bytes == 0
        assert backlogs.spill.disk_bytes == backlogs.spill.writing_bytes == backlogs.spill.reading_bytes == 0
        assert not self.world.spilled.files
        assert not backlogs.offline_connections
        for (number, sub_id), topic in self.topic_of.items():
            goodbye = self.peers[number].goodbye
            if goodbye is None:
                heard = [heard.body for heard in self.peers[number].heard[sub_id]]
                assert heard == self.expected[number, sub_id], topic
            else:
                assert goodbye.code == "slow_client"
