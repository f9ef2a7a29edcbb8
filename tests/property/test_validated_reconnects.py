"""Client state machine on the engine, with validated topics and connections that break at any byte.

Every valid message is in the log once, in the order of its publisher. No invalid one is, and the publisher
receives exactly one refusal for each.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.simulation.engine_world import EngineWorld
from tests.simulation.line import Line
from tests.unit.client.peer import Named
from tickertape.base.errors import Disconnected, StoreFull
from tickertape.client.common.effects import EndConnection, FailedWrite, Send
from tickertape.client.protocol.core import ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.client.publish_store import MemoryPublishStore

SCHEDULES = 60
FULL_SCHEDULES = 3_000
TOPICS = ("t", "u")
"""Both recorded, the first validated."""


class Careless:
    """A client of invalid and valid bodies, on a line that loses bytes in flight when it breaks."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.world = EngineWorld(seed, validated={"t": "json"})
        self.store = MemoryPublishStore()
        self.core = ClientProtocol("careless")
        self.core.set_store(self.store, self.world.now())
        self.good: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.bad: list[bytes] = []
        self.told: list[bytes] = []
        self.losses = 0
        self.line: Line | None = None

    def connect(self) -> None:
        self.line = Line(self.world)
        self.core.receive(ConnectionOpened(Named("token")), self.world.now())
        self.collect()

    def lose(self, line: Line) -> None:
        self.losses += 1
        self.line = None
        line.cut()
        self.core.receive(ConnectionEnded(Disconnected("cut")), self.world.now())
        self.collect()

    def publish(self) -> None:
        topic = self.rng.choice(TOPICS)
        number = sum(map(len, self.good.values())) + len(self.bad)
        broken = self.rng.random() < 0.3
        body = b"{ %d" % number if broken else b"%d" % number
        try:
            self.core.publishing.publish(topic, body)
        except (Disconnected, StoreFull):
            return
        if broken and topic == "t":
            self.bad.append(body)
        else:
            self.good[topic].append(body)
        self.collect()

    def collect(self) -> None:
        for effect in self.core.effects():
            if isinstance(effect, Send):
                assert self.line is not None
                self.line.to_server += b"".join(effect.buffers)
            elif isinstance(effect, FailedWrite):
                assert effect.batch is not None
                assert effect.batch.count == effect.messages
                self.told += effect.batch.bodies_list()
            else:
                assert not isinstance(effect, EndConnection), effect

    def downstream(self, line: Line, size: int) -> None:
        """Deliver `size` bytes to the client."""
        self.core.receive(line.leave(size), self.world.now())
        self.collect()

    def step(self) -> None:
        line = self.line
        if line is None:
            self.rng.choice((self.connect, self.publish))()
            return
        size = self.rng.choice((1, 30, 200, 10_000))
        what = self.rng.random()
        if what < 0.35:
            self.publish()
        elif what < 0.55:
            line.arrive(size)
        elif what < 0.75:
            self.downstream(line, size)
        elif what < 0.97:
            self.world.step()
        else:
            self.lose(line)

    def finish(self) -> None:
        if self.line is None:
            self.connect()
        line = self.line
        assert line is not None
        for _ in range(10_000):
            line.arrive(1 << 20)
            self.world.settle()
            self.downstream(line, 1 << 20)
            if not self.core.publishing.unsettled() and not line.to_server and not line.to_client:
                return
        raise AssertionError("it does not come to rest")


def run(seed: int) -> Counter[str]:
    client = Careless(seed)
    for _ in range(150):
        client.step()
    client.finish()
    for topic in TOPICS:
        assert [heard.body for heard in client.world.log(topic)] == client.good[topic]
    sequences = [heard.sequence for heard in client.world.log()]
    assert sequences == sorted(set(sequences))
    assert client.told == client.bad, "each once, in order"
    assert client.store.unpersisted_count() == 0
    return Counter(losses=client.losses, bad=len(client.bad), good=sum(map(len, client.good.values())))


@pytest.mark.slow
def test_valid_messages_through_reconnects_are_stored_once_and_refusals_reported_once(full: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(FULL_SCHEDULES if full else SCHEDULES):
        seen += run(seed)
    assert min(seen["losses"], seen["bad"], seen["good"]) > SCHEDULES
