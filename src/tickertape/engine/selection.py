"""Owns what of a read is one topic's own: its messages as one table, and the position of each.

Small commits are put together, so that a log of single messages is delivered in batches too. Must never
change the order, or hold what was read for the sake of a small part of it: what is selected is a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tickertape.base.limits import read_bytes_target
from tickertape.batch import MessageBatch, merge, select_topic
from tickertape.batch.format import Int64s
from tickertape.journal.reading import Part


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages of one topic out of a stretch of the log."""

    batch: MessageBatch | None
    """None when there are none."""
    positions: Int64s | None
    """Of each message; None when they follow one another without gaps up to `end`."""
    end: int
    """Position after the stretch."""
    last_timestamp: int
    """Log time of the last message of the stretch, of whatever topic."""

    @property
    def count(self) -> int:
        """Messages."""
        return 0 if self.batch is None else self.batch.count

    def position(self, index: int) -> int:
        """Position of message `index`; the end of the stretch when it has no more."""
        if index >= self.count:
            return self.end
        return self.end - self.count + index if self.positions is None else int(self.positions[index])

    def index_at(self, position: int) -> int:
        """Index of the first message at or above `position`."""
        if self.positions is None:
            return min(max(position - (self.end - self.count), 0), self.count)
        return int(self.positions.searchsorted(position))

    def index_stamped(self, timestamp: int) -> int:
        """Index of the first message stamped at or after `timestamp`."""
        if self.batch is None or self.last_timestamp < timestamp:
            return self.count
        return int(self.batch.timestamps.searchsorted(timestamp))


def selections(parts: list[Part], topic: str) -> list[Selection]:
    """What of `parts`, which follow one another, was published to `topic`; the last ends where they end."""
    chosen: list[Selection] = []
    group: list[Selection] = []
    size = 0
    for part in parts:
        selected = _select(part, topic)
        size += 0 if selected.batch is None else selected.batch.nbytes
        if size > read_bytes_target and group:
            chosen.append(_together(group))
            group = []
            size = 0 if selected.batch is None else selected.batch.nbytes
        group.append(selected)
    if group:
        chosen.append(_together(group))
    return chosen


def _select(part: Part, topic: str) -> Selection:
    batch, end = part.batch, part.end_position
    last_timestamp = batch.run(batch.run_count - 1).timestamp
    own = select_topic(batch, topic)
    if own is None:
        return Selection(None, None, end, last_timestamp)
    if own is batch:
        return Selection(own, part.positions, end, last_timestamp)
    index, kinds = batch.topic_index, batch.kinds
    mask = np.ones(batch.count, np.bool_) if index is None else index == batch.topics.index(topic)
    if kinds is not None:
        mask &= kinds == 0
    positions = mask.nonzero()[0]
    if part.positions is None:
        positions += part.first_position
    else:
        positions = part.positions[positions]
    return Selection(own, positions, end, last_timestamp)


def _together(group: list[Selection]) -> Selection:
    if len(group) == 1:
        return group[0]
    full = [one for one in group if one.batch is not None]
    last = group[-1]
    if not full:
        return last
    if len(full) == 1 and full[0] is last:
        return last
    batch = merge([one.batch for one in full if one.batch is not None])
    first = full[0].position(0)
    if last.end - first == batch.count:
        return Selection(batch, None, last.end, last.last_timestamp)
    return Selection(batch, np.concatenate([_positions(one) for one in full]), last.end, last.last_timestamp)


def _positions(one: Selection) -> Int64s:
    if one.positions is not None:
        return one.positions
    return np.arange(one.end - one.count, one.end, dtype=np.int64)
