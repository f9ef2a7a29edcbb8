"""Batches as delivered from a queue, without a client. Must never settle anything by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from tickertape.batch import MessageBatch
from tickertape.batch.delivery_context import DeliveryContext
from tickertape.batch.queue_lease import AckAccumulator, Action, Hold, Lease, Marks


class Settled:
    """The settlements: queue, action, publisher and sequence."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int, int]] = []

    def acknowledged(self, gathering: AckAccumulator) -> None:
        """Record the gathered messages as acknowledged."""
        self.told += [(queue, "ack", publisher, sequence) for queue, publisher, sequence in gathering.items]
        gathering.items.clear()

    def settled(self, queue: str, action: Action, marks: Marks, extend_ms: int = 0) -> None:
        """So are these."""
        assert not extend_ms
        self.told += [(queue, action, publisher, sequence) for publisher, sequence in marks]


def out_of(
    queue: str, batch: MessageBatch, *, ends: int = 0, once: bool = False, settled: Settled | None = None
) -> MessageBatch:
    """Return `batch` as delivered from `queue`. `ends`: end of the lease, microseconds since 1970."""
    lease = Lease(
        queue, ends, once=once, hold=Hold(), gathering=AckAccumulator(), settling=settled or Settled()
    )
    context = SimpleNamespace(
        sub_id="1",
        with_bookmark=False,
        with_timestamp=True,
        command="publish",
        store=None,
        lease=lease,
        sow_keys=None,
    )
    batch.context = cast("DeliveryContext", context)
    return batch
