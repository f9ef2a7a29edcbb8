"""Whatever comes in between, a subscriber of an unrecorded topic gets what was published while it was there:
all of it, once, in order, or it is ended as slow; what waits in memory and on disk is accounted for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.engine_world import EngineWorld, Peer
from tickertape.base.limits import batch_memory_bytes, block_memory_bytes
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.backlog import Block
from tickertape.engine.backlogs import SlowLimits
from tickertape.engine.effects import SpillRead, SpillWrite
from tickertape.engine.unrecorded import Unrecorded
from tickertape.wire.commands import Publish, Unsubscribe

_TOPICS = ("a", "b", "c")
_PEERS = 4

_publishes = st.tuples(
    st.just("publish"),
    st.lists(st.tuples(st.sampled_from(_TOPICS), st.integers(0, 400)), min_size=1, max_size=12),
)
_others = st.tuples(
    st.sampled_from(
        ["subscribe", "leave", "block", "unblock", "credit", "work", "disk", "disk", "fault", "age"]
    ),
    st.integers(0, _PEERS - 1),
    st.sampled_from(_TOPICS),
)
_histories = st.lists(st.one_of(_publishes, _others), max_size=60)


class _Life:
    """A few connections, and what each of their subscriptions is to get."""

    def __init__(self, step_bytes_max: int, limits: SlowLimits) -> None:
        self.world = EngineWorld(1, recorded=frozenset(), slow_clients=limits)
        self.unrecorded: Unrecorded = self.world.broker.subscribing.unrecorded
        self.unrecorded.step_bytes_max = step_bytes_max
        self.limits = limits
        self.faults = 0
        """Jobs of the disk that are still to fail, or to give something else than was written."""
        self.world.spilled.fails = self.fails
        self.world.spilled.damages = self.damages
        self.unrecorded.written()
        self.publisher = self.world.connect("publisher")
        self.peers = [self.world.connect(f"s{number}") for number in range(_PEERS)]
        self.expected: dict[tuple[int, str], list[bytes]] = {}
        self.topic_of: dict[tuple[int, str], str] = {}
        self.count = 0

    def fails(self, job: SpillWrite | SpillRead) -> OSError | None:
        if not self.faults or (isinstance(job, SpillRead) and self.faults % 2):
            return None
        self.faults -= 1
        self.world.counts["spill faults"] += 1
        return OSError(28, "no space")

    def damages(self, data: bytes) -> bytes:
        if not self.faults:
            return data
        self.faults -= 1
        self.world.counts["spill faults"] += 1
        return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:] if self.faults % 2 else data[:-8]

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
            self.faults += 1 + number % 2
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

    def blocks(self) -> list[Block]:
        """Every block of every backlog."""
        found = []
        for audience in self.unrecorded._by_topic.values():
            block = audience.backlog.head
            while block is not None:
                found.append(block)
                block = block.next
        return found

    def check_accounts(self) -> None:
        """What is counted as held is what is held, in memory and on disk, and within its bounds."""
        backlogs, spill = self.unrecorded.backlogs, self.unrecorded.backlogs.spill
        blocks = self.blocks()
        memory = {block: sum(p.batch.nbytes + batch_memory_bytes for p in block.pieces) for block in blocks}
        assert backlogs.held_bytes == sum(memory.values()) + block_memory_bytes * len(blocks)
        assert backlogs.dirty_bytes == sum(memory[block] for block in blocks if block.place is None)
        assert backlogs.idle_bytes == sum(
            memory[block] for block in blocks if block.place is None and not block.backlog.offline
        )
        pinned = sum(block.place.size for block in blocks if block.pins and block.place is not None)
        assert backlogs.pinned_bytes >= pinned
        newest = sum(
            sum(piece.memory_bytes for piece in audience.backlog.newest.pieces) + 2 * block_memory_bytes
            for audience in self.unrecorded._by_topic.values()
            if audience.backlog.newest is not None
        )
        # What is being handed on stays until everybody was given it, and what is read back is one block here.
        most_read = max((block.place.size for block in blocks if block.place is not None), default=0)
        slack = newest + max(backlogs.pinned_bytes, most_read) + batch_memory_bytes
        assert backlogs.held_bytes <= self.limits.memory_bytes + slack
        assert self.world.spilled.bytes <= spill.disk_bytes <= self.limits.disk_bytes
        waiting = [
            sub for audience in self.unrecorded._by_topic.values() for sub in audience.subs if sub.left
        ]
        for session in {sub.session for sub in waiting}:
            state = backlogs.waiting(session)
            assert state is not None
            assert state.bytes == sum(sub.backlog_bytes for sub in waiting if sub.session is session)
        assert backlogs.waiting_connections == len({sub.session for sub in waiting})

    def check_order(self) -> None:
        """Nobody has got anything but the beginning of what it is to get."""
        for (number, sub_id), expected in self.expected.items():
            heard = [heard.body for heard in self.peers[number].heard[sub_id]]
            assert heard == expected[: len(heard)]


_limits = st.builds(
    SlowLimits,
    memory_bytes=st.sampled_from([0, 9_000, 30_000, 64 << 20]),
    connection_bytes=st.sampled_from([500, 4_000, 16 << 20]),
    disk_bytes=st.sampled_from([0, 5_000, 1 << 30]),
    age_seconds=st.sampled_from([None, 3.0]),
)


@given(history=_histories, step_bytes_max=st.sampled_from([1, 3_000, 1 << 20]), limits=_limits)
def test_a_subscriber_gets_all_once_and_in_order_or_is_ended(
    history: list[tuple[str, list[tuple[str, int]]] | tuple[str, int, str]],
    step_bytes_max: int,
    limits: SlowLimits,
) -> None:
    life = _Life(step_bytes_max, limits)
    for entry in history:
        if len(entry) == 2:
            life.publish(entry[1])
        else:
            life.act(*entry)
        life.check_accounts()
        life.check_order()
    for number in range(_PEERS):
        life.act("unblock", number, "a")
    life.world.settle()
    life.check_accounts()
    life.check_order()
    assert life.unrecorded.backlogs.held_bytes == life.unrecorded.backlogs.spill.disk_bytes == 0
    assert not life.world.spilled.files
    assert not life.unrecorded.backlogs.offline_connections
    for (number, sub_id), topic in life.topic_of.items():
        peer = life.peers[number]
        if peer.goodbye is None:
            assert [h.body for h in peer.heard[sub_id]] == life.expected[number, sub_id], topic
        else:
            assert peer.goodbye.code == "slow_client"
            assert limits.memory_bytes < 64 << 20 or limits.connection_bytes < 16 << 20 or limits.age_seconds
