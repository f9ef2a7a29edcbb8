"""Selection: the messages of a read that match an interest, as one batch, with their positions.

Small commits are merged, so that a log of single messages is delivered in batches too.

Invariants:
- Messages keep their order.
- A selection is a copy: it does not keep a larger buffer alive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tickertape.batch import MessageBatch, merge, select, select_topic
from tickertape.batch.format import Bools, Int64s
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.matching.interest import Interest
from tickertape.journal.limits import read_bytes_target
from tickertape.journal.reading.log_view import LogPart


@dataclass(frozen=True, slots=True)
class Selection:
    """Selected messages of a range of the log."""

    batch: MessageBatch | None
    """None if no message is selected."""
    positions: Int64s | None
    """Position of each message. None if the positions are consecutive up to `end`."""
    end: int
    """Position after the range."""
    last_timestamp: int
    """Log time of the last message of the range, regardless of its topic."""

    @property
    def count(self) -> int:
        """Number of messages."""
        return 0 if self.batch is None else self.batch.count

    def position(self, index: int) -> int:
        """Return the position of message `index`, or `end` if it has fewer messages."""
        if index >= self.count:
            return self.end
        return self.end - self.count + index if self.positions is None else int(self.positions[index])

    def positions_of(self, indices: Int64s) -> Int64s:
        """Return the positions of the messages `indices`."""
        return indices + (self.end - self.count) if self.positions is None else self.positions[indices]

    def encoded_positions(self, low: int, high: int) -> bytes:
        """Encode the positions of the messages `[low, high)`, at least one (see `Deliver.positions`)."""
        first = self.position(low)
        if self.positions is None or int(self.positions[high - 1]) - first == high - 1 - low:
            return first.to_bytes(8, "little")
        return self.positions[low:high].astype("<u8").tobytes()

    def index_at(self, position: int) -> int:
        """Return the index of the first message at or above `position`."""
        if self.positions is None:
            return min(max(position - (self.end - self.count), 0), self.count)
        return int(self.positions.searchsorted(position))

    def index_stamped(self, timestamp: int) -> int:
        """Return the index of the first message with a log time at or after `timestamp`."""
        if self.batch is None or self.last_timestamp < timestamp:
            return self.count
        return int(self.batch.timestamps.searchsorted(timestamp))


def selections(parts: list[LogPart], interest: Interest) -> list[Selection]:
    """Return the messages of consecutive `parts` on the topics of `interest`, unfiltered. The last selection
    ends at the end of the last part."""
    chosen: list[Selection] = []
    group: list[Selection] = []
    size = 0
    for part in parts:
        selected = _select(part, interest)
        size += 0 if selected.batch is None else selected.batch.nbytes
        if size > read_bytes_target and group:
            chosen.append(_together(group))
            group = []
            size = 0 if selected.batch is None else selected.batch.nbytes
        group.append(selected)
    if group:
        chosen.append(_together(group))
    return chosen


def restrict(raw: Selection, low: int, high: int, content: ContentFilter, project: bool) -> Selection:
    """Return the messages `[low, high)` of `raw` that pass `content`, projected if `project`."""
    batch = raw.batch
    assert batch is not None
    end = raw.position(high)
    whole = high == batch.count
    last_timestamp = raw.last_timestamp if whole else int(batch.timestamps[high - 1])
    indices = content.matching_rows(batch, np.arange(low, high))
    if not len(indices):
        return Selection(None, None, end, last_timestamp)
    chosen = select(batch, indices)
    if project:
        chosen = content.project(chosen)
    return Selection(chosen, raw.positions_of(indices), end, last_timestamp)


def _select(part: LogPart, interest: Interest) -> Selection:
    batch, end = part.batch, part.end_position
    last_timestamp = batch.run(batch.run_count - 1).timestamp
    own, mask = _of_topics(batch, interest)
    if own is None:
        return Selection(None, None, end, last_timestamp)
    if own is batch:
        return Selection(own, part.positions, end, last_timestamp)
    assert mask is not None
    return Selection(own, part.positions_of(mask.nonzero()[0]), end, last_timestamp)


def _of_topics(batch: MessageBatch, interest: Interest) -> tuple[MessageBatch | None, Bools | None]:
    """Return the messages on the topics of `interest`, and a mask unless all messages are selected."""
    if interest.topic_name is not None and (batch.topic_index is None and batch.kinds is None):
        return select_topic(batch, interest.topic_name), None
    mask = interest.mask(batch)
    if mask is None or not mask.any():
        return None, None
    return select(batch, mask), mask


def _together(group: list[Selection]) -> Selection:
    if len(group) == 1:
        return group[0]
    full = [one for one in group if one.batch is not None]
    last = group[-1]
    if not full or full[0] is last:
        return last
    batch = merge([one.batch for one in full if one.batch is not None])
    first = full[0].position(0)
    if last.end - first == batch.count:
        return Selection(batch, None, last.end, last.last_timestamp)
    positions = [one.positions_of(np.arange(one.count)) for one in full]
    return Selection(batch, np.concatenate(positions), last.end, last.last_timestamp)
