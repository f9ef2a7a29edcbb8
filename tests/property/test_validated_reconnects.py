"""The client machine against the engine, with validated topics and connections that break at any byte.

However it goes: every good message is in the log once, in the order of its publisher, no bad one is, and the
publisher hears of every bad one exactly once.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.simulation.engine_world import EngineWorld
from tickertape.base.errors import Disconnected, StoreFull
from tickertape.client.core import ClientCore, Lost, Opened
from tickertape.client.effects import FailedWrite, Hangup, Send
from tickertape.client.publish_store import MemoryPublishStore
from tickertape.wire.connection import Connection, Received

SCHEDULES = 60
FULL_SCHEDULES = 3_000
TOPICS = ("t", "u")
"""Both recorded, the first validated."""


class Line:
    """One client on a line that loses what is on its way when it breaks."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.world = EngineWorld(seed, validated={"t": "json"})
        self.store = MemoryPublishStore()
        self.core = ClientCore("careless")
        self.core.set_store(self.store, self.world.now())
        self.good: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.bad: list[bytes] = []
        self.told: list[bytes] = []
        self.losses = 0
        self.conn = 1_000
        self.up = False
        self.owed_credit: dict[str, int] = {}  # it subscribes to nothing
        self._upstream = bytearray()
        self._downstream = bytearray()
        self._server = Connection("server")

    def take(self, data: bytes) -> None:
        """The engine sends; it calls this as it calls a peer."""
        self._downstream += data

    def connect(self) -> None:
        self.conn += 1
        self.world.peers[self.conn] = self  # type: ignore[assignment]
        self._server = Connection("server")
        self._server.logged_on()
        self.world.broker.connected(self.conn)
        self.up = True
        self.core.receive(Opened("token"), self.world.now())
        self.collect()

    def lose(self) -> None:
        self.losses += 1
        self.up = False
        self.world.peers.pop(self.conn, None)
        self.world.broker.disconnected(self.conn)
        self.world.collect()
        self._upstream.clear()
        self._downstream.clear()
        self.core.receive(Lost(Disconnected("cut")), self.world.now())
        self.collect()

    def publish(self) -> None:
        topic = self.rng.choice(TOPICS)
        number = sum(map(len, self.good.values())) + len(self.bad)
        broken = self.rng.random() < 0.3
        body = b"{ %d" % number if broken else b"%d" % number
        try:
            self.core.publish(topic, body)
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
                self._upstream += b"".join(effect.buffers)
            elif isinstance(effect, FailedWrite):
                assert effect.batch is not None
                assert effect.batch.count == effect.messages
                self.told += effect.batch.bodies_list()
            else:
                assert not isinstance(effect, Hangup), effect

    def upstream(self, size: int) -> None:
        """So many bytes reach the server."""
        data = bytes(self._upstream[:size])
        del self._upstream[:size]
        for event in self._server.feed(data):
            assert isinstance(event, Received), event
            self.world.broker.received(self.conn, event.command, event.batch, self.world.now())
            self.world.collect()

    def downstream(self, size: int) -> None:
        """So many bytes reach the client."""
        data = bytes(self._downstream[:size])
        del self._downstream[:size]
        self.core.receive(data, self.world.now())
        self.collect()

    def step(self) -> None:
        if not self.up:
            self.rng.choice((self.connect, self.publish))()
            return
        size = self.rng.choice((1, 30, 200, 10_000))
        what = self.rng.random()
        if what < 0.35:
            self.publish()
        elif what < 0.55:
            self.upstream(size)
        elif what < 0.75:
            self.downstream(size)
        elif what < 0.97:
            self.world.step()
        else:
            self.lose()

    def finish(self) -> None:
        if not self.up:
            self.connect()
        for _ in range(10_000):
            self.upstream(1 << 20)
            self.world.settle()
            self.downstream(1 << 20)
            if not self.core.publishing.unsettled() and not self._upstream and not self._downstream:
                return
        raise AssertionError("it does not come to rest")


def run(seed: int) -> Counter[str]:
    line = Line(seed)
    for _ in range(150):
        line.step()
    line.finish()
    for topic in TOPICS:
        assert [heard.body for heard in line.world.log(topic)] == line.good[topic]
    sequences = [heard.sequence for heard in line.world.log()]
    assert sequences == sorted(set(sequences))
    assert line.told == line.bad, "each once, in order"
    assert line.store.unpersisted_count() == 0
    return Counter(losses=line.losses, bad=len(line.bad), good=sum(map(len, line.good.values())))


@pytest.mark.slow
def test_good_ones_are_stored_once_and_every_refusal_is_heard_once(full: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(FULL_SCHEDULES if full else SCHEDULES):
        seen += run(seed)
    assert min(seen["losses"], seen["bad"], seen["good"]) > SCHEDULES
