"""Commit accumulator: collects accepted batches for the next commit.

Pure, part of the group commit.

Invariants:
- Batches keep their order.
- The commits of a chain are contiguous and are never merged, so a chain is in the log completely or not at
  all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from tickertape.batch import MessageBatch, Stamp, merge
from tickertape.batch.format import (
    CORRELATION_IDS,
    EXPIRATIONS,
    HEADERS,
    KEYS,
    KINDS,
    MESSAGE_FLAGS,
    ORDER_STAMPS,
    SEQUENCES,
)
from tickertape.journal.commit.active_segment import commit_bytes_of, segment_bytes_of
from tickertape.journal.format.segment import FLAG_CONTINUES, FLAG_ENDS
from tickertape.journal.limits import commit_batches_max, commit_bytes_max, commit_messages_max

_COLUMN_BYTES: Final = {
    SEQUENCES: 8,
    EXPIRATIONS: 8,
    CORRELATION_IDS: 4,
    KEYS: 4,
    KINDS: 1,
    MESSAGE_FLAGS: 1,
    HEADERS: 4,
}
"""Bytes per message of each column."""
_ORDER_STAMP_BYTES: Final = 8
"""Bytes per run of the order stamps."""
_TOPIC_INDEX_BYTES: Final = 4
_MERGED_BYTES_MAX: Final = _TOPIC_INDEX_BYTES + sum(_COLUMN_BYTES.values())
"""The most bytes per message that merging adds to a batch."""


def encoded_size(batch: MessageBatch) -> int:
    """Return the most space that `batch` takes in a segment, alone or merged with others."""
    # A merged batch has a column if any part has it, so it may be larger than its parts.
    return commit_bytes_of(batch) + _MERGED_BYTES_MAX * batch.count + _ORDER_STAMP_BYTES * batch.run_count


class NextCommit(NamedTuple):
    """The batch of the next commit."""

    batch: MessageBatch
    pending_bytes: int
    """Bytes of its parts, as counted in `CommitAccumulator.bytes`."""
    flags: int = 0
    """Commit flags: whether its chain continues, and whether the commit ends one."""
    room: int = 0
    """Space that the segment must have left. The first commit of a chain needs space for the whole chain."""

    @property
    def segment_bytes(self) -> int:
        """Size of the smallest segment that fits it."""
        return segment_bytes_of(self.room)


class _WaitingBatch(NamedTuple):
    batch: MessageBatch
    stamp: Stamp
    flags: int = 0
    room: int = 0


class CommitAccumulator:
    """Batches of one run each, in acceptance order."""

    def __init__(self) -> None:
        self.bytes = 0
        """Encoded bytes of all batches, including the next commit until it is written."""
        self.batches: deque[_WaitingBatch] = deque()
        """The batches, without the next commit. Callers must not change it."""

    def append(self, batch: MessageBatch, stamp: Stamp) -> None:
        self.batches.append(_WaitingBatch(batch, stamp))
        self.bytes += batch.nbytes

    def append_chain(self, parts: Sequence[tuple[MessageBatch, Stamp]]) -> None:
        """Append batches that become commits of their own: contiguous, in one segment."""
        rooms = [commit_bytes_of(batch) for batch, _ in parts]
        last = len(parts) - 1
        for number, (batch, stamp) in enumerate(parts):
            flags = FLAG_CONTINUES if number < last else FLAG_ENDS
            room = sum(rooms) if number == 0 else rooms[number]
            self.batches.append(_WaitingBatch(batch, stamp, flags if last else 0, room))
            self.bytes += batch.nbytes

    def room(self) -> int:
        """Return the most space that all waiting batches take in a segment."""
        # The first batch of a chain carries the space of the whole chain: later ones count twice, which is
        # safe.
        return sum(waiting.room or encoded_size(waiting.batch) for waiting in self.batches)

    def written(self, commit: NextCommit) -> None:
        """Record that a gathered commit is on its way to the disk."""
        self.bytes -= commit.pending_bytes

    def clear(self) -> None:
        """Drop all waiting batches."""
        self.batches.clear()
        self.bytes = 0

    def gather(self) -> NextCommit:
        """Merge as many waiting batches as a commit may hold. The first one is included at any size."""
        batch, stamp, flags, room = self.batches[0]
        if len(self.batches) == 1 or room:
            self.batches.popleft()
            merged = merge((batch,), (stamp,))
            return NextCommit(merged, batch.nbytes, flags, room or commit_bytes_of(merged))
        parts: list[_WaitingBatch] = []
        total = messages = columns = 0
        topics, index_bytes = batch.topics, 0
        while self.batches:
            waiting = self.batches[0]
            batch = waiting.batch
            # A merged batch has a column if any part has it, so it may be larger than its parts.
            columns |= batch.columns
            if batch.topics != topics:
                index_bytes = _TOPIC_INDEX_BYTES
            extra = index_bytes + (
                sum(n for bit, n in _COLUMN_BYTES.items() if columns & bit) if columns else 0
            )
            count = messages + batch.count
            stamps = _ORDER_STAMP_BYTES * (len(parts) + 1) if columns & ORDER_STAMPS else 0
            if parts and (
                waiting.room
                or total + batch.nbytes + extra * count + stamps > commit_bytes_max
                or count > commit_messages_max
                or len(parts) >= commit_batches_max
            ):
                break
            parts.append(self.batches.popleft())
            total, messages = total + batch.nbytes, count
        merged = merge([part.batch for part in parts], [part.stamp for part in parts])
        return NextCommit(merged, total, 0, commit_bytes_of(merged))
