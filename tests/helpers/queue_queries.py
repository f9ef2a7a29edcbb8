"""Engine with SOW topics and queues, whose clients query.

Must never judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.helpers.queue_engine import QueueEngine
from tests.helpers.sow_peer import QueryWorld, SowPeer
from tests.simulation.engine_peer import Peer
from tickertape.base.errors import JournalCorrupt
from tickertape.engine.queues.worker import QueueWorker
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.runtime.sow_definition import SowDefinition

BIG = 4_000
"""Bytes of a body above which only few are in memory at the end of the log."""


class QueueQueryWorld(QueryWorld, QueueEngine):
    """One engine with queues, and with SOW topics if given."""

    def __init__(self, *queues: QueueDefinition, sow: Sequence[SowDefinition] = (), **more: Any) -> None:
        self.sow = tuple(sow)
        self.rebuild = frozenset()
        self.sow_bytes_max = 1 << 40
        QueueEngine.__init__(self, *queues, **more)

    def reopen(self, *queues: Any, clean: bool = False) -> None:
        QueueEngine.reopen(self, *queues, clean=clean)

    def worker(self, name: str) -> QueueWorker:
        """Return the worker of a queue."""
        (found,) = [worker for worker in self.broker.queues.workers if worker.queue.name == name]
        return found

    def until_read(self) -> None:
        """Run until a read of the log is requested."""
        while not self.reads:
            assert self.broker.has_work
            self.work()

    def fail_read(self) -> None:
        """Answer a read as a damaged log does."""
        read = self.reads.pop()
        self.broker.read_done(read.token, JournalCorrupt("segment 0 is damaged"), self.instant)
        self.collect()

    def stop_queue(self, name: str) -> None:
        """Let a consumer of a queue read damage, so that the queue stops. Its messages are not in memory."""
        consumer = self.connect(f"consumer of {name}")
        consumer.subscribe("s", name)
        self.until_read()
        self.fail_read()
        self.settle()


def big_body(number: int) -> bytes:
    """Return a body of more than `BIG` bytes."""
    return b'{"id": %d, "text": "%s"}' % (number, b"x" * BIG)


def queue_world(count: int, *, from_disk: bool = False, **more: Any) -> tuple[QueueQueryWorld, Peer, SowPeer]:
    """Return a server whose queue `work` has `count` messages of more than `BIG` bytes."""
    world = QueueQueryWorld(QueueDefinition("work", underlying="jobs"), **more)
    if from_disk:
        world.broker.journal.view.tail_bytes_max = 1
    publisher, peer = world.connect("publisher"), world.reader()
    for number in range(count):
        publisher.publish("jobs", [big_body(number)])
        world.settle()
    return world, publisher, peer
