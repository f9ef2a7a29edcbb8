"""Queue work grows at most as n log n with filters, priorities, leases, dead letters and expirations.

Work is counted: executed lines of `engine/queues`, each iteration of a loop included. No clock is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import log2
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.simulation.engine_peer import Peer
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.limits import (
    queue_frame_messages_max,
    queue_step_messages_max,
    queue_step_outcomes_max,
)
from tickertape.engine.queues import worker as work_module
from tickertape.engine.queues.queue_feed import FeedQueue
from tickertape.engine.queues.state.queue import Queue
from tickertape.engine.queues.state.records import Outcome, OutcomeKind
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.wire.commands import Publish

QUICK = [128, 512]
FULL = [1_000, 10_000, 100_000]
CREDIT = 1 << 30
_QUEUE_FILES = str(Path(work_module.__file__).parent)


class Counted:
    """Count executed lines, and the largest pieces of work done at once."""

    def __init__(self) -> None:
        self.lines = 0
        self.largest: dict[str, int] = {}

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.lines += event == "line"
        return self._line

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(_QUEUE_FILES) else None

    def __enter__(self) -> Counted:
        apply, grant = Queue.apply, Queue.grant

        def applied(queue: FeedQueue, outcome: Outcome) -> Any:
            self._met(outcome.what.name, len(outcome.positions))
            return apply(queue, outcome)

        def granted(queue: FeedQueue, consumer: Any, batch: MessageBatch, *more: Any) -> Any:
            self._met("delivered", batch.count)
            return grant(queue, consumer, batch, *more)

        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(Queue, "apply", applied)
        self._patch.setattr(Queue, "grant", granted)
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        self._patch.undo()

    def _met(self, name: str, count: int) -> None:
        self.largest[name] = max(self.largest.get(name, 0), count)


def publish(world: QueueEngine, bodies: list[bytes], expirations_ms: list[int] | None = None) -> None:
    """Publish in frames of 1,000 messages."""
    publisher = world.connect("publisher")
    for low in range(0, len(bodies), 1_000):
        builder = BatchBuilder()
        for number, body in enumerate(bodies[low : low + 1_000], low):
            builder.add("q", body, expiration_ms=0 if expirations_ms is None else expirations_ms[number])
        publisher.frames += 1
        assert publisher.logged_on is not None
        batch = MessageBatch.parse(
            builder.build(publisher.logged_on.publisher, first_sequence=low + 1).encode()
        )
        publisher.send(Publish(frame=publisher.frames, sequenced=True), batch)
    world.settle()


def world_of(**options: Any) -> QueueEngine:
    world = QueueEngine(QueueDefinition("q", **options), segment_bytes=1 << 24)
    world.broker.journal.view.tail_bytes_max = 1 << 30
    return world


def consumer(world: QueueEngine, backlog: int, **more: Any) -> Peer:
    peer = world.connect(f"consumer {world._conn}")
    peer.subscribe("s", "q", options=f"max_backlog={backlog}", credit=CREDIT, **more)
    return peer


def filters(n: int) -> Counted:
    """n filters, and 30 messages that pass one of them each."""
    world = world_of()
    for low in range(0, n, 5_000):
        peer = world.connect(f"c{low}")
        for number in range(low, min(low + 5_000, n)):
            peer.subscribe(f"s{number}", "q", filter=f"/k = {number}", options="max_backlog=10")
    world.settle()
    with Counted() as counted:
        publish(world, [b'{"k":%d}' % (number * n // 30) for number in range(30)])
    assert world.look("q").leased == 30
    return counted


def priorities(n: int) -> Counted:
    """n messages of different priorities, all for one consumer."""
    world = world_of(priority="/p")
    publish(world, [b'{"p":%d}' % number for number in Random(n).sample(range(10 * n), n)])
    with Counted() as counted:
        consumer(world, n)
        world.settle()
    assert world.look("q").leased == n
    return counted


def blocked_priorities(n: int) -> Counted:
    """n messages of different priorities without a consumer, above 30 others that arrive one by one."""
    world = world_of(priority="/p")
    publish(world, [b'{"p":%d,"k":1}' % number for number in range(100, n + 100)])
    consumer(world, 1_000, filter="/k = 2")
    world.settle()
    publisher = world.connect("p")
    with Counted() as counted:
        for number in range(30):
            publisher.publish("q", [b'{"p":%d,"k":2}' % number])
            world.settle()
    assert world.look("q").leased == 30
    return counted


def leases(n: int) -> Counted:
    """n messages return from a disconnected consumer and are leased to another one."""
    world = world_of(max_deliveries=3)
    publish(world, [b"{}"] * n)
    first = consumer(world, n)
    world.settle()
    assert world.look("q").leased == n
    with Counted() as counted:
        world.disconnect(first)
        consumer(world, n)
        world.settle()
    assert world.look("q").leased == n
    assert world.look("q").returned == {"holder_gone": n}
    return counted


def dead_letters(n: int) -> Counted:
    """n messages expire together and become dead letters."""
    world = world_of(expiration=5.0, dead_letter="dead")
    publish(world, [b"{}"] * n)
    with Counted() as counted:
        world.wake(10.0)
        world.settle()
    assert world.queue("q").state.buried == n
    return counted


def lifetimes(n: int) -> Counted:
    """n messages with individual expirations expire while they are leased."""
    world = world_of(expiration_model="message", lease_period=1_000.0)
    publish(world, [b"{}"] * n, expirations_ms=[1 + number for number in range(n)])
    peers = [consumer(world, n // 10) for _ in range(10)]
    world.settle()
    with Counted() as counted:
        world.mono += 500.0
        world.wall += 500_000_000
        for peer in peers:
            world.disconnect(peer)
    assert world.look("q").expired == {"expiration": n}
    return counted


ROWS: list[Callable[[int], Counted]] = [
    filters,
    priorities,
    blocked_priorities,
    leases,
    dead_letters,
    lifetimes,
]
SLACK = 1.5
"""Tolerance factor of the growth."""


def grows_as_n_log_n(row: Callable[[int], Counted], sizes: list[int]) -> None:
    table = [(n, row(n)) for n in sizes]
    (first, least), *others = table
    shown = ", ".join(f"{n:,}: {counted.lines:,} lines" for n, counted in table)
    for n, counted in others:
        growth = n * log2(n) / (first * log2(first))
        assert counted.lines <= SLACK * growth * least.lines, f"{row.__name__}: {shown}"
    for _, counted in table:
        for kind, count in counted.largest.items():
            assert count <= STEP_MAX[kind], f"{row.__name__}: {count} messages {kind} at once"


STEP_MAX = {
    "delivered": queue_frame_messages_max,
    OutcomeKind.RETURNED.name: queue_step_outcomes_max + queue_frame_messages_max,
    OutcomeKind.EXPIRED.name: queue_step_outcomes_max + queue_frame_messages_max,
    OutcomeKind.DEAD_LETTERED.name: queue_frame_messages_max,
}
"""Messages of one step, by the name of its bound."""


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_queue_work_grows_at_most_as_n_log_n(row: Callable[[int], Counted]) -> None:
    grows_as_n_log_n(row, QUICK)


@pytest.mark.full
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_queue_work_up_to_100_000_messages_grows_at_most_as_n_log_n(row: Callable[[int], Counted]) -> None:
    grows_as_n_log_n(row, FULL)


def test_work_counter_detects_quadratic_growth() -> None:
    def square(n: int) -> Counted:
        code = compile("for i in range(n * n // 100): pass\n", f"{_QUEUE_FILES}/made_up.py", "exec")
        with Counted() as counted:
            exec(code, {"n": n})
        return counted

    with pytest.raises(AssertionError):
        grows_as_n_log_n(square, QUICK)


def test_queue_step_limits_are_consistent() -> None:
    assert queue_frame_messages_max <= queue_step_messages_max <= queue_step_outcomes_max
