"""Owns the frame that brings messages to several subscriptions of one connection, or to one.

Must never hold a message that is for none of them, or spend anybody's credit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tickertape.batch import MessageBatch, select
from tickertape.batch.format import Int64s
from tickertape.wire.commands import Deliver


def routed_frame(
    batch: MessageBatch, sub_ids: Sequence[str], counts: Int64s, routes: Int64s, after: int
) -> tuple[Deliver, MessageBatch]:
    """The command and the messages: `routes` has the rising indexes of those for each id, one id after the
    other, `counts` how many each has, at least one; `after` is the position behind everything considered."""
    if len(sub_ids) == 1:
        return Deliver(sub_id=sub_ids[0], next=after), select(batch, routes)
    union = np.sort(routes)
    distinct = union[1:] != union[:-1]
    if not distinct.all():  # else no message is for several of them
        union = union[np.concatenate(([True], distinct))]
    command = Deliver(
        next=after,
        sub_ids=tuple(sub_ids),
        counts=counts.astype("<u4").tobytes(),
        indices=union.searchsorted(routes).astype("<u4").tobytes(),
    )
    return command, select(batch, union)
