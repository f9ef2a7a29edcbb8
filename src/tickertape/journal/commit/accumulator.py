"""Commit accumulator: collects accepted batches for the next commit.

Pure, part of the group commit. A batch is assigned to its commit when it is accepted.

Invariants:
- Batches keep their order.
- Nothing follows the last records of a commit in it.
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
        self._counts: deque[int] = deque()
        """Number of batches of each commit."""
        self.is_open = False
        """The last commit may get more batches. Callers must not change it."""
        self._total = self._messages = self._columns = self._index_bytes = 0
        """Of the open commit: bytes, messages, columns, and bytes per message of a topic index."""
        self._topics: tuple[str, ...] = ()
        """Topics of the first batch of the open commit."""

    def append(self, batch: MessageBatch, stamp: Stamp) -> None:
        """Add a batch to the open commit, or start another one if it does not fit."""
        if self.is_open and self.fits(batch):
            self._counts[-1] += 1
            self._columns |= batch.columns
            if batch.topics != self._topics:
                self._index_bytes = _TOPIC_INDEX_BYTES
            self._total += batch.nbytes
            self._messages += batch.count
        else:
            self.is_open, self._topics, self._index_bytes = True, batch.topics, 0
            self._total, self._messages, self._columns = batch.nbytes, batch.count, batch.columns
            self._counts.append(1)
        self.batches.append(_WaitingBatch(batch, stamp))
        self.bytes += batch.nbytes

    def fits(self, batch: MessageBatch, more_bytes: int = 0) -> bool:
        """Return whether a batch fits the open commit, with `more_bytes` of last records."""
        if not self.is_open:
            return False
        # A merged batch has a column if any part has it, so it may be larger than its parts.
        columns, count = self._columns | batch.columns, self._messages + batch.count
        extra = self._index_bytes if batch.topics == self._topics else _TOPIC_INDEX_BYTES
        if columns:
            extra += sum(n for bit, n in _COLUMN_BYTES.items() if columns & bit)
        parts = self._counts[-1]
        stamps = _ORDER_STAMP_BYTES * (parts + 1) if columns & ORDER_STAMPS else 0
        return (
            self._total + batch.nbytes + extra * count + stamps + more_bytes <= commit_bytes_max
            and count <= commit_messages_max
            and parts < commit_batches_max
        )

    @property
    def only_open(self) -> bool:
        """Whether the next commit may get more batches."""
        return self.is_open and len(self._counts) == 1

    def end(self, last: MessageBatch | None, stamp: Stamp | None) -> None:
        """End the open commit, with `last` at any size."""
        if last is not None and stamp is not None:
            self._counts[-1] += 1
            self.batches.append(_WaitingBatch(last, stamp))
            self.bytes += last.nbytes
        self.is_open = False

    def append_chain(self, parts: Sequence[tuple[MessageBatch, Stamp]]) -> None:
        """Append batches that become commits of their own: contiguous, in one segment."""
        rooms = [commit_bytes_of(batch) for batch, _ in parts]
        last = len(parts) - 1
        for number, (batch, stamp) in enumerate(parts):
            flags = FLAG_CONTINUES if number < last else FLAG_ENDS
            room = sum(rooms) if number == 0 else rooms[number]
            self.batches.append(_WaitingBatch(batch, stamp, flags if last else 0, room))
            self._counts.append(1)
            self.bytes += batch.nbytes
        self.is_open = False

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
        self._counts.clear()
        self.is_open = False
        self.bytes = 0

    def gather(self) -> NextCommit:
        """Merge the batches of the next commit. Its first one has any size."""
        count = self._counts.popleft()
        if not self._counts:
            self.is_open = False
        if count == 1:
            batch, stamp, flags, room = self.batches.popleft()
            merged = merge((batch,), (stamp,))
            return NextCommit(merged, batch.nbytes, flags, room or commit_bytes_of(merged))
        parts = [self.batches.popleft() for _ in range(count)]
        merged = merge([part.batch for part in parts], [part.stamp for part in parts])
        return NextCommit(merged, sum([part.batch.nbytes for part in parts]), 0, commit_bytes_of(merged))
