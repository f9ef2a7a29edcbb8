"""Messages that expire or return together are processed in bounded steps."""

from __future__ import annotations

import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.simulation.engine_peer import Peer
from tickertape.batch.format import AnyArray
from tickertape.engine.limits import checkpoint_step_queues_max
from tickertape.engine.queues.queue_feed import FeedQueue
from tickertape.engine.queues.state import position_set_format as sets
from tickertape.engine.queues.state.checkpoint import CheckpointSnapshot
from tickertape.engine.queues.state.queue import Queue
from tickertape.engine.queues.state.records import Outcome
from tickertape.engine.queues.worker import QueueWorker
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.journal.commit.jobs import WriteQueues

MESSAGES = 200
BOUND = 16


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Messages of each outcome that was carried out."""
    for module in ("state.queue", "worker"):
        monkeypatch.setattr(f"tickertape.engine.queues.{module}.queue_step_outcomes_max", BOUND)
    found: list[int] = []
    apply = Queue.apply

    def counted(queue: FeedQueue, outcome: Outcome) -> object:
        found.append(len(outcome.positions))
        return apply(queue, outcome)

    monkeypatch.setattr(Queue, "apply", counted)
    return found


def published(world: QueueEngine) -> Peer:
    publisher = world.connect("publisher")
    for number in range(0, MESSAGES, 10):
        publisher.publish("q", [b"{}"] * 10)
        world.settle() if number % 50 == 0 else None
    world.settle()
    return publisher


def test_messages_that_expire_together_are_expired_in_steps_without_delivery(sizes: list[int]) -> None:
    world = QueueEngine(QueueDefinition("q", expiration=5.0, dead_letter="dead"))
    published(world)
    sizes.clear()
    world.mono += 6.0
    world.wall += 6_000_000
    peer = world.connect("consumer")
    peer.subscribe("s", "q", options="max_backlog=1000", credit=1 << 20)
    world.settle()
    look = world.look("q")
    assert (look.expired, look.ready, look.leased) == ({"expiration": MESSAGES}, 0, 0)
    assert not peer.heard["s"]
    expired = [size for size in sizes if size]
    assert max(expired[: MESSAGES // BOUND]) == BOUND


@pytest.mark.parametrize("ends", ["holder_gone", "lease_expired"])
def test_messages_that_return_together_are_returned_in_steps(sizes: list[int], ends: str) -> None:
    world = QueueEngine(QueueDefinition("q", lease_period=5.0))
    publisher = published(world)
    peer = world.connect("consumer")
    for number in range(20):  # leases of ten messages
        peer.subscribe(f"s{number}", "q", options="max_backlog=10", credit=1 << 20)
        world.settle()
    assert world.look("q").leased == MESSAGES
    sizes.clear()
    if ends == "holder_gone":
        world.disconnect(peer)
    else:
        peer.subscribe("none", "q", filter="FALSE")
        for number in range(20):
            peer.subscribe(f"s{number}", "q", filter="FALSE", options="replace", credit=1 << 20)
        world.settle()
        for _ in range(MESSAGES // BOUND + 2):
            world.wake(6.0)
            world.settle()
    assert world.look("q").returned == {ends: MESSAGES}
    assert world.look("q").ready == MESSAGES
    assert max(sizes) < BOUND + 10
    assert publisher.closed is False


def test_disconnect_from_a_stopped_queue_releases_all_leases(sizes: list[int]) -> None:
    world = QueueEngine(QueueDefinition("q"))
    published(world)
    peer = world.connect("consumer")
    peer.subscribe("s", "q", options="max_backlog=1000", credit=1 << 20)
    world.settle()
    (work,) = world.broker.queues.workers
    assert work.queue.leases.count == MESSAGES
    work.failure = RuntimeError("stopped")  # type: ignore[assignment]
    world.disconnect(peer)
    assert work.queue.leases.count == 0


def test_disconnect_from_an_at_most_once_queue_releases_all_leases_at_once(sizes: list[int]) -> None:
    world = QueueEngine(QueueDefinition("q", semantics="at-most-once"))
    peer = world.connect("consumer")
    peer.subscribe("s", "q", options="max_backlog=1000", credit=1 << 20)
    published(world)
    (work,) = world.broker.queues.workers
    assert work.queue.leases.count == MESSAGES
    sizes.clear()
    world.disconnect(peer)
    world.settle()
    assert sizes == [], "nothing is written that would start another step"
    assert work.queue.leases.count == 0
    assert work.queue.state.oldest() is None, "retention needs none of them"


def test_checkpoint_of_a_deep_queue_encodes_no_set_in_the_engine_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    definition = QueueDefinition(
        "q", priority="/p", expiration=900.0, target_queue_depth=50, file_backed_metadata=True
    )
    world = QueueEngine(definition)
    published(world)
    encoded: list[int] = []
    encode = sets._encode

    def counted(numbers: AnyArray) -> bytes:
        encoded.append(len(numbers))
        return encode(numbers)

    monkeypatch.setattr(sets, "_encode", counted)
    world.wake(61.0)
    world.settle_but_for_writes()
    assert WriteQueues in map(type, world.jobs)
    assert not encoded, "sets are encoded in the disk job, not in the engine step"
    world.settle()
    assert encoded
    assert (world.broker._checkpoints.written, world.broker._checkpoints.failures) == (1, 0)


def test_checkpoint_of_many_queues_copies_bounded_queues_in_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 3 * checkpoint_step_queues_max + 1
    world = QueueEngine(*(QueueDefinition(f"q{n}", "q", file_backed_metadata=True) for n in range(count)))
    published(world)
    copied = [0]
    snapshot = world.broker.queues.snapshot

    def counted(worker: QueueWorker) -> CheckpointSnapshot:
        copied[-1] += 1
        return snapshot(worker)

    monkeypatch.setattr(world.broker.queues, "snapshot", counted)
    world.wake(61.0)
    while world.broker.has_work:
        copied.append(0)
        world.work()
    assert (sum(copied), max(copied)) == (count, checkpoint_step_queues_max)
    world.settle()
    assert world.broker._checkpoints.written == 1


def test_stop_during_a_checkpoint_writes_no_part_of_the_checkpoint() -> None:
    world = QueueEngine(*(QueueDefinition(f"q{n}", "q") for n in range(checkpoint_step_queues_max + 1)))
    published(world)
    world.wake(61.0)
    writer = world.broker._checkpoints
    assert any(writer.pending)
    world.broker.close(world.now())
    world.collect()
    world.settle()
    assert not any(writer.pending)
    assert writer.written == 0
