"""Whatever comes in between, a subscriber of an unrecorded topic gets what was published while it was there:
all of it, once, in order, or it is ended; and the memory of what waits is accounted for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.engine_world import EngineWorld, Peer
from tickertape.base.limits import unrecorded_reference_bytes
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.unrecorded import Unrecorded
from tickertape.wire.commands import Publish, Unsubscribe

_TOPICS = ("a", "b", "c")
_PEERS = 4

_publishes = st.tuples(
    st.just("publish"),
    st.lists(st.tuples(st.sampled_from(_TOPICS), st.integers(0, 400)), min_size=1, max_size=12),
)
_others = st.tuples(
    st.sampled_from(["subscribe", "leave", "block", "unblock", "credit", "work"]),
    st.integers(0, _PEERS - 1),
    st.sampled_from(_TOPICS),
)
_histories = st.lists(st.one_of(_publishes, _others), max_size=60)


class _Life:
    """A few connections, and what each of their subscriptions is to get."""

    def __init__(self, step_bytes_max: int, held_bytes_max: int) -> None:
        self.world = EngineWorld(1, recorded=frozenset())
        self.unrecorded: Unrecorded = self.world.broker.subscribing.unrecorded
        self.unrecorded.step_bytes_max = step_bytes_max
        self.unrecorded.backlogs.bytes_max = held_bytes_max
        self.unrecorded.written()
        self.publisher = self.world.connect("publisher")
        self.peers = [self.world.connect(f"s{number}") for number in range(_PEERS)]
        self.expected: dict[tuple[int, str], list[bytes]] = {}
        self.topic_of: dict[tuple[int, str], str] = {}
        self.count = 0

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

    def check_accounts(self) -> None:
        """What is counted as held is what is held."""
        waiting = [
            pieces for subs in self.unrecorded._by_topic.values() for sub in subs for pieces in sub.backlog
        ]
        once = {id(pieces): pieces.memory_bytes for pieces in waiting}
        held = sum(once.values()) + unrecorded_reference_bytes * len(waiting)
        assert self.unrecorded.backlogs.held_bytes == held <= self.unrecorded.backlogs.bytes_max

    def check_order(self) -> None:
        """Nobody has got anything but the beginning of what it is to get."""
        for (number, sub_id), expected in self.expected.items():
            heard = [heard.body for heard in self.peers[number].heard[sub_id]]
            assert heard == expected[: len(heard)]


@given(
    history=_histories,
    step_bytes_max=st.sampled_from([1, 3_000, 1 << 20]),
    held_bytes_max=st.sampled_from([0, 6_000, 30_000, 64 << 20]),
)
def test_a_subscriber_gets_all_once_and_in_order_or_is_ended(
    history: list[tuple[str, list[tuple[str, int]]] | tuple[str, int, str]],
    step_bytes_max: int,
    held_bytes_max: int,
) -> None:
    life = _Life(step_bytes_max, held_bytes_max)
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
    assert life.unrecorded.backlogs.held_bytes == 0
    for (number, sub_id), topic in life.topic_of.items():
        peer = life.peers[number]
        if peer.goodbye is None:
            assert [h.body for h in peer.heard[sub_id]] == life.expected[number, sub_id], topic
        else:
            assert peer.goodbye.code == "slow_client"
            assert held_bytes_max < 64 << 20
