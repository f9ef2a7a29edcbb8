"""Owns what of a batch is for the application, where somebody keeps account of what was delivered before.

Must never change a batch: what is left of one is another one, or a choice of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tickertape.batch import message_costs, select
from tickertape.batch.format import I8
from tickertape.batch.layout import MessageBatch
from tickertape.client.again import marked
from tickertape.client.bookmark_store.protocol import columns_of
from tickertape.client.bookmarks import Trail
from tickertape.client.subscription import DeliveryContext


class Sifted(NamedTuple):
    """What is left of a batch."""

    batch: MessageBatch | None
    """Often the batch itself; None when nothing is left."""
    context: DeliveryContext
    """With which it is handed on: it says whether messages of it may have been delivered before."""


class SiftedRows(NamedTuple):
    """What is left of some rows of a batch."""

    rows: Sequence[int]
    """Often the rows themselves."""
    cost: int
    """What those that are left cost together."""
    context: DeliveryContext


def sift(trail: Trail, batch: MessageBatch, context: DeliveryContext) -> Sifted:
    """What of it is new. Raises what the trail raises."""
    keep = trail.sift(*columns_of(batch))
    if keep is None:
        return Sifted(batch, context)
    context = marked(context)
    if keep.all():
        return Sifted(batch, context)
    rows = keep.nonzero()[0]
    return Sifted(select(batch, rows) if len(rows) else None, context)


def sift_rows(
    trail: Trail, batch: MessageBatch, rows: Sequence[int], cost: int, context: DeliveryContext
) -> SiftedRows:
    """Which of these rows, which cost `cost` together, are new. Raises what the trail raises."""
    publishers, sequences = columns_of(batch)
    at = None
    if len(rows) < batch.count:
        at = np.array(rows, I8)
        sequences = sequences[at]
        publishers = publishers if isinstance(publishers, int) else publishers[at]
    keep = trail.sift(publishers, sequences)
    if keep is None:
        return SiftedRows(rows, cost, context)
    context = marked(context)
    if keep.all():
        return SiftedRows(rows, cost, context)
    left = keep.nonzero()[0] if at is None else at[keep]
    return SiftedRows(left.tolist(), int(message_costs(batch)[left].sum()), context)
