"""Queue browser: sends the ready messages of a queue to a client without consuming them.

It starts after the queue has considered everything that was persisted at the time of the request. It follows
log order.
"""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap64

from tickertape.base.errors import TickertapeError
from tickertape.batch import MessageBatch, select, slice_batch
from tickertape.engine.limits import queue_frame_messages_max
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.queues.message_reader import MessageReader, QueueAccess
from tickertape.engine.queues.queue_feed import FeedQueue
from tickertape.engine.queues.state.records import array_of
from tickertape.engine.runtime.effects import Send
from tickertape.engine.subscriptions.subscription import Feed, FeedService, Subscription
from tickertape.wire.commands import Deliver
from tickertape.wire.frames import encode_frame


class QueueBrowser(Feed):
    """One read of the ready messages of a queue for a client."""

    def __init__(
        self,
        subscription: Subscription,
        queue: FeedQueue,
        content: ContentFilter | None,
        access: QueueAccess,
        service: FeedService,
    ) -> None:
        super().__init__(subscription, queue.name, service)
        self.queue = queue
        self.content = content
        self._persisted = access.journal.commits.persisted_end
        """End of the log at the request. Every message persisted before it is considered."""
        self._left: BitMap64 | None = None
        self.end = 0
        """Position after the last message to read."""
        self._waiting: MessageBatch | None = None
        """Messages that passed the filter and are not sent yet."""
        self._reader = MessageReader(access, None, self)
        self._outbox = access.outbox
        self._clock = access.clock

    @property
    def failure(self) -> TickertapeError | None:
        """The error if messages cannot be read."""
        return self._reader.failure

    @property
    def may_begin(self) -> bool:
        """Whether the queue has considered everything that was persisted at the request."""
        return self.queue.considered >= self._persisted

    @property
    def over(self) -> bool:
        """Whether everything is sent."""
        return self._left is not None and not self._left and self._waiting is None

    def stop(self) -> None:
        """Stop reading."""
        self._left = BitMap64()
        self._reader.stop()

    def step(self) -> bool:
        """Execute one bounded step. Return whether another step could do something now."""
        if self._waiting is not None:
            return self._send(self._waiting)
        if self._left is None:
            if not self.may_begin:
                return False
            self._left = self.queue.available(self._persisted, self._clock.wall)
            self.end = int(self._left.max()) + 1 if self._left else 0
        if not self._left:
            return False
        # Messages that have left the queue meanwhile may be deleted from the log.
        self._left &= self.queue.state.has(self._left)
        if not self._left:
            return True
        fetched = self._reader.get(array_of(self._left[:queue_frame_messages_max]))
        if fetched is None:
            return False
        batch = fetched.batch
        high = batch.count
        chosen: MessageBatch | None = batch
        if self.content is not None:
            high = self.content.piece_end(batch, 0)
            passed = self.content.matching_rows(batch, np.arange(high))
            chosen = select(batch, passed) if len(passed) else None
        for position in fetched.positions[:high].tolist():
            self._left.discard(position)
        if chosen is not None:
            self._waiting = chosen if self.content is None else self.content.project(chosen)
        return True

    def _send(self, batch: MessageBatch) -> bool:
        if not self.session.writable:
            return False
        count = self.allowance.fitting(batch, 0, batch.count)
        if not count:
            return False
        sent = slice_batch(batch, 0, count)
        self._waiting = None if count == batch.count else slice_batch(batch, count, batch.count)
        self.spend(sent)
        command = Deliver(sub_id=self.sub_id, queue=self.queue.name)
        self._outbox.put(Send(self.session.conn, encode_frame(command, sent)))
        return True
