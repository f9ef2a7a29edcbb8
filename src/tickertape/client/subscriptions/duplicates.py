"""Duplicates: drop messages that were delivered before, and skip redelivered ones discarded since.

A batch without redelivered messages costs only one check of its context. A message is dropped only if a
bookmark store reports it as discarded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.base.errors import TickertapeError
from tickertape.batch import message_costs, select
from tickertape.batch.format import I8
from tickertape.batch.message_batch import Message, MessageBatch
from tickertape.client.bookmark_store.protocol import BookmarkStore, columns_of
from tickertape.client.common.handlers import Handler
from tickertape.client.common.request import SubscriptionContext
from tickertape.client.subscriptions.bookmark_tracker import BookmarkTracker, asked


def mark_redelivered(context: SubscriptionContext) -> SubscriptionContext:
    """Return the context of a batch with redelivered messages."""
    return context if context.store is None else msgspec.structs.replace(context, came_again=True)


def left_of(batch: MessageBatch) -> MessageBatch | None:
    """Return the messages of `batch` that are still to be delivered, or None without any.

    Returned queue messages and discarded redelivered messages are left out.
    """
    context = batch.context
    if context is None or not (context.came_again or context.lease is not None):
        return batch
    if context.lease is not None:
        return None if context.lease.gone else batch
    publishers, sequences = columns_of(batch)
    count = batch.count
    ids = [publishers] * count if isinstance(publishers, int) else publishers.tolist()
    rows = [
        row
        for row, (publisher, sequence) in enumerate(zip(ids, sequences.tolist(), strict=True))
        if not _is_discarded(context.store, context.sub_id, publisher, sequence)
    ]
    if len(rows) == count:
        return batch
    if not rows:
        return None
    left = select(batch, np.array(rows, I8))
    left.context = context
    return left


def is_over(message: Message) -> bool:
    """Return whether a message was redelivered and discarded meanwhile."""
    batch = message.batch
    context = batch.context
    if context is None or not context.came_again:
        return False
    at = message.index
    return _is_discarded(context.store, context.sub_id, batch.publisher(at), batch.sequence(at))


class NotOver:
    """Iterator over a batch with redelivered messages. It skips those that are discarded by their turn."""

    __slots__ = ("_next", "_rest")

    def __init__(self, messages: Iterator[Message]) -> None:
        self._rest = messages
        self._next: Message | None = None
        """Message under examination. After an interruption the next call examines it again."""

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        while True:
            if self._next is None:
                for message in self._rest:
                    self._next = message
                    break
                else:
                    raise StopIteration
            message = self._next
            over = is_over(message)
            self._next = None
            if not over:
                return message

    @property
    def messages(self) -> Iterator[Message]:
        """All remaining messages."""
        return self._rest if self._next is None else chain((self._next,), self._rest)


def unless_over(handler: Handler, batch: MessageBatch) -> Handler:
    """Return `handler`, or for a batch with redelivered messages a handler that skips discarded ones."""
    if batch.context is None or not batch.context.came_again:
        return handler
    return lambda message: None if is_over(message) else handler(message)


def _is_discarded(store: object, sub_id: str, publisher: int, sequence: int) -> bool:
    assert isinstance(store, BookmarkStore)
    try:
        return asked(lambda: store.is_discarded(sub_id, publisher, sequence))
    except TickertapeError:
        return False  # without an answer of the store, a duplicate is better than a lost message


RowNumbers: TypeAlias = npt.NDArray[np.int64]


class Deduplicated(NamedTuple):
    """New messages of a batch."""

    rows: Sequence[int] | None
    """Rows of the new messages. None means all messages of the batch."""
    cost: int
    """Cost of the new messages, 0 without any."""
    context: SubscriptionContext
    """Context of the delivery. It says whether messages may have been delivered before."""
    dropped: RowNumbers | None = None
    """Dropped rows of the batch, or None."""


def drop_duplicates(
    tracker: BookmarkTracker,
    batch: MessageBatch,
    rows: Sequence[int] | None,
    cost: int,
    context: SubscriptionContext,
) -> Deduplicated:
    """Return the new messages among these rows of a batch (None: all rows), which cost `cost` in total.

    Raises the errors of the tracker.
    """
    publishers, sequences = columns_of(batch)
    at = None
    if rows is not None and len(rows) < batch.count:
        at = np.array(rows, I8)
        sequences = sequences[at]
        publishers = publishers if isinstance(publishers, int) else publishers[at]
    keep = tracker.new_rows(publishers, sequences)
    if keep is None:
        return Deduplicated(rows, cost, context)
    context = mark_redelivered(context)
    if keep.all():
        return Deduplicated(rows, cost, context)
    left, dropped = (part.nonzero()[0] if at is None else at[part] for part in (keep, ~keep))
    return Deduplicated(left.tolist(), int(message_costs(batch)[left].sum()), context, dropped)


def dropped_of(batch: MessageBatch, rows: RowNumbers, context: SubscriptionContext) -> MessageBatch:
    """Return the dropped messages, at least one, as a batch of their subscription."""
    dropped = select(batch, rows)
    dropped.context = context
    return dropped
