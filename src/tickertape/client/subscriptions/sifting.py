"""Owns what of a batch is for the application, where somebody keeps account of what was delivered before.

Must never change a batch: what is left of one is another one, or a choice of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tickertape.batch import message_costs, select
from tickertape.batch.format import I8
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.bookmark_store.protocol import columns_of
from tickertape.client.subscriptions.bookmark_tracker import BookmarkTracker
from tickertape.client.subscriptions.duplicates import mark_redelivered
from tickertape.client.subscriptions.subscription import SubscriptionContext

RowNumbers: TypeAlias = npt.NDArray[np.int64]


class Deduplicated(NamedTuple):
    """What is left of a batch."""

    batch: MessageBatch | None
    """Often the batch itself; None when nothing is left."""
    context: SubscriptionContext
    """With which it is handed on: it says whether messages of it may have been delivered before."""
    dropped: RowNumbers | None = None
    """The rows that are not left; None when all are."""


class DeduplicatedRows(NamedTuple):
    """What is left of some rows of a batch."""

    rows: Sequence[int]
    """Often the rows themselves."""
    cost: int
    """What those that are left cost together."""
    context: SubscriptionContext
    dropped: RowNumbers | None = None
    """The rows of the batch that are not left; None when all are."""


def drop_duplicates(
    trail: BookmarkTracker, batch: MessageBatch, context: SubscriptionContext
) -> Deduplicated:
    """What of it is new. Raises what the trail raises."""
    keep = trail.sift(*columns_of(batch))
    if keep is None:
        return Deduplicated(batch, context)
    context = mark_redelivered(context)
    if keep.all():
        return Deduplicated(batch, context)
    rows = keep.nonzero()[0]
    return Deduplicated(select(batch, rows) if len(rows) else None, context, (~keep).nonzero()[0])


def drop_duplicate_rows(
    trail: BookmarkTracker, batch: MessageBatch, rows: Sequence[int], cost: int, context: SubscriptionContext
) -> DeduplicatedRows:
    """Which of these rows, which cost `cost` together, are new. Raises what the trail raises."""
    publishers, sequences = columns_of(batch)
    at = None
    if len(rows) < batch.count:
        at = np.array(rows, I8)
        sequences = sequences[at]
        publishers = publishers if isinstance(publishers, int) else publishers[at]
    keep = trail.sift(publishers, sequences)
    if keep is None:
        return DeduplicatedRows(rows, cost, context)
    context = mark_redelivered(context)
    if keep.all():
        return DeduplicatedRows(rows, cost, context)
    left, dropped = (part.nonzero()[0] if at is None else at[part] for part in (keep, ~keep))
    return DeduplicatedRows(left.tolist(), int(message_costs(batch)[left].sum()), context, dropped)


def dropped_of(batch: MessageBatch, rows: RowNumbers, context: SubscriptionContext) -> MessageBatch:
    """The messages that were dropped, at least one, as a batch of their subscription."""
    dropped = select(batch, rows)
    dropped.context = context
    return dropped
