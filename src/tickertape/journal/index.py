"""Owns the index of one segment: from position, time, publisher and topic to the blocks worth reading.

A block is a run of whole commits of at least `index_block_bytes`. The index is advisory: it may name a block
too many, never one too few, and it is rebuilt from the commits when in doubt. Must never read a file or grow
above `index_bytes_max`: when rows get too many they are merged into coarser ones, then given up (None = read
everything).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Literal, TypeVar

import msgspec
import numpy as np

from tickertape.base.limits import index_block_bytes, index_bytes_max, segment_header_bytes
from tickertape.batch import MessageBatch

_KEY_BYTES = 200
"""What a publisher or a topic costs in memory beside its rows: an entry of a dictionary and an array."""
_ROW = 3
"""Integers of a publisher's row: group, lowest, highest sequence."""
_FEW_RUNS = 8


class _Stored(msgspec.Struct, array_like=True):
    """What a seal keeps of an index."""

    stride: int
    offsets: bytes
    positions: bytes
    times: bytes
    publishers: dict[int, bytes] | None
    topics: dict[str, bytes] | None


class SegmentIndex:
    """Index of one segment, grown commit by commit while it is active and stored in its seal.

    Attributes: `offsets`, `positions`, `times` of the blocks: where each begins in the file, the position of
    its first message, the log time before it (so that a message later than `times[i]` may stand in block i).
    `bytes_max` bounds what publishers and topics take in memory.
    """

    def __init__(self, *, bytes_max: int = index_bytes_max) -> None:
        self.offsets = array("Q")
        self.positions = array("Q")
        self.times = array("q")
        self._stride = 1
        self._bytes_max = bytes_max
        self._encoded = 0  # bound of what publishers and topics take in a seal
        self._publishers: dict[int, array[int]] | None = {}
        self._topics: dict[str, array[int]] | None = {}
        self._block_end = 0

    # -- building -------------------------------------------------------------------------------------

    def add(self, offset: int, end: int, first_position: int, time_before: int, batch: MessageBatch) -> None:
        """Take in a data commit that stands at `offset`..`end` of the file."""
        if not self.offsets or offset >= self.offsets[-1] + index_block_bytes:
            self.offsets.append(offset)
            self.positions.append(first_position)
            self.times.append(time_before)
        self._block_end = end
        group = (len(self.offsets) - 1) // self._stride
        if self._topics is not None:
            for topic in batch.topics:
                self._add_topic(topic, group)
        if self._publishers is not None:
            for publisher, low, high in publisher_spans(batch):
                self._add_publisher(publisher, group, low, high)
        if self._memory > self._bytes_max:
            self._coarsen()

    def _add_topic(self, topic: str, group: int) -> None:
        assert self._topics is not None
        groups = self._topics.get(topic)
        if groups is None:
            groups = self._topics[topic] = array("I")
            self._encoded += _topic_bytes(topic)
        if not groups or groups[-1] != group:
            groups.append(group)
            self._encoded += 4

    def _add_publisher(self, publisher: int, group: int, low: int, high: int) -> None:
        assert self._publishers is not None
        rows = self._publishers.get(publisher)
        if rows is None:
            rows = self._publishers[publisher] = array("Q")
            self._encoded += 16
        if rows and rows[-3] == group:
            rows[-1] = max(high, rows[-1])
        else:
            rows.extend((group, low, high))
            self._encoded += 8 * _ROW

    @property
    def _memory(self) -> int:
        return self._encoded + _KEY_BYTES * (len(self._topics or ()) + len(self._publishers or ()))

    def _coarsen(self) -> None:
        """Halve the resolution; when that is not enough, give the larger part up."""
        self._stride *= 2
        for topic, groups in (self._topics or {}).items():
            assert self._topics is not None
            self._topics[topic] = array("I", sorted({group // 2 for group in groups}))
        for publisher, rows in (self._publishers or {}).items():
            assert self._publishers is not None
            self._publishers[publisher] = _halved(rows)
        self._count_bytes()
        if self._memory > self._bytes_max // 2:
            if self._topics_bytes() > self._publishers_bytes():
                self._topics = None
            else:
                self._publishers = None
            self._count_bytes()

    def _count_bytes(self) -> None:
        self._encoded = self._topics_bytes() + self._publishers_bytes()

    def _topics_bytes(self) -> int:
        return sum(_topic_bytes(topic) + 4 * len(groups) for topic, groups in (self._topics or {}).items())

    def _publishers_bytes(self) -> int:
        return sum(16 + 8 * len(rows) for rows in (self._publishers or {}).values())

    # -- looking up -----------------------------------------------------------------------------------

    @property
    def encoded_bytes_max(self) -> int:
        """What `encode` gives is not larger."""
        return 64 + 24 * self.blocks + self._encoded

    @staticmethod
    def growth_bytes_max(batch: MessageBatch) -> int:
        """By how much adding `batch` may raise `encoded_bytes_max`."""
        topics = sum([_topic_bytes(topic) + 4 for topic in batch.topics])
        return 24 + topics + (16 + 8 * _ROW) * batch.run_count

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.offsets)

    def block_bounds(self, block: int) -> tuple[int, int]:
        """First byte of a block and the first byte after it."""
        end = self.offsets[block + 1] if block + 1 < len(self.offsets) else self._block_end
        return self.offsets[block], end

    def position_bounds(self, block: int) -> tuple[int, int | None]:
        """Position of the first message of a block and of the block after it; None for the last."""
        after = self.positions[block + 1] if block + 1 < len(self.positions) else None
        return self.positions[block], after

    def block_of_position(self, position: int) -> int:
        """The block that holds `position` (which lies in this segment)."""
        return max(bisect_right(self.positions, position) - 1, 0)

    def block_of_offset(self, offset: int) -> int:
        """The block in which the byte `offset` lies."""
        return max(bisect_right(self.offsets, offset) - 1, 0)

    def block_of_time(self, after: int) -> int:
        """The first block that may hold a message later than `after`, or as late and later (see `times`)."""
        return max(bisect_left(self.times, after) - 1, 0)

    def blocks_of_publisher(self, publisher: int, sequence: int) -> Iterator[int]:
        """Blocks that may hold this message, in order."""
        if self._publishers is None:
            yield from range(self.blocks)
            return
        rows = self._publishers.get(publisher, ())
        # Sequences of a publisher rise, and so do the highest ones of its rows.
        at = bisect_left(range(len(rows) // _ROW), sequence, key=lambda row: rows[_ROW * row + 2])
        for row in range(_ROW * at, len(rows), _ROW):
            if rows[row + 1] > sequence:
                return
            yield from self._members(rows[row])

    def next_block_with(self, topic: str, block: int) -> int | None:
        """The first block at or after `block` that may hold `topic`; None when no more of this segment
        does."""
        if block >= self.blocks:
            return None
        if self._topics is None:
            return block
        groups = self._topics.get(topic)
        if groups is None:
            return None
        at = bisect_left(groups, block // self._stride)
        return None if at == len(groups) else max(block, groups[at] * self._stride)

    def highest_sequences(self) -> dict[int, int] | None:
        """Highest sequence of each publisher in this segment; None when that was given up and must be
        read."""
        if self._publishers is None:
            return None
        return {publisher: rows[-1] for publisher, rows in self._publishers.items()}

    def _members(self, group: int) -> range:
        return range(group * self._stride, min((group + 1) * self._stride, self.blocks))

    # -- storing --------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The index as the body of a seal keeps it."""
        return msgspec.msgpack.encode(
            _Stored(
                stride=self._stride,
                offsets=self.offsets.tobytes(),
                positions=self.positions.tobytes(),
                times=self.times.tobytes(),
                publishers=_to_bytes(self._publishers),
                topics=_to_bytes(self._topics),
            )
        )

    @staticmethod
    def decode(data: bytes | memoryview, block_end: int) -> SegmentIndex:
        """The stored index of a segment whose last data or mark commit ends at `block_end`.

        Raises `ValueError` when `data` is no index."""
        stored = msgspec.msgpack.decode(data, type=_Stored)
        index = SegmentIndex()
        index._stride = stored.stride
        index.offsets.frombytes(stored.offsets)
        index.positions.frombytes(stored.positions)
        index.times.frombytes(stored.times)
        index._publishers = _from_bytes(stored.publishers, "Q")
        index._topics = _from_bytes(stored.topics, "I")
        index._block_end = block_end
        index._count_bytes()
        index._check()
        return index

    def _check(self) -> None:
        """Lookups must end and stay inside the segment whatever a seal says."""
        offsets = self.offsets.tolist()
        if not len(offsets) == len(self.positions) == len(self.times):
            raise ValueError("index columns differ in length")
        if offsets != sorted(set(offsets)) or (offsets and not segment_header_bytes <= offsets[0]):
            raise ValueError("index blocks are out of order")
        if offsets and offsets[-1] >= self._block_end:
            raise ValueError("index blocks lie beyond the data")
        if self._stride < 1:
            raise ValueError("index has no resolution")
        if any(not rows or len(rows) % _ROW for rows in (self._publishers or {}).values()):
            raise ValueError("index rows of a publisher are incomplete")


def _topic_bytes(topic: str) -> int:
    """Bound of a topic's name and the frame of its rows, encoded."""
    return 10 + 4 * len(topic)


def _halved(rows: array[int]) -> array[int]:
    """A publisher's rows at half the resolution."""
    merged = array("Q")
    for row in range(0, len(rows), _ROW):
        group, low, high = rows[row] // 2, rows[row + 1], rows[row + 2]
        if merged and merged[-3] == group:
            merged[-1] = max(high, merged[-1])
        else:
            merged.extend((group, low, high))
    return merged


_Key = TypeVar("_Key", int, str)


def _to_bytes(rows: dict[_Key, array[int]] | None) -> dict[_Key, bytes] | None:
    return None if rows is None else {key: table.tobytes() for key, table in rows.items()}


def _from_bytes(stored: dict[_Key, bytes] | None, kind: Literal["Q", "I"]) -> dict[_Key, array[int]] | None:
    return None if stored is None else {key: array(kind, table) for key, table in stored.items()}


def publisher_spans(batch: MessageBatch) -> Iterator[tuple[int, int, int]]:
    """(publisher, lowest, highest sequence) of each publisher in a batch, each publisher once."""
    if batch.run_count == 1:
        run = batch.run(0)
        last = int(batch.sequences[-1]) if batch.has_sequences else run.first_sequence + run.message_count - 1
        yield run.publisher, run.first_sequence, last
        return
    runs = batch.runs
    firsts = runs["first_sequence"]
    ends = np.cumsum(runs["count"])
    lasts = batch.sequences[ends - 1]
    if batch.run_count <= _FEW_RUNS:
        spans: dict[int, tuple[int, int]] = {}
        for publisher, low, high in zip(
            runs["publisher"].tolist(), firsts.tolist(), lasts.tolist(), strict=True
        ):
            known = spans.get(publisher)
            spans[publisher] = (low, high) if known is None else (min(known[0], low), max(known[1], high))
        for publisher, (low, high) in spans.items():
            yield publisher, low, high
        return
    order = np.argsort(runs["publisher"], kind="stable")
    publishers = runs["publisher"][order]
    starts = np.flatnonzero(np.concatenate(([True], publishers[1:] != publishers[:-1])))
    lows = np.minimum.reduceat(firsts[order], starts)
    highs = np.maximum.reduceat(lasts[order], starts)
    yield from zip(publishers[starts].tolist(), lows.tolist(), highs.tolist(), strict=True)
