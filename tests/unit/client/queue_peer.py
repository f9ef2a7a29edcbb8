"""A client protocol machine with a scripted server with queues. Tests give deliveries and answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

from tests.unit.client.peer import Named, Peer
from tickertape.base.interfaces import Now
from tickertape.batch import batch_from_bodies
from tickertape.batch.message_batch import MessageBatch
from tickertape.batch.queue_lease import AckAccumulator, Action, Marks
from tickertape.client.common.effects import DeliverBatch, Sink
from tickertape.client.common.request import SubscribeRequest
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.publish_store.protocol import PublishStore
from tickertape.client.queues.ack_batcher import AckBatcher
from tickertape.wire.commands import Ack, Deliver, Persisted, Publish, Subscribe
from tickertape.wire.settlement import QUEUE_TOPIC, decode_settlement

Settled = tuple[str, str, list[tuple[int, int, int]]]
"""Queue, action, and the runs of a settlement."""


class LeasePort:
    """The port for reports of leases. Each report is a step at the time of the test."""

    def __init__(
        self, acks: AckBatcher, take: Callable[[Callable[[], None]], None], clock: Callable[[], Now]
    ) -> None:
        self._acks = acks
        self._take = take
        self._clock = clock

    def acknowledged(self, gathering: AckAccumulator) -> None:
        """See `Settling`."""
        self._take(partial(self._acks.acknowledged, gathering, self._clock()))

    def settled(self, queue: str, action: Action, marks: Marks, extend_ms: int = 0) -> None:
        """See `Settling`."""
        self._take(partial(self._acks.settle, queue, action, marks, extend_ms))


class QueuePeer(Peer):
    """A `Peer` with leases that are settled in the protocol machine."""

    def __init__(self, store: PublishStore | None = None) -> None:
        super().__init__(store)
        self.core.acks.attach(LeasePort(self.core.acks, self.step, lambda: self.now))
        self._sequences = count(1)
        self.frames = 0

    def step(self, step: Callable[[], None]) -> None:
        """Run a step of the acknowledgement batcher."""
        step()

    def consume(
        self,
        topic: str = "work",
        backlog: int = 10,
        sink: Sink | None = None,
        sub_id: str = "s",
        options: str = "",
    ) -> SubscribeRequest:
        """Subscribe and grant a backlog."""
        request = make_request(topic, sub_id, options=options or f"max_backlog={backlog}")
        self.core.subscribe(Named("token"), request, sink or Named("sink"))
        ((command, _),) = [item for item in self.sent() if isinstance(item[0], Subscribe)]
        assert isinstance(command, Subscribe)
        self.say(Ack(id=command.id, backlog=backlog))
        return request

    def deliver(
        self, messages: int = 1, *, queue: str = "work", sub_id: str = "s", lease: int = 0, once: bool = False
    ) -> MessageBatch:
        """Deliver messages of a queue and return the batch that the sink received."""
        first = next(self._sequences)
        for _ in range(messages - 1):
            next(self._sequences)
        batch = batch_from_bodies("jobs", [b"x"] * messages, publisher=5, first_sequence=first)
        self.say(Deliver(sub_id=sub_id, queue=queue, lease=lease, once=once), batch)
        (hand,) = self.took(DeliverBatch)
        batch = hand.batch
        assert isinstance(batch, MessageBatch)
        return batch

    def settled(self) -> list[Settled]:
        """Return the settlements sent since the last call."""
        found: list[Settled] = []
        for command, batch in self.sent():
            if isinstance(command, Publish):
                assert batch is not None
                self.frames = command.frame
                for at in range(batch.count):
                    assert batch.topic(at) == QUEUE_TOPIC
                    found.append(read(batch.body(at)))
        return found

    def answer(self) -> list[Settled]:
        """Acknowledge frames in flight and return the settlements sent after that."""
        self.say(Persisted(frame=self.frames))
        return self.settled()


def read(body: bytes) -> Settled:
    """Decode a settlement."""
    settlement, runs = decode_settlement(body)
    rows = [(int(row[0]), int(row[1]), int(row[2])) for row in runs]
    action = settlement.action + (f" {settlement.extend_ms}" if settlement.extend_ms else "")
    return settlement.queue, action + (f" {settlement.filter}" if settlement.filter else ""), rows
