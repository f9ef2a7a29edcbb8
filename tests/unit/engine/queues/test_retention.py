"""Queue reads overtaken by retention: removed messages were settled, so the queue continues."""

from __future__ import annotations

from tests.simulation.queue_world import QueuePeer, QueueWorld
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.journal.retention import RetentionPolicy

BODY = b'{"g":"a","x":"' + b"y" * 1_500 + b'"}'


def without_reads(world: QueueWorld) -> None:
    """Work off everything except reads."""
    for _ in range(10_000):
        if world.jobs:
            world.run_job()
        elif world.broker.has_work:
            world.work()
        else:
            return
    raise AssertionError("the engine did not become idle")


def test_queue_filter_scan_overtaken_by_retention_continues_with_new_messages() -> None:
    policy = RetentionPolicy(None, 40_000)
    world = QueueWorld(1, [QueueDefinition("q")], segment_bytes=16_384, retention=policy)
    world.broker.journal.view.tail_bytes_max = 1
    publisher, other, choosy = (world.connect(name) for name in ("publisher", "other", "choosy"))
    keys = []
    for _ in range(40):
        keys += publisher.put("q", [BODY])
        world.settle()
    assert isinstance(choosy, QueuePeer)
    choosy.consume("choosy", "q", filter="/g = 'b'")
    without_reads(world)
    slow = world.reads[:]
    assert slow, "the filter scan waits for reads"
    world.reads.clear()
    other.settle("q", "ack", keys)
    world.settle()
    before = world.broker.journal.view.first_position
    for _ in range(60):
        world.wake(1.0)
        world.settle()
    assert world.broker.journal.view.first_position > before
    world.reads += slow
    world.settle()
    assert not choosy.ended
    publisher.put("q", [BODY.replace(b'"a"', b'"b"')])
    world.settle()
    assert len(choosy.got) == 1
