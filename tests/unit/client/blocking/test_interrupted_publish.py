"""Signal handlers at any bytecode in `Client.publish`: sequences, store and wire stay consistent.

The handler raises or publishes. It is a trace function, which is called before each bytecode.
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
    """A connection that passes pushed bytes to a server until `hang_up`."""

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
        """Do nothing. Clients of earlier tests may exist when a later test forks."""


class Harness:
    """A client with a server that stores messages by sequence and drops duplicates."""

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
        """Perform the effects of the state machine."""
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
        """Reconnect if the connection ended."""
        if self.link.hung_up:
            self.client._driver.core.receive(ConnectionEnded(Disconnected("hung up")), START)
            self.client._driver._take_sends()
            self.connect()

    def settle(self) -> None:
        """Send and acknowledge all messages, on a new connection if the old one ended."""
        self.lose_if_ended()
        self.core().publishing.flush()
        self.drive()
        self.say(Persisted(frame=self.frames, sequence=max(self.stored)))


def begin(harness: Harness, bodies: int = 0) -> None:
    """Publish one message in flight and `bodies` batched ones. The second opens the run."""
    harness.publish("orders", b"first")
    for i in range(bodies):
        harness.publish("orders", b"%d" % i)


def idle(harness: Harness) -> None:
    harness.publish("orders", b"idle")


def gathering(harness: Harness) -> None:
    harness.publish("orders", b"more")


def other_topic(harness: Harness) -> None:
    harness.publish("trades", b"trade")


def labelled(harness: Harness) -> None:
    harness.publish("orders", b"labelled", correlation_id="c")


def large(harness: Harness) -> None:
    harness.publish("orders", b"x" * 130_000)


def dictionary(harness: Harness) -> None:
    sequence = harness.call("orders", {"a": 1})
    assert sequence is not None
    harness.given[sequence] = b'{"a":1}'


def labelled_before(harness: Harness) -> None:
    begin(harness, 4)
    labelled(harness)


SCENES: dict[str, tuple[Callable[[Harness], None], Callable[[Harness], None]]] = {
    "idle": (lambda _: None, idle),
    "the second": (begin, gathering),
    "opens a run": (lambda harness: begin(harness, 1), gathering),
    "in a run": (lambda harness: begin(harness, 4), gathering),
    "dictionary": (lambda harness: begin(harness, 4), dictionary),
    "other_body topic": (lambda harness: begin(harness, 4), other_topic),
    "labelled": (lambda harness: begin(harness, 4), labelled),
    "labelled again": (labelled_before, labelled),
    "batch is full": (lambda harness: begin(harness, 4), large),
}


SAME: Final = b"the very same object"


def check(harness: Harness, interrupted: int) -> None:
    """Publish more and check that each sequence has its message and that no sequence is missing."""
    for i in range(3):
        harness.publish("orders", b"after %d" % i)
    harness.settle()
    harness.publish("orders", b"last")
    harness.settle()
    numbers = sorted(harness.stored)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert {n: harness.stored[n] for n in harness.given} == harness.given
    assert len(numbers) - len(harness.given) in (0, interrupted)
    assert harness.store.unpersisted_count() == 0
    assert harness.store.size_bytes == 0


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("part", parts(4, 2))
@in_a_thread_of_its_own
def test_publish_interrupted_at_any_bytecode_loses_and_repeats_no_sequence(scene: str, part: int) -> None:
    prepare, act = SCENES[scene]
    step, hit = part, True
    while hit:
        harness = Harness()
        prepare(harness)
        hit = interrupted_at(step, lambda: act(harness))  # noqa: B023 - called here
        assert not harness.client._driver.owns_lock()
        try:
            check(harness, int(hit))
        except BaseException as error:
            error.add_note(f"step {step}")
            raise
        step += 4
    assert step > 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "scene", ["the second", "opens a run", "other_body topic", "labelled again", "batch is full"]
)
@in_a_thread_of_its_own
def test_publish_into_file_store_interrupted_at_any_bytecode_loses_nothing(
    scene: str, tmp_path: Path, full: bool
) -> None:
    prepare, act = SCENES[scene]
    step, hit = 0, True
    traced = (*TRACED, "publish_store/file.py", "publish_store/ledger.py")
    while hit:
        with FilePublishStore(tmp_path / str(step)) as store:
            harness = Harness(store)
            prepare(harness)
            hit = interrupted_at(step, lambda: act(harness), traced)  # noqa: B023 - called here
            given = dict(harness.given)
            try:
                check(harness, int(hit))
            except BaseException as error:
                error.add_note(f"step {step}")
                raise
        with FilePublishStore(tmp_path / str(step)) as again:
            assert (again.unpersisted_count(), again.last_sequence) == (0, max(harness.given))
        assert given
        shutil.rmtree(tmp_path / str(step))
        step += 29 if full else 107  # a prime, so that the steps vary
    assert step > 100


def same_body(harness: Harness) -> None:
    harness.publish("orders", SAME)


def other_body(harness: Harness) -> None:
    harness.publish("orders", b"handled")


def same_body_and_close(harness: Harness) -> None:
    same_body(harness)
    harness.publish("trades", b"handled")


def other_body_and_close(harness: Harness) -> None:
    other_body(harness)
    harness.publish("trades", b"handled")


@pytest.mark.slow
@pytest.mark.parametrize("handle", [same_body, other_body, same_body_and_close, other_body_and_close])
@pytest.mark.parametrize("gathered", [0, 1, 2, pytest.param(4, marks=pytest.mark.full)])
@in_a_thread_of_its_own
def test_publish_in_signal_handler_at_any_bytecode_loses_and_repeats_no_sequence(
    handle: Callable[[Harness], None], gathered: int
) -> None:
    step, hit = 0, True
    refused: list[int] = []

    def handler() -> None:
        try:
            handle(harness)
        except UsageError:
            refused.append(step)  # in the middle of a step of the state machine: not published

    while hit:
        harness = Harness()
        begin(harness, gathered)
        hit = interrupted_at(step, lambda: same_body(harness), handler=handler)  # noqa: B023 - called here
        try:
            check(harness, 0)
        except BaseException as error:
            error.add_note(f"step {step}")
            raise
        step += 1
    assert len(refused) < step - 30


def test_publish_in_signal_handler_with_lock_held_raises() -> None:
    harness = Harness()
    with harness.client._driver.lock, pytest.raises(UsageError, match="signal handler"):
        harness.client.publish("orders", b"from a handler")
