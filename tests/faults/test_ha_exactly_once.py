"""Exactly-once storage (R9) on real processes: connections of HA clients fail at any byte under load.

Both directions fail. Published messages are stored once and in order. Messages are delivered once to an
application that discards them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

import tickertape as tt
from tests.conformance.fronts import Front
from tickertape.testing import FaultProxy, RunningServer, running_server, wait_until
from tickertape.testing.fault_proxy import Fault

T = TypeVar("T")
SECONDS = 30.0
CYCLES = 12
CYCLES_FULL = 1_000
HEARTBEAT = 0.2
WINDOW = 300
"""Messages that the second application has before it, and discards in any order."""
FAULTS: tuple[Fault, ...] = ("cut", "cut", "cut", "reset", "reset", "reset", "stall", "half_open")
"""The last two are noticed by the heartbeat only."""
PLACES = (
    ("publisher", "to_server", 3_000),
    ("publisher", "to_client", 200),
    ("consumer", "to_server", 20),
    ("consumer", "to_client", 3_000),
)
"""Whose connection, which of its directions, and how many bytes pass before it is spoiled, on average."""
LOGON_BYTES = 300
HAPPENS = {*FAULTS, *(f"{role} {way}" for role, way, _ in PLACES), "while it connects"}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running_server() as running:
        yield running


def decks(rng: Random, cards: Sequence[T]) -> Iterator[T]:
    """Generate all cards in random order, again and again."""
    while True:
        yield from rng.sample(cards, len(cards))


class InOrder:
    """An application that is done with each message at once."""

    def __init__(self) -> None:
        self.done: list[bytes] = []

    def __call__(self, message: tt.Message) -> None:
        """Take the next message."""
        self.done.append(message.data)
        message.discard()


class Windowed:
    """An application that processes messages in any order and recognises redeliveries before that."""

    def __init__(self, seed: int) -> None:
        self.done: list[bytes] = []
        self._rng = Random(seed)
        self._before: dict[str, tt.Message] = {}
        self._lock = threading.Lock()

    def __call__(self, message: tt.Message) -> None:
        """Take the next message."""
        assert message.bookmark is not None
        with self._lock:
            self._before[message.bookmark] = message
        if len(self._before) > WINDOW:
            self.finish(self._rng.randrange(WINDOW))

    def finish(self, count: int) -> None:
        """Process `count` messages."""
        with self._lock:
            for bookmark in self._rng.sample(sorted(self._before), min(count, len(self._before))):
                message = self._before.pop(bookmark)
                message.discard()
                self.done.append(message.data)

    @property
    def held(self) -> int:
        """Return the number of unprocessed messages."""
        return len(self._before)


class World:
    """A publisher and two consumers, each behind a proxy of its own."""

    def __init__(self, kind: str, server: RunningServer, directory: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.counts: Counter[str] = Counter()
        self.server = server
        self.published = 0
        self.exceptions: list[BaseException] = []
        """Errors of the exception listeners: a lost connection is not one."""
        self._faults = decks(self.rng, FAULTS)
        self._places = decks(self.rng, PLACES)
        self.in_order, self.windowed = InOrder(), Windowed(seed)
        self._front = Front(kind)
        self._proxies = {"publisher": FaultProxy(server.uri), "consumer": FaultProxy(server.uri)}
        for proxy in self._proxies.values():
            proxy.__enter__()
        self.publisher = self._made("publisher", directory)
        self._consumers = [self._made("consumer", directory, n) for n in range(2)]
        handlers: tuple[tt.Handler, ...] = (self.in_order, self.windowed)
        for client, handler in zip(self._consumers, handlers, strict=True):
            client.bookmark_subscribe("orders", tt.MOST_RECENT, sub_id="all", on_message=handler)

    def _made(self, role: str, directory: Path, number: int = 0) -> tt.HAClient:
        name = f"{role}-{number}"
        made = self._front.make_ha_backed(
            "file",
            name,
            publish_path=directory / f"{name}.publishes",
            bookmark_path=directory / f"{name}.bookmarks",
            servers=[self._proxies[role].uri],
            reconnect_delay=0.01,
            heartbeat=HEARTBEAT,
        )
        made.set_exception_listener(self.exceptions.append)
        made.connect_and_logon(timeout=SECONDS)
        return made

    def close(self) -> None:
        """End clients and proxies."""
        self._front.close()
        for proxy in self._proxies.values():
            proxy.__exit__(None, None, None)

    def publish(self, count: int) -> None:
        """Publish some more messages."""
        for number in range(self.published, self.published + count):
            self.publisher.publish("orders", b"%d" % number)
        self.published += count

    def cycle(self) -> None:
        """Publish until a fault has taken effect. Stalled data continues after it, or the connection is
        reset.
        """
        role, way, average = next(self._places)
        proxy = self._proxies[role]
        made = proxy.accepted
        self._inject(role, way, int(self.rng.expovariate(1 / average)))
        if self.rng.random() < 0.5:
            self._inject(role, way, self.rng.randrange(LOGON_BYTES))
            self.counts["while it connects"] += 1
        wait_until(lambda: proxy.accepted > made, SECONDS)  # a client has noticed
        proxy.go()

    def _inject(self, role: str, way: str, count: int) -> None:
        fault = next(self._faults)
        struck = getattr(self._proxies[role], way).after(count, fault)
        while not struck.wait(0.002):
            self.publish(self.rng.randrange(1, 60))
        self.counts[fault] += 1
        self.counts[f"{role} {way}"] += 1

    def _flushed(self) -> bool:
        try:
            self.publisher.publish_flush(timeout=SECONDS)
        except tt.Disconnected:  # a fault took effect meanwhile, and a call has no answer
            return False
        return True

    def check(self) -> None:
        """Check that every message is stored and delivered once."""
        expected = [b"%d" % number for number in range(self.published)]
        wait_until(self._flushed, SECONDS)
        assert self.publisher.unpersisted_count() == 0
        wait_until(lambda: len(self.in_order.done) >= self.published, SECONDS)
        wait_until(lambda: len(self.windowed.done) + self.windowed.held >= self.published, SECONDS)
        self.windowed.finish(self.windowed.held)
        assert self.exceptions == []
        assert self.in_order.done == expected
        assert sorted(self.windowed.done, key=int) == expected
        with tt.Client("auditor", self.server.uri) as auditor:
            assert [message.data for message in auditor.replay("orders")] == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_ha_client_with_connection_faults_loses_and_duplicates_nothing(
    kind: str, server: RunningServer, tmp_path: Path, full: bool
) -> None:
    world = World(kind, server, tmp_path, seed=7)
    try:
        cycles = CYCLES_FULL if full else CYCLES
        for number in range(cycles):
            world.cycle()
            if number == cycles // 2:
                server.kill()
                server.start()
        world.check()
    except BaseException as error:
        error.add_note(f"after {dict(world.counts)}, {world.published} published")
        raise
    finally:
        world.close()
    missing = [event for event in HAPPENS if not world.counts[event]]
    assert not missing, f"these events did not occur: {missing}"
