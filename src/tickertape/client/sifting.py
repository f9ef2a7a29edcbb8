"""Owns what of a batch is for the application, where somebody keeps account of what was delivered before.

Must never change a batch: what is left of one is another one, or a choice of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tickertape.batch import message_costs, select
from tickertape.batch.format import I8
from tickertape.batch.layout import MessageBatch
from tickertape.client.bookmark_store.protocol import columns_of
from tickertape.client.bookmarks import Trail


def sift(trail: Trail, batch: MessageBatch) -> MessageBatch | None:
    """What of it is new: often `batch` itself; None when nothing is. Raises what the trail raises."""
    keep = trail.sift(*columns_of(batch))
    if keep is None or keep.all():
        return batch
    rows = keep.nonzero()[0]
    return select(batch, rows) if len(rows) else None


def sift_rows(trail: Trail, batch: MessageBatch, rows: Sequence[int], cost: int) -> tuple[Sequence[int], int]:
    """Which of these rows, which cost `cost` together, are new: often `rows` itself; and what those cost.
    Raises what the trail raises."""
    publishers, sequences = columns_of(batch)
    at = None
    if len(rows) < batch.count:
        at = np.array(rows, I8)
        sequences = sequences[at]
        publishers = publishers if isinstance(publishers, int) else publishers[at]
    keep = trail.sift(publishers, sequences)
    if keep is None or keep.all():
        return rows, cost
    left = keep.nonzero()[0] if at is None else at[keep]
    return left.tolist(), int(message_costs(batch)[left].sum())
