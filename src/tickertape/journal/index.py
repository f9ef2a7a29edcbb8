"""Owns the index of one segment: from position, time, publisher and topic to the blocks worth reading.

A block is a run of whole commits of at least `index_block_bytes`. The index is advisory: it may name a block too
many, never one too few, and it is rebuilt from the commits when in doubt. Must never read a file or grow above
`index_bytes_max`: when rows get too many they are merged into coarser ones, then given up (None = read everything).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import msgspec
import numpy as np

from tickertape.base.limits import index_block_bytes, index_bytes_max
from tickertape.batch import MessageBatch

_ROW_BYTES = 160  # a row of four integers in a list, as Python keeps it while the segment grows
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

    Attributes: `offsets`, `positions`, `times` of the blocks: where each begins in the file, the position of its first
    message, the log time before it (so that a message later than `times[i]` may stand in block i).
    """

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.positions = array("Q")
        self.times = array("q")
        self._stride = 1
        self._rows = 0
        self._row_limit = index_bytes_max // _ROW_BYTES
        self._publishers: dict[int, list[list[int]]] | None = {}
        self._topics: dict[str, array[int]] | None = {}
        self._name_bytes = 0
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
        if self._rows > self._row_limit:
            self._coarsen()

    def _add_topic(self, topic: str, group: int) -> None:
        assert self._topics is not None
        groups = self._topics.get(topic)
        if groups is None:
            groups = self._topics[topic] = array("I")
            self._rows += 2
            self._name_bytes += 4 * len(topic)
        if not groups or groups[-1] != group:
            groups.append(group)
            self._rows += 1

    def _add_publisher(self, publisher: int, group: int, low: int, high: int) -> None:
        assert self._publishers is not None
        rows = self._publishers.get(publisher)
        if rows is None:
            rows = self._publishers[publisher] = []
        if rows and rows[-1][0] == group:
            rows[-1][2] = max(high, rows[-1][2])
        else:
            rows.append([group, low, high])
            self._rows += 1

    def _coarsen(self) -> None:
        """Halve the resolution; when that is not enough, give the larger part up."""
        self._stride *= 2
        self._rows = 0
        for groups in (self._topics or {}).values():
            halved = sorted({g // 2 for g in groups})
            groups[:] = array("I", halved)
            self._rows += 2 + len(halved)
        for rows in (self._publishers or {}).values():
            merged: list[list[int]] = []
            for group, low, high in rows:
                if merged and merged[-1][0] == group // 2:
                    merged[-1][2] = max(high, merged[-1][2])
                else:
                    merged.append([group // 2, low, high])
            rows[:] = merged
            self._rows += len(merged)
        if self._rows > self._row_limit // 2:
            self._give_up_larger()

    def _give_up_larger(self) -> None:
        topics = 2 * len(self._topics or {})
        if topics > len(self._publishers or {}):
            self._topics = None
        else:
            self._publishers = None
        self._rows = sum(2 + len(g) for g in (self._topics or {}).values())
        self._rows += sum(len(r) for r in (self._publishers or {}).values())

    # -- looking up -----------------------------------------------------------------------------------

    @property
    def encoded_bytes_max(self) -> int:
        """What `encode` gives is not larger."""
        return 256 + 24 * self.blocks + 48 * self._rows + self._name_bytes

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.offsets)

    def block_bounds(self, block: int) -> tuple[int, int]:
        """First byte of a block and the first byte after it."""
        end = self.offsets[block + 1] if block + 1 < len(self.offsets) else self._block_end
        return self.offsets[block], end

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
        for group, low, high in self._publishers.get(publisher, ()):
            if low <= sequence <= high:
                yield from self._members(group)

    def next_block_with(self, topic: str, block: int) -> int | None:
        """The first block at or after `block` that may hold `topic`; None when no more of this segment does."""
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
        """Highest sequence of each publisher in this segment; None when that was given up and must be read."""
        if self._publishers is None:
            return None
        return {publisher: rows[-1][2] for publisher, rows in self._publishers.items()}

    def _members(self, group: int) -> range:
        return range(group * self._stride, min((group + 1) * self._stride, self.blocks))

    # -- storing --------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The index as the body of a seal keeps it."""
        publishers = self._publishers
        return msgspec.msgpack.encode(
            _Stored(
                stride=self._stride,
                offsets=self.offsets.tobytes(),
                positions=self.positions.tobytes(),
                times=self.times.tobytes(),
                publishers=None
                if publishers is None
                else {p: np.array(rows, dtype="<u8").tobytes() for p, rows in publishers.items()},
                topics=None if self._topics is None else {t: g.tobytes() for t, g in self._topics.items()},
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
        index._publishers = None
        if stored.publishers is not None:
            index._publishers = {
                p: np.frombuffer(rows, dtype="<u8").reshape(-1, 3).tolist()
                for p, rows in stored.publishers.items()
            }
        index._topics = None
        if stored.topics is not None:
            index._topics = {}
            for topic, groups in stored.topics.items():
                index._topics[topic] = array("I")
                index._topics[topic].frombytes(groups)
        if not len(index.offsets) == len(index.positions) == len(index.times):
            raise ValueError("index columns differ in length")
        index._block_end = block_end
        return index


def publisher_spans(batch: MessageBatch) -> Iterator[tuple[int, int, int]]:
    """(publisher, lowest, highest sequence) of each publisher in a batch, each publisher once."""
    runs = batch.runs
    firsts = runs["first_sequence"]
    if batch.run_count == 1:
        yield int(runs["publisher"][0]), int(firsts[0]), _last_sequence(batch, 0, batch.count)
        return
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


def _last_sequence(batch: MessageBatch, start: int, stop: int) -> int:
    return int(batch.sequences[stop - 1]) if stop > start else 0
