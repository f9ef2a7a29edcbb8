"""Segment index: finds the blocks to read by position, time, publisher and topic.

A block is a run of whole commits of at least `index_block_bytes`. The in-memory index of a sealed segment may
be coarser than the one in its seal (`index_cache.py`).

Invariants:
- The index may name additional blocks, but never misses one. If in doubt it is rebuilt from the commits.
- It stays within `index_bytes_max`: publishers and topics get half each, and become coarser above it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.base.limits import KIB
from tickertape.batch import RUN_LATE, MessageBatch
from tickertape.batch.format import Runs
from tickertape.journal.index.publisher_index import (
    PublisherIndex,
    Rows,
    StoredPublishers,
    publisher_growth_bytes_max,
)
from tickertape.journal.index.topic_index import StoredTopics, TopicTable, topic_growth_bytes_max
from tickertape.journal.limits import (
    index_block_bytes,
    index_bytes_max,
    index_zone_bytes,
    read_bytes_target,
    segment_header_bytes,
)

_BLOCK_BYTES = 24
_OBJECT_BYTES = 2 * KIB
"""Memory of an index besides its columns and tables."""
_FRAME_BYTES = 128
"""Maximum bytes that MessagePack adds to the columns and tables of an index."""
_FEW_RUNS = 8
_LATE = np.uint32(RUN_LATE)


class _StoredIndex(msgspec.Struct, array_like=True):
    """An index as stored in a seal."""

    offsets: bytes
    positions: bytes
    times: bytes
    publishers: StoredPublishers
    topics: StoredTopics
    late: bytes | None = None
    """Rows of late runs: publisher, zone, lowest and highest sequence, four u64 each."""


class DataCommits(NamedTuple):
    """Data commits as columns of the same length, without their publishers."""

    offsets: list[int]
    positions: list[int]
    times_before: list[int]
    topics: list[tuple[str, ...]]
    end: int
    """Offset after the last commit."""


class Spans(NamedTuple):
    """Sequences of publishers in several commits, as columns of the same length."""

    commits: npt.NDArray[np.int64]
    """Number of the commit within the list."""
    publishers: npt.NDArray[np.uint64]
    lows: npt.NDArray[np.uint64]
    highs: npt.NDArray[np.uint64]
    late: npt.NDArray[np.bool_]
    """Whether they are sequences of late runs."""


class BlockAddress(NamedTuple):
    """Neighbouring blocks, described by facts that remain valid when the index becomes coarser."""

    offset: int
    end: int
    """Offset of the first byte after them."""
    first_position: int
    next_position: int | None
    """Position after their last message. None if they are the last blocks of the segment."""


Span = tuple[int, int, int]
"""Publisher, lowest and highest sequence."""


class SegmentIndex:
    """Index of one segment, built commit by commit while active and stored in its seal.

    Attributes:
        offsets: Offset of each block in the file.
        positions: Position of the first message of each block.
        times: Log time before each block: a message later than `times[i]` may be in block i.

    `bytes_max` limits the memory of publishers and topics."""

    def __init__(self, *, bytes_max: int = index_bytes_max) -> None:
        self.offsets = array("Q")
        self.positions = array("Q")
        self.times = array("q")
        self._publishers = PublisherIndex(bytes_max // 2)
        self._topics = TopicTable(bytes_max // 2)
        self._block_end = 0
        self._merged = False
        """Blocks were merged: a merged block may start before the zone in which one of its parts started."""

    # -- building -------------------------------------------------------------------------------------

    def add(self, offset: int, end: int, first_position: int, time_before: int, batch: MessageBatch) -> bool:
        """Add a data commit at `offset`..`end` of the file. Return whether `encoded_bytes_max` changed."""
        begins = not self.offsets or offset >= self.offsets[-1] + index_block_bytes
        if begins:
            self.offsets.append(offset)
            self.positions.append(first_position)
            self.times.append(time_before)
        self._block_end = end
        block = len(self.offsets) - 1
        topics = self._topics.add(block, batch.topics)
        spans = publisher_spans(batch)
        publishers = self._publishers.add(self.offsets[-1], spans)
        if batch.run_count > 1 or not spans:
            publishers |= self._publishers.add_late(self.offsets[-1], late_spans(batch))
        return begins or topics or publishers

    def add_many(self, commits: DataCommits, spans: Spans) -> list[Span]:
        """Add data commits, with the same result as `add`. Return their spans without late runs, merged per
        publisher and zone."""
        offsets, count = commits.offsets, len(commits.offsets)
        blocks = np.empty(count, np.int64)
        at = 0
        while at < count:
            if not self.offsets or offsets[at] >= self.offsets[-1] + index_block_bytes:
                self.offsets.append(offsets[at])
                self.positions.append(commits.positions[at])
                self.times.append(commits.times_before[at])
            stop = bisect_left(offsets, self.offsets[-1] + index_block_bytes, at)
            self._topics.add(self.blocks - 1, set().union(*commits.topics[at:stop]))
            blocks[at:stop] = self.blocks - 1
            at = stop
        self._block_end = commits.end
        return self._add_spans(blocks, spans)

    def _add_spans(self, blocks: npt.NDArray[np.int64], spans: Spans) -> list[Span]:
        if spans.late.any():
            self._add_late(blocks, Spans._make(column[spans.late] for column in spans))
            spans = Spans._make(column[~spans.late] for column in spans)
        if not len(spans.commits):
            return []
        block_offsets = np.array(self.offsets, np.uint64)[blocks]
        zones = (block_offsets // np.uint64(index_zone_bytes))[spans.commits]
        order = np.lexsort((spans.publishers, zones))
        zones, publishers = zones[order], spans.publishers[order]
        fresh = (zones[1:] != zones[:-1]) | (publishers[1:] != publishers[:-1])
        starts = np.flatnonzero(np.concatenate(([True], fresh)))
        lows = np.minimum.reduceat(spans.lows[order], starts).tolist()
        highs = np.maximum.reduceat(spans.highs[order], starts).tolist()
        merged = list(zip(publishers[starts].tolist(), lows, highs, strict=True))
        zone_of = zones[starts]
        edges = np.flatnonzero(np.concatenate(([True], zone_of[1:] != zone_of[:-1], [True]))).tolist()
        for begin, end in pairwise(edges):
            self._publishers.add(int(zone_of[begin]) * index_zone_bytes, merged[begin:end])
        return merged

    def _add_late(self, blocks: npt.NDArray[np.int64], spans: Spans) -> None:
        columns = (blocks[spans.commits], spans.publishers, spans.lows, spans.highs)
        for block, *span in zip(*(column.tolist() for column in columns), strict=True):
            self._publishers.add_late(self.offsets[block], [(span[0], span[1], span[2])])

    # -- looking up -----------------------------------------------------------------------------------

    @property
    def encoded_bytes_max(self) -> int:
        """Upper bound of the size of `encode`."""
        return (
            _FRAME_BYTES
            + _BLOCK_BYTES * self.blocks
            + self._topics.nbytes
            + self._publishers.stored_bytes_max
        )

    @staticmethod
    def growth_bytes_max(batch: MessageBatch) -> int:
        """Return the most by which adding `batch` raises `encoded_bytes_max`."""
        return (
            _BLOCK_BYTES
            + topic_growth_bytes_max * len(batch.topics)
            + publisher_growth_bytes_max * batch.run_count
        )

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.offsets)

    def block_bounds(self, block: int) -> tuple[int, int]:
        """Return the offset of the first byte of a block and of the first byte after it."""
        end = self.offsets[block + 1] if block + 1 < len(self.offsets) else self._block_end
        return self.offsets[block], end

    def position_bounds(self, block: int) -> tuple[int, int | None]:
        """Return the positions of the first message of a block and of the next block (None for the last)."""
        after = self.positions[block + 1] if block + 1 < len(self.positions) else None
        return self.positions[block], after

    def block_of_position(self, position: int) -> int:
        """Return the block that holds `position`, which must be in this segment."""
        return max(bisect_right(self.positions, position) - 1, 0)

    def block_of_offset(self, offset: int) -> int:
        """Return the block that contains the byte `offset`."""
        return max(bisect_right(self.offsets, offset) - 1, 0)

    def block_of_time(self, after: int) -> int:
        """Return the first block that may hold a message with a timestamp of at least `after` (see
        `times`)."""
        return max(bisect_left(self.times, after) - 1, 0)

    def places_of_publisher(self, publisher: int, sequence: int) -> list[BlockAddress]:
        """Return the places that may hold this message, in order (see `places_between`)."""
        return self.places_between(publisher, sequence, sequence)

    def may_have_late(self, publisher: int, low: int, high: int) -> bool:
        """Return whether late runs may have a message of a publisher from `low` to `high`."""
        return self._publishers.may_have_late(publisher, low, high)

    def places_between(self, publisher: int, low: int, high: int) -> list[BlockAddress]:
        """Return the places that may hold a message of a publisher from `low` to `high`, in order.

        Neighbouring blocks are combined, up to about `read_bytes_target` per place."""
        places = []
        stop = 0
        for begin, end in self._publishers.stretches(publisher, low, high, self._block_end):
            block = self.block_of_offset(begin) if self._merged else bisect_left(self.offsets, begin)
            block, stop = max(block, stop), bisect_left(self.offsets, end)
            while block < stop:
                reach = bisect_left(self.offsets, self.offsets[block] + read_bytes_target, block + 1, stop)
                after, next_position = self.block_bounds(reach - 1)[1], self.position_bounds(reach - 1)[1]
                places.append(BlockAddress(self.offsets[block], after, self.positions[block], next_position))
                block = reach
        return places

    def next_block_with(self, topic: str, block: int) -> int | None:
        """Return the first block at or after `block` that may hold `topic`. None if no block of this segment
        does."""
        found = self._topics.next_with(topic, block)
        return found if found is not None and found < self.blocks else None

    def previous_block_with(self, topic: str, block: int) -> int | None:
        """Return the last block at or before `block` that may hold `topic`. None if no block of this segment
        does."""
        return self._topics.previous_with(topic, min(block, self.blocks - 1))

    @property
    def knows_topics(self) -> bool:
        """Whether blocks may lack a topic. Otherwise each one may hold every topic."""
        return not self._topics.disabled

    def reach_with(self, topic: str, offset: int, bytes_max: int) -> int:
        """Return the end of the consecutive blocks from `offset` on that may hold `topic`, about `bytes_max`
        at most."""
        block = self.block_of_offset(offset)
        stop = bisect_left(self.offsets, offset + bytes_max, block + 1)
        return self.block_bounds(block + self._topics.run_with(topic, block + 1, stop - block - 1))[1]

    def highest_sequences(self) -> dict[int, int] | None:
        """Return the highest sequence of each publisher. None if it is unknown and the log must be read."""
        return self._publishers.highest()

    def highest_columns(self) -> tuple[Rows, Rows] | None:
        """Return the same as two columns, for a segment that no longer grows."""
        return self._publishers.highest_columns()

    @property
    def knows_publishers(self) -> bool:
        """Whether the index knows which publishers have messages in this segment."""
        return self._publishers.known

    def publisher_bounds(self, publisher: int) -> tuple[int, int] | None:
        """Return the lowest and highest sequence of a publisher in this segment.

        None without one or (see `knows_publishers`) if unknown."""
        return self._publishers.bounds(publisher)

    # -- reducing memory ------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Memory of the index."""
        return _OBJECT_BYTES + _BLOCK_BYTES * self.blocks + self._topics.nbytes + self._publishers.nbytes

    def settle(self) -> None:
        """Convert to the form with the least memory. Nothing may be added afterwards."""
        self._topics.settle()
        self._publishers.settle()

    def reduce(self) -> bool:
        """Reduce one of the three parts to about half. False if no further reduction is possible.

        Lookups may name additional blocks afterwards, but never miss one. The index must not be extended or
        stored afterwards."""
        # Longer blocks cost readers little, and longer zones only slow bookmark lookups. Topics skip most
        # reads.
        blocks = 4 * _BLOCK_BYTES * self.blocks if self.blocks > 1 else 0
        publishers, topics = 2 * self._publishers.nbytes, self._topics.nbytes
        most = max(blocks, publishers, topics)
        if not most:
            return False
        if blocks == most:
            self._merge_blocks()
        elif publishers == most:
            self._publishers.reduce(self._block_end)
        else:
            self._topics.reduce(self.blocks)
        return True

    def _merge_blocks(self) -> None:
        """Merge each two neighbouring blocks into one."""
        self._merged = True
        for column in (self.offsets, self.positions, self.times):
            column[:] = column[::2]
        self._topics.merge_blocks()

    # -- storing --------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the index as stored in the body of a seal. It must not have been reduced."""
        assert not self._merged
        return msgspec.msgpack.encode(
            _StoredIndex(
                offsets=self.offsets.tobytes(),
                positions=self.positions.tobytes(),
                times=self.times.tobytes(),
                publishers=self._publishers.stored(),
                topics=self._topics.stored(),
                late=self._publishers.stored_late(),
            )
        )

    @staticmethod
    def decode(data: bytes | memoryview, block_end: int) -> SegmentIndex:
        """Decode the stored index of a segment whose last data or mark commit ends at `block_end`.

        Raises `ValueError` for invalid data."""
        try:
            stored = msgspec.msgpack.decode(data, type=_StoredIndex)
        except RecursionError as error:
            raise ValueError(str(error)) from None
        index = SegmentIndex()
        index.offsets.frombytes(stored.offsets)
        index.positions.frombytes(stored.positions)
        index.times.frombytes(stored.times)
        index._publishers = PublisherIndex.of(stored.publishers, index_bytes_max // 2, stored.late)
        index._topics = TopicTable.of(stored.topics, index_bytes_max // 2)
        index._block_end = block_end
        index._check()
        return index

    def _check(self) -> None:
        """Check that lookups terminate and stay inside the segment, for any stored contents."""
        offsets = np.frombuffer(self.offsets, np.uint64)
        if not len(offsets) == len(self.positions) == len(self.times):
            raise ValueError("index columns differ in length")
        if (offsets[1:] <= offsets[:-1]).any() or (
            len(offsets) and not segment_header_bytes <= int(offsets[0])
        ):
            raise ValueError("index blocks are out of order")
        if len(offsets) and int(offsets[-1]) >= self._block_end:
            raise ValueError("index blocks lie beyond the data")


def publisher_spans(batch: MessageBatch) -> Sequence[Span]:
    """Return (publisher, lowest, highest sequence) of a batch without late runs, each publisher once."""
    if batch.run_count == 1:
        publisher, first, _, count, _, flags, _ = batch.first_run
        if flags & RUN_LATE:
            return ()
        return ((publisher, first, int(batch.sequences[-1]) if batch.has_sequences else first + count - 1),)
    runs = batch.runs
    lasts = batch.sequences[np.cumsum(runs["count"]) - 1]
    late = runs["flags"] & _LATE
    if late.any():
        runs, lasts = runs[late == 0], lasts[late == 0]
    return _spans_of(runs, lasts)


def late_spans(batch: MessageBatch) -> Sequence[Span]:
    """Return (publisher, lowest, highest sequence) of the late runs of a batch, each publisher once."""
    if batch.run_count == 1:
        publisher, first, _, count, _, flags, _ = batch.first_run
        if not flags & RUN_LATE:
            return ()
        return ((publisher, first, int(batch.sequences[-1]) if batch.has_sequences else first + count - 1),)
    late = (batch.runs["flags"] & _LATE) != 0
    if not late.any():
        return ()
    lasts = batch.sequences[np.cumsum(batch.runs["count"]) - 1]
    return _spans_of(batch.runs[late], lasts[late])


def _spans_of(runs: Runs, lasts: npt.NDArray[np.uint64]) -> Sequence[Span]:
    """Return the spans of runs whose last sequences are `lasts`, each publisher once."""
    if not len(runs):
        return ()
    firsts = runs["first_sequence"]
    if len(runs) <= _FEW_RUNS:
        spans: dict[int, tuple[int, int]] = {}
        for publisher, low, high in zip(
            runs["publisher"].tolist(), firsts.tolist(), lasts.tolist(), strict=True
        ):
            known = spans.get(publisher)
            spans[publisher] = (low, high) if known is None else (min(known[0], low), max(known[1], high))
        return [(publisher, low, high) for publisher, (low, high) in spans.items()]
    order = np.argsort(runs["publisher"], kind="stable")
    publishers = runs["publisher"][order]
    starts = np.flatnonzero(np.concatenate(([True], publishers[1:] != publishers[:-1])))
    lows = np.minimum.reduceat(firsts[order], starts)
    highs = np.maximum.reduceat(lasts[order], starts)
    return list(zip(publishers[starts].tolist(), lows.tolist(), highs.tolist(), strict=True))
