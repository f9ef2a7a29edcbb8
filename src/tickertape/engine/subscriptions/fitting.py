"""Owns how much of a batch a credit allows.

Must never look at a body.
"""

from __future__ import annotations

from bisect import bisect_right

from tickertape.batch import MessageBatch


def affordable_rows(batch: MessageBatch, low: int, high: int, allowed: int) -> int:
    """How many messages of `batch[low:high]`, from the front, cost at most `allowed` together."""
    if batch.cost_between(low, high) <= allowed:
        return high - low
    # A commit is cut many times: what is left of it is searched, not gone through.
    return bisect_right(range(low + 1, high + 1), allowed, key=lambda stop: batch.cost_between(low, stop))
