"""Queues and retention: segments with needed messages stay, and holds are reported."""

from __future__ import annotations

import pytest

from tests.helpers.queue_engine import QueueEngine
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.journal.retention import RetentionPolicy

SEGMENT_BYTES = 8_192
POLICY = RetentionPolicy(size_bytes=4 * SEGMENT_BYTES)
DEFINITIONS = {
    "plain": QueueDefinition("q", "t"),
    "file-backed": QueueDefinition("q", "t", file_backed_metadata=True),
    "of priority": QueueDefinition("q", "t", file_backed_metadata=True, priority="/p"),
    "of depth": QueueDefinition("q", "t", file_backed_metadata=True, target_queue_depth=5),
    "expiring": QueueDefinition("q", "t", file_backed_metadata=True, expiration=1e6),
    "barrier": QueueDefinition("q", "t", file_backed_metadata=True, barrier_expression="/n = 17"),
}


def body(topic: str, n: int) -> bytes:
    return b'{"topic":"%s","n":%d,"p":%d,"fill":"%s"}' % (topic.encode(), n, n % 7, b"x" * 300)


def fill(world: QueueEngine, topic: str, count: int, begin: int = 0) -> None:
    """Publish `count` messages in small commits, and run until idle."""
    peer = world.connect("publisher")
    for n in range(begin, begin + count):
        peer.publish(topic, [body(topic, n)])
        world.settle()
    world.wake(61.0)
    world.settle()


def first(world: QueueEngine) -> int:
    return world.broker.journal.view.first_position


@pytest.mark.parametrize("kind", DEFINITIONS)
def test_retention_keeps_and_reports_segments_that_a_queue_needs(kind: str) -> None:
    world = QueueEngine(DEFINITIONS[kind], segment_bytes=SEGMENT_BYTES, retention=POLICY)
    fill(world, "t", 20)
    fill(world, "other", 200)
    assert (first(world), world.broker.retention.held_by) == (0, "queue 'q'")
    assert world.broker.retention.held_segments > 3
    (held,) = world.told
    assert (held.name, held.fields["by"]) == ("retention_held", "queue 'q'")
    world.consumed("q", 19)
    fill(world, "other", 1, 200)
    assert first(world) < 60, "one is not acknowledged"
    left = world.queue("q").state.oldest()
    assert left is not None
    while world.look("q").ready or world.look("q").inactive:
        world.consumed("q", 1)
    fill(world, "other", 1, 201)
    assert first(world) > left
    about = [told.name for told in world.told if told.name.startswith("retention")]
    assert (about[0], about[-1]) == ("retention_held", "retention_released")
    assert world.broker.retention.held_by == ""


def test_retention_keeps_segments_of_leased_and_at_most_once_messages() -> None:
    world = QueueEngine(
        QueueDefinition("q", "t"),
        QueueDefinition("once", "u", semantics="at-most-once"),
        segment_bytes=SEGMENT_BYTES,
        retention=POLICY,
    )
    fill(world, "t", 1)
    fill(world, "u", 1)
    peer = world.connect("holder")
    peer.subscribe("s", "q")
    peer.subscribe("o", "once")
    world.settle()
    fill(world, "other", 120)
    assert first(world) == 0
    world.settlement(peer, "q", body("t", 0))
    fill(world, "other", 20, 120)
    oldest = world.queue("once").state.oldest()
    assert world.broker.retention.held_by == "queue 'once'"
    world.settlement(peer, "once", body("u", 0))
    fill(world, "other", 20, 140)
    assert oldest is not None
    assert first(world) > oldest


@pytest.mark.parametrize("others", [(), (QueueDefinition("else", "else"),)])
@pytest.mark.parametrize("kind", DEFINITIONS)
@pytest.mark.parametrize("clean", [False, True])
def test_queue_configured_after_removal_of_segments_continues_with_remaining_messages(
    kind: str, clean: bool, others: tuple[QueueDefinition, ...]
) -> None:
    """Without the queue in the configuration, its unprocessed messages held no segment back."""
    own = DEFINITIONS[kind]
    world = QueueEngine(own, *others, segment_bytes=SEGMENT_BYTES, retention=POLICY)
    fill(world, "t", 30)
    world.consumed("q", 1)
    world.consumed("q", 1, "cancel")
    world.queues = ()
    world.reopen(*others, clean=True)
    fill(world, "other", 60)
    fill(world, "t", 70, 30)
    kept = [heard.body for heard in world.positions().values() if heard.topic == "t"]
    assert 10 < len(kept) < 75, "some are gone"
    world.reopen(own, *others, clean=clean)
    assert first(world) > 30
    state = world.queue("q").state
    assert len(state.ready) + len(state.inactive) == len(kept)
    got: list[bytes] = []
    while state.ready:
        got += world.consumed("q", 10)
        state = world.queue("q").state
    assert sorted(got) == sorted(kept)
    failures = [work.failure for work in world.broker.queues.workers]
    assert failures == [None] * len(failures)
    world.reopen(clean=clean)
    assert world.ready("q") == []
    found = world.look("q")
    assert (found.ready, found.inactive, found.leased, found.dooming) == (0, 0, 0, 0)


@pytest.mark.parametrize("clean", [False, True])
def test_queue_restarted_after_removal_of_segments_remembers_acknowledgements(clean: bool) -> None:
    world = QueueEngine(DEFINITIONS["plain"], segment_bytes=SEGMENT_BYTES, retention=POLICY)
    fill(world, "t", 60)
    world.consumed("q", 58)
    fill(world, "other", 100)
    for n in range(3):
        world.reopen(clean=clean)
        assert len(world.ready("q")) == 2
        fill(world, "other", 30, 100 + 30 * n)
        assert world.broker.retention.held_by == "queue 'q'"
    world.consumed("q", 2)
    fill(world, "other", 100)
    world.reopen(clean=clean)
    assert world.ready("q") == []
    assert first(world) > 60


def test_retention_with_an_idle_queue_removes_segments() -> None:
    world = QueueEngine(QueueDefinition("q", "t"), segment_bytes=SEGMENT_BYTES, retention=POLICY)
    fill(world, "other", 200)
    assert first(world) > 0
    assert [told.name for told in world.told if told.name == "retention_held"] == []
