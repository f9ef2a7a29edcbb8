"""Engine with queues on a simulated disk, for tests that need many starts.

Must never judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.simulation.journal_world import drive
from tickertape.base.interfaces import Now
from tickertape.engine.queues.checkpoints import recover_queues
from tickertape.engine.queues.queue_feed import FeedQueue
from tickertape.engine.queues.snapshot import QueueSnapshot
from tickertape.engine.queues.state.checkpoint import decode_covered
from tickertape.engine.runtime.publisher_ids import load_publishers
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.journal.commit.jobs import WriteQueues
from tickertape.journal.format.queue_checkpoint import read_queues, write_queues
from tickertape.wire.settlement import QUEUE_TOPIC, Settlement, encode_settlement, runs_of


class QueueEngine(EngineWorld):
    """One engine with queues. Time passes in `wake`, all other work runs in `settle`."""

    def __init__(self, *queues: QueueDefinition, segment_bytes: int = 32_768, **more: Any) -> None:
        """`more` is as for `EngineWorld`."""
        self.queues: Sequence[QueueDefinition] = queues
        self.report: list[str] = []
        """The report of the last start."""
        self.read_from = 0
        """Where it began to read."""
        super().__init__(7, segment_bytes=segment_bytes, **more)

    def open(self) -> None:
        """Start the engine on the contents of the disk, as a server does."""
        super().open()
        journal = self.broker.journal
        registry = drive(self.disk, load_publishers(journal))
        self.broker = self.make_broker(journal, registry, self.queues)
        covered, self.report = {}, []
        if self.broker.queues:
            try:
                body = read_queues(self.disk, journal.journal_id)
                covered = {} if body is None else {one.queue: one for one in decode_covered(body)}
            except ValueError as error:
                self.report.append(str(error))
        recovered = drive(
            self.disk, recover_queues(self.broker.queues, journal, registry.others, covered, self.now())
        )
        self.report += recovered.report
        self.read_from = recovered.read_from
        self.broker.begin_queues(recovered, self.now())
        self.collect()
        self.settle()

    def reopen(self, *queues: QueueDefinition, clean: bool = False) -> None:
        """Kill the process (or stop it, with a checkpoint), and start another, with these queues if given."""
        if clean and self.broker.queues:
            write_queues(self.disk, self.broker.journal.journal_id, self.broker.queues.checkpoint_body())
        self.queues = queues or self.queues
        self.disk = self.disk.kill_clone()
        self.spilled.files.clear()
        self.open()

    def settle_but_for_writes(self) -> None:
        """Run all work except the writes to the disk."""
        while self.reads or self.broker.has_work:
            self.run_read() if self.reads else self.work()

    def checkpoint(self) -> None:
        """Let one minute pass, so that a checkpoint is written."""
        self.wake(61.0)
        self.settle()
        assert not any(isinstance(job, WriteQueues) for job in self.jobs)

    def queue(self, name: str) -> FeedQueue:
        """Return one queue."""
        (found,) = [work.queue for work in self.broker.queues.workers if work.queue.name == name]
        return found

    def look(self, name: str) -> QueueSnapshot:
        """Return the snapshot of a queue."""
        (found,) = [look for look in self.broker.queues.snapshots(self.instant) if look.name == name]
        return found

    @property
    def instant(self) -> Now:
        """Now, without letting time pass."""
        return Now(self.mono, self.wall)

    def ready(self, name: str) -> list[bytes]:
        """Return the bodies of the ready messages of a queue, in log order."""
        messages = self.positions()
        return [messages[position].body for position in self.queue(name).state.ready]

    def settlement(self, peer: Peer, queue: str, *bodies: bytes, action: str = "ack") -> None:
        """Settle messages by their bodies, and run until idle."""
        keys = [
            (heard.publisher, heard.sequence) for heard in self.positions().values() if heard.body in bodies
        ]
        runs = runs_of([key[0] for key in keys], [key[1] for key in keys])
        settlement = Settlement(queue=queue, action=action, runs=runs)  # type: ignore[arg-type]
        peer.publish(QUEUE_TOPIC, [encode_settlement(settlement)])
        self.settle()

    def consumed(self, name: str, count: int, action: str = "ack") -> list[bytes]:
        """Take `count` messages of a queue with a new consumer, settle them, and return their bodies."""
        peer = self.connect(f"consumer of {name} {self._conn}")
        peer.subscribe("s", name, options=f"max_backlog={count}")
        self.settle()
        bodies = [heard.body for heard in peer.heard["s"]]
        peer.subscribe("s", name, filter="FALSE", options=f"replace,max_backlog={count}")  # and no more
        self.settlement(peer, name, *bodies, action=action)
        self.disconnect(peer)
        return bodies

    def disconnect(self, peer: Peer) -> None:
        """Cut a connection."""
        self.broker.disconnected(peer.conn)
        del self.peers[peer.conn]
        self.collect()
        self.settle()
