"""Topic index: maps topics to the blocks of a segment that may hold them.

It takes two bytes per topic and block. Topics are identified by a 32-bit hash, and groups of `stride` blocks
by their number. Both may name additional blocks, but never miss one. Above the memory limit groups become
larger. If that is not enough, the index is disabled, and every block may hold every topic.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from tickertape.base.checksum import crc32c

Keys = npt.NDArray[np.uint64]
Groups = npt.NDArray[np.uint16]
Int64s = npt.NDArray[np.int64]

_GROUP_BITS: Final = 16
_GROUPS_MAX: Final = 1 << _GROUP_BITS
_U2: Final = np.dtype("<u2")
_U4: Final = np.dtype("<u4")
_U8: Final = np.dtype("<u8")
I8: Final = np.dtype("<i8")
_NONE: Final = np.empty(0, I8)
_ROW_BYTES: Final = 2
_TOPIC_BYTES: Final = 8
"""Hash of a topic and the end of its rows."""
topic_growth_bytes_max: Final = _TOPIC_BYTES + _ROW_BYTES
"""The most by which adding a topic raises `TopicTable.nbytes`."""
_RECENT_BYTES: Final = topic_growth_bytes_max
"""Bytes charged for an unsorted row: the most that it takes after sorting, a new topic and a row."""
_RECENT_MIN: Final = 1024
"""Minimum number of rows collected before they are sorted into the table."""
_SEEN_MAX: Final = 4096


class StoredTopics(msgspec.Struct, array_like=True):
    """The table as stored in a seal. All fields are empty if the index is disabled."""

    stride: int
    """Blocks in a group, or 0 if the index is disabled."""
    hashes: bytes
    """u32 each, ascending."""
    counts: bytes
    """u32 each: the number of rows of each topic."""
    groups: bytes
    """u16 each: the rows, ascending within a topic."""


def topic_hash(topic: str) -> int:
    """Return the hash of a topic in the table: CRC32C of its UTF-8 name."""
    return crc32c(topic.encode())


class TopicTable:
    """The index of one segment, built block by block. `bytes_max` limits its rows, in memory and stored."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._stride = 1
        self._given_up = False
        self._hashes = np.empty(0, _U4)
        self._ends = np.empty(0, _U4)
        self._groups = np.empty(0, _U2)
        self._recent = array("Q")
        """Unsorted rows: hash and group in one number."""
        self._group = -1
        self._seen: set[int] = set()
        """Hashes with a row for `_group`. Cleared above `_SEEN_MAX`, because duplicate rows are
        harmless."""

    def add(self, block: int, topics: Iterable[str]) -> bool:
        """Add `topics` of block `block`, the last block or a new one. Return whether `nbytes` changed."""
        if self._given_up:
            return False
        before = len(self._recent)
        group = block // self._stride
        if group != self._group or len(self._seen) > _SEEN_MAX:
            self._group = group
            self._seen.clear()
        for topic in topics:
            key = crc32c(topic.encode())
            if key not in self._seen:
                self._seen.add(key)
                self._recent.append(key << _GROUP_BITS | group)
        recent = len(self._recent)
        if recent == before and group < _GROUPS_MAX - 1:
            return False
        if group >= _GROUPS_MAX - 1 or self.nbytes > self._bytes_max:
            self.settle()
            self._fit(block)
        elif recent > _RECENT_MIN and recent > len(self._groups) // 4:
            self.settle()
        return True

    @property
    def disabled(self) -> bool:
        """Whether every block may hold every topic."""
        return self._given_up

    @property
    def nbytes(self) -> int:
        """Memory of the rows. Stored, they take at most this and 32 bytes."""
        return (
            _RECENT_BYTES * len(self._recent)
            + _TOPIC_BYTES * len(self._hashes)
            + _ROW_BYTES * len(self._groups)
        )

    def next_with(self, topic: str, block: int) -> int | None:
        """Return the first block at or after `block` that may hold `topic`. None if no known block does."""
        if self._given_up:
            return block
        wanted = topic_hash(topic)
        group = block // self._stride
        found = self._next_settled(wanted, group)
        near = self._recent_rows(wanted)
        near = near[near >= group]
        if len(near):
            other = int(near.min())
            found = other if found is None else min(found, other)
        return None if found is None else max(block, found * self._stride)

    def previous_with(self, topic: str, block: int) -> int | None:
        """Return the last block at or before `block` that may hold `topic`. None if no known block does."""
        if self._given_up:
            return block
        wanted = topic_hash(topic)
        group = block // self._stride
        settled, near = self._settled_rows(wanted), self._recent_rows(wanted)
        near = near[near <= group]
        row = int(settled.searchsorted(np.uint16(min(group, _GROUPS_MAX - 1)), side="right")) - 1
        found = max(int(settled[row]) if row >= 0 else -1, int(near.max()) if len(near) else -1)
        return None if found < 0 else min(block, (found + 1) * self._stride - 1)

    def run_with(self, topic: str, block: int, limit: int) -> int:
        """Return how many consecutive blocks from `block` on may hold `topic`, at most `limit`."""
        if self._given_up or limit <= 0:
            return max(limit, 0)
        wanted = topic_hash(topic)
        first = block // self._stride
        held = np.zeros((block + limit - 1) // self._stride - first + 2, np.bool_)
        for groups in (self._settled_rows(wanted).astype(I8), self._recent_rows(wanted)):
            near = groups[(groups >= first) & (groups < first + len(held) - 1)]
            held[near - first] = True
        missing = first + int(held.argmin())
        return min(max(missing * self._stride - block, 0), limit)

    def reduce(self, blocks: int) -> None:
        """Reduce to about half the size in a segment of `blocks` blocks, or disable the index."""
        if self._stride >= blocks:
            self._give_up()
        else:
            self._halve(self._times(blocks))

    def merge_blocks(self) -> None:
        """Merge each two neighbouring blocks into one."""
        if not self._given_up:
            if self._stride == 1:
                self._halve()
            self._stride //= 2
            self._group = -1

    # -- rows -----------------------------------------------------------------------------------------

    def _next_settled(self, wanted: int, group: int) -> int | None:
        rows = self._settled_rows(wanted)
        row = int(rows.searchsorted(np.uint16(min(group, _GROUPS_MAX - 1))))
        return int(rows[row]) if row < len(rows) else None

    def _settled_rows(self, wanted: int) -> Groups:
        """Return the groups of a topic among the sorted rows, ascending."""
        at = int(self._hashes.searchsorted(np.uint32(wanted)))
        if at == len(self._hashes) or int(self._hashes[at]) != wanted:
            return self._groups[:0]
        begin = int(self._ends[at - 1]) if at else 0
        return self._groups[begin : int(self._ends[at])]

    def _recent_rows(self, wanted: int) -> Int64s:
        """Return the groups of a topic among the unsorted rows."""
        if not self._recent:
            return _NONE
        recent = np.frombuffer(self._recent, _U8)
        low = np.uint64(_GROUPS_MAX - 1)
        rows: Int64s = (recent[recent >> np.uint64(_GROUP_BITS) == np.uint64(wanted)] & low).astype(I8)
        return rows

    def settle(self) -> None:
        """Sort recent rows into the table."""
        if self._recent:
            self._take(np.concatenate((self._keys(), np.array(self._recent, _U8))))
            del self._recent[:]

    def _halve(self, times: int = 1) -> None:
        self.settle()
        self._stride <<= times
        self._group = -1
        groups = self._groups >> np.uint16(times)
        fresh = np.empty(len(groups), np.bool_)
        fresh[:1] = True
        np.not_equal(groups[1:], groups[:-1], out=fresh[1:])
        fresh[self._ends[:-1]] = True
        kept = np.flatnonzero(fresh)
        self._groups, self._ends = groups[kept], kept.searchsorted(self._ends).astype(_U4)

    def _times(self, blocks: int) -> int:
        """Return the number of halvings that may halve the rows: one merges hardly any rows of rare
        topics."""
        self.settle()
        counts = np.diff(self._ends, prepend=np.zeros(1, _U4)).astype(np.float64)
        common = float((counts * counts).sum() / max(counts.sum(), 1.0)) * self._stride / blocks
        # `common` is the mean share of the groups that hold the topic of a row.
        limit = min(_GROUP_BITS, (blocks - 1).bit_length()) - (self._stride.bit_length() - 1)
        return int(min(max(np.ceil(np.log2(1.6 / max(common, 1e-9))), 1), max(limit, 1)))

    def _keys(self) -> Keys:
        counts = np.diff(self._ends, prepend=np.zeros(1, _U4))
        keys: Keys = np.repeat(self._hashes.astype(_U8) << np.uint64(_GROUP_BITS), counts)
        keys |= self._groups.astype(_U8)
        return keys

    def _take(self, keys: Keys) -> None:
        """Build the table from `keys`, in any order."""
        if not len(keys):
            return
        keys.sort(kind="stable")  # nearly sorted already
        fresh = np.empty(len(keys), np.bool_)
        fresh[:1] = True
        np.not_equal(keys[1:], keys[:-1], out=fresh[1:])
        keys = keys[fresh]
        hashes = (keys >> np.uint64(_GROUP_BITS)).astype(_U4)
        lasts = np.flatnonzero(np.append(hashes[1:] != hashes[:-1], True))
        self._hashes = hashes[lasts]
        self._ends = (lasts + 1).astype(_U4)
        self._groups = (keys & np.uint64(_GROUPS_MAX - 1)).astype(_U2)

    def _fit(self, block: int) -> None:
        """Reduce to well below the limit, so that this is rare, or disable the index."""
        while self.nbytes > self._bytes_max // 4 * 3 or block // self._stride >= _GROUPS_MAX // 2:
            if self._stride > block:
                self._give_up()
                return
            self._halve()

    def _give_up(self) -> None:
        self._given_up = True
        self._hashes, self._ends, self._groups = np.empty(0, _U4), np.empty(0, _U4), np.empty(0, _U2)
        self._recent = array("Q")
        self._seen = set()

    # -- storing --------------------------------------------------------------------------------------

    def stored(self) -> StoredTopics:
        """Return the table as stored in a seal."""
        self.settle()
        counts = np.diff(self._ends, prepend=np.zeros(1, _U4))
        return StoredTopics(
            stride=0 if self._given_up else self._stride,
            hashes=self._hashes.tobytes(),
            counts=counts.tobytes(),
            groups=self._groups.tobytes(),
        )

    @staticmethod
    def of(stored: StoredTopics, bytes_max: int) -> TopicTable:
        """Return the index from its stored form. Raises `ValueError` if that is invalid."""
        table = TopicTable(bytes_max)
        if stored.stride < 1:
            table._give_up()
            return table
        if stored.stride & (stored.stride - 1):
            raise ValueError("index groups of topics have an invalid size")
        hashes, counts, groups = (
            _column(stored.hashes, _U4),
            _column(stored.counts, _U4),
            _column(stored.groups, _U2),
        )
        ends = np.cumsum(counts, dtype=_U8)
        if len(hashes) != len(counts) or (int(ends[-1]) if len(ends) else 0) != len(groups):
            raise ValueError("index rows of topics are incomplete")
        if (counts == 0).any() or (hashes[1:] <= hashes[:-1]).any():
            raise ValueError("index topics are out of order")
        table._stride, table._hashes, table._groups = stored.stride, hashes, groups
        table._ends = ends.astype(_U4)
        falls = groups[1:] <= groups[:-1]
        falls[table._ends[:-1].astype(I8) - 1] = False
        if falls.any():
            raise ValueError("index rows of a topic are out of order")
        return table


def _column(data: bytes, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    if len(data) % kind.itemsize:
        raise ValueError("index column is cut off")
    return np.frombuffer(data, kind)
