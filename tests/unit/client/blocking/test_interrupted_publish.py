"""A signal handler that raises, or publishes, at any bytecode in `Client.publish`: numbers, store and wire
still agree.

The handler is a trace function, which is asked before each bytecode.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import pytest

from tests.helpers.interrupts import TRACED, interrupted_at
from tests.helpers.threads import in_a_thread_of_its_own
from tests.helpers.tiers import parts
from tests.unit.client.peer import START
from tickertape.base.errors import Disconnected, UsageError
from tickertape.base.interfaces import Buffer
from tickertape.client.blocking.client import Client
from tickertape.client.blocking.connection import SocketConnection
from tickertape.client.blocking.waiting import ThreadWaiter
from tickertape.client.protocol.core import ClientProtocol, ConnectionEnded, ConnectionOpened
from tickertape.client.publish_store import FilePublishStore, MemoryPublishStore, PublishStore
from tickertape.wire.commands import LoggedOn, Persisted, Publish
from tickertape.wire.connection import Connection, Received


class FakeLink:
    """Takes what is added and, when it is pushed, lets a server read it; nothing more after a hang-up."""

    blocked = congested = False
    thread: None = None

    def __init__(self, read: Callable[[bytes], None]) -> None:
        self._read = read
        self._waiting: list[Buffer] = []
        self.hung_up = False

    def add(self, buffers: list[Buffer]) -> None:
        self._waiting += buffers

    def push(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not self.hung_up:
            self._read(b"".join(waiting))

    def hang_up(self, why: Disconnected | None = None) -> None:
        self.hung_up = True

    def detach(self) -> None:
        """A test that forks finds clients of earlier tests alive."""


class World:
    """A client whose server stores what it reads, by the number of each message, and drops duplicates."""

    def __init__(self, store: PublishStore | None = None) -> None:
        self.stored: dict[int, bytes] = {}
        self.given: dict[int, bytes] = {}
        self.frames = 0
        self.store: PublishStore = MemoryPublishStore() if store is None else store
        self.make()
        self.connect()

    def make(self) -> None:
        self.client = Client("pricing-1", "tcp://127.0.0.1:1", publish_store=self.store, connect=False)

    def connect(self) -> None:
        self.link = FakeLink(self.read)
        self.server = Connection("server")
        self.frames = 0
        self.open()
        last = max(self.stored, default=0)
        self.say(
            LoggedOn(
                version=0, software="", instance="i", journal="j", epoch=1, publisher=1, last_persisted=last
            )
        )

    def open(self) -> None:
        self.client._driver.connection = cast(SocketConnection, self.link)
        self.client._driver.core.receive(ConnectionOpened(ThreadWaiter()), START)
        self.drive()

    def drive(self) -> None:
        """Carry out what the machine asks for."""
        self.client._driver._carry_out(self.client._driver.connection, self.client._driver._take_sends())

    def core(self) -> ClientProtocol:
        return self.client._driver.core

    def say(self, command: LoggedOn | Persisted) -> None:
        self.core().receive(b"".join(self.server.send(command)), START)
        self.drive()

    def read(self, data: bytes) -> None:
        for event in self.server.feed(data):
            assert isinstance(event, Received), event
            if not isinstance(event.command, Publish):
                self.server.logged_on()
                continue
            assert event.batch is not None
            event.batch.verify()
            assert event.command.frame == self.frames + 1
            self.frames += 1
            for message in event.batch:
                if message.sequence > max(self.stored, default=0):
                    self.stored[message.sequence] = message.data
                    if message.correlation_id is not None:
                        assert message.data == b"labelled"

    def publish(self, topic: str, body: bytes, **extra: Any) -> None:
        sequence = self.call(topic, body, **extra)
        assert sequence is not None
        assert sequence not in self.given
        self.given[sequence] = body

    def call(self, topic: str, data: object, **extra: Any) -> int | None:
        return self.client.publish(topic, data, **extra)

    def lose_if_ended(self) -> None:
        """A connection that ended is followed by another one."""
        if self.link.hung_up:
            self.client._driver.core.receive(ConnectionEnded(Disconnected("hung up")), START)
            self.client._driver._take_sends()
            self.connect()

    def settle(self) -> None:
        """Everything gathered is sent and acknowledged; on a new connection if the old one ended."""
        self.lose_if_ended()
        self.core().publishing.flush()
        self.drive()
        self.say(Persisted(frame=self.frames, sequence=max(self.stored)))


def begin(world: World, bodies: int = 0) -> None:
    """One message in flight and `bodies` gathered; from the second on the run is open."""
    world.publish("orders", b"first")
    for i in range(bodies):
        world.publish("orders", b"%d" % i)


def idle(world: World) -> None:
    world.publish("orders", b"idle")


def gathering(world: World) -> None:
    world.publish("orders", b"more")


def other_topic(world: World) -> None:
    world.publish("trades", b"trade")


def labelled(world: World) -> None:
    world.publish("orders", b"labelled", correlation_id="c")


def large(world: World) -> None:
    world.publish("orders", b"x" * 130_000)


def dictionary(world: World) -> None:
    sequence = world.call("orders", {"a": 1})
    assert sequence is not None
    world.given[sequence] = b'{"a":1}'


def labelled_before(world: World) -> None:
    begin(world, 4)
    labelled(world)


SCENES: dict[str, tuple[Callable[[World], None], Callable[[World], None]]] = {
    "idle": (lambda _: None, idle),
    "the second": (begin, gathering),
    "opens a run": (lambda world: begin(world, 1), gathering),
    "in a run": (lambda world: begin(world, 4), gathering),
    "dictionary": (lambda world: begin(world, 4), dictionary),
    "another topic": (lambda world: begin(world, 4), other_topic),
    "labelled": (lambda world: begin(world, 4), labelled),
    "labelled again": (labelled_before, labelled),
    "no room for more": (lambda world: begin(world, 4), large),
}


SAME: Final = b"the very same object"


def check(world: World, interrupted: int) -> None:
    """Publish on and compare: what was given a number is stored under it, and no number was left out."""
    for i in range(3):
        world.publish("orders", b"after %d" % i)
    world.settle()
    world.publish("orders", b"last")
    world.settle()
    numbers = sorted(world.stored)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert {n: world.stored[n] for n in world.given} == world.given
    assert len(numbers) - len(world.given) in (0, interrupted)
    assert world.store.unpersisted_count() == 0
    assert world.store.size_bytes == 0


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("part", parts(4, 2))
@in_a_thread_of_its_own
def test_a_publish_interrupted_at_any_bytecode_loses_and_repeats_no_number(scene: str, part: int) -> None:
    prepare, act = SCENES[scene]
    step, hit = part, True
    while hit:
        world = World()
        prepare(world)
        hit = interrupted_at(step, lambda: act(world))  # noqa: B023 - called here
        assert not world.client._driver.owns_lock()
        try:
            check(world, int(hit))
        except BaseException as error:
            error.add_note(f"step {step}")
            raise
        step += 4
    assert step > 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "scene", ["the second", "opens a run", "another topic", "labelled again", "no room for more"]
)
@in_a_thread_of_its_own
def test_a_publish_into_a_store_on_disk_interrupted_at_any_bytecode_loses_nothing(
    scene: str, tmp_path: Path, full: bool
) -> None:
    prepare, act = SCENES[scene]
    step, hit = 0, True
    traced = (*TRACED, "publish_store/file.py", "publish_store/ledger.py")
    while hit:
        with FilePublishStore(tmp_path / str(step)) as store:
            world = World(store)
            prepare(world)
            hit = interrupted_at(step, lambda: act(world), traced)  # noqa: B023 - called here
            given = dict(world.given)
            try:
                check(world, int(hit))
            except BaseException as error:
                error.add_note(f"step {step}")
                raise
        with FilePublishStore(tmp_path / str(step)) as again:
            assert (again.unpersisted_count(), again.last_sequence) == (0, max(world.given))
        assert given
        shutil.rmtree(tmp_path / str(step))
        step += 29 if full else 53  # prime, so that they fall everywhere
    assert step > 100


def the_same(world: World) -> None:
    world.publish("orders", SAME)


def another(world: World) -> None:
    world.publish("orders", b"handled")


def the_same_and_close(world: World) -> None:
    the_same(world)
    world.publish("trades", b"handled")


def another_and_close(world: World) -> None:
    another(world)
    world.publish("trades", b"handled")


@pytest.mark.slow
@pytest.mark.parametrize("handle", [the_same, another, the_same_and_close, another_and_close])
@pytest.mark.parametrize("gathered", [0, 1, 2, pytest.param(4, marks=pytest.mark.full)])
@in_a_thread_of_its_own
def test_a_handler_that_publishes_at_any_bytecode_of_a_publish_loses_and_repeats_no_number(
    handle: Callable[[World], None], gathered: int
) -> None:
    step, hit = 0, True
    refused: list[int] = []

    def handler() -> None:
        try:
            handle(world)
        except UsageError:
            refused.append(step)  # in the middle of a step of the machine: not published

    while hit:
        world = World()
        begin(world, gathered)
        hit = interrupted_at(step, lambda: the_same(world), handler=handler)  # noqa: B023 - called here
        try:
            check(world, 0)
        except BaseException as error:
            error.add_note(f"step {step}")
            raise
        step += 1
    assert len(refused) < step - 30


def test_a_publish_inside_an_interrupted_publish_is_refused_not_stuck() -> None:
    world = World()
    with world.client._driver.lock, pytest.raises(UsageError, match="signal handler"):
        world.client.publish("orders", b"from a handler")
