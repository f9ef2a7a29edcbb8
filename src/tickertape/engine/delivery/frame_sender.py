"""Frame sender: sends batches to feeds as frames, and counts them against credit."""

from __future__ import annotations

from tickertape.batch import MessageBatch
from tickertape.engine.runtime.effects import Send
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.subscriptions.log_feed import LogFeed
from tickertape.wire.commands import Deliver
from tickertape.wire.frames import encode_frame


class FrameSender:
    """The way of all deliveries of the log."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def deliver(
        self,
        sub: LogFeed,
        batch: MessageBatch,
        after: int,
        crc: int | None = None,
        positions: bytes = b"",
    ) -> None:
        """Send a batch to a feed, which has considered everything below `after` then. `positions` are those
        of `Deliver`."""
        sub.spend(batch)
        sub.notified_to = after
        command = Deliver(sub_id=sub.sub_id, next=after, positions=positions)
        self._outbox.put(Send(sub.session.conn, encode_frame(command, batch, batch_crc=crc)))

    def deliver_shared(self, conn: int, command: Deliver, batch: MessageBatch) -> None:
        """Send a frame for several feeds of a connection, whose credit is spent already."""
        self._outbox.put(Send(conn, encode_frame(command, batch)))
