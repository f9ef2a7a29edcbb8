"""Key rows: the keys of many columns as numbered rows, and the last row of each key.

Invariant: two rows have one key only if their bytes are equal. A hash never decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from tickertape.batch.format import I1, I8, U8, Bools, Bytes8, Int64s, Labels, UInt64s, lengths_of

ROWS_MAX: Final = (1 << 32) - 2
"""Rows that entries can number."""
_HALF_BITS: Final = np.uint64(32)
_HALF_MASK: Final = np.uint64((1 << 32) - 1)
_INLINE_BYTES: Final = 12
_WORD_BYTES: Final = 8
_WORD_MASKS: Final = np.array([(1 << 8 * length) - 1 for length in range(_WORD_BYTES + 1)], U8)
"""Mask of the first bytes of a word, by their number."""


class ChosenRows(NamedTuple):
    """The rows that get slots: from 0 on, in their order."""

    rows: Int64s
    slots: Int64s
    """Slot of each of all rows, -1 without one."""
    entries: UInt64s
    """Hashes in the upper halves, and slots plus 1 in the lower halves. Ascending."""


class KeyRows:
    """Rows of key columns, numbered over all columns."""

    def __init__(self, columns: Sequence[Labels]) -> None:
        counts = [len(column.offsets) - 1 for column in columns]
        self.edges: Int64s = np.array([0, *counts], I8).cumsum()
        """First row of each column, and the number of all rows."""
        self.count = int(self.edges[-1])
        if self.count > ROWS_MAX:
            raise ValueError(
                f"Cannot assign numbers to {self.count:,} keys: the limit is {ROWS_MAX:,}. Report the defect."
            )
        self._data = b"".join([*(column.text for column in columns), bytes(2 * _WORD_BYTES)])
        text: Bytes8 = np.frombuffer(self._data, I1)
        self._words: UInt64s = np.ndarray(len(text) - _WORD_BYTES + 1, U8, text, strides=(1,))
        """Eight bytes from each byte of all keys on."""
        self._starts: Int64s = np.empty(self.count, I8)
        self.views: UInt64s = np.empty((self.count, 2), U8)
        """Keys as views. The second half of a key above 12 bytes is not its place."""
        start = 0
        for column, (low, high) in zip(columns, pairwise(self.edges.tolist()), strict=True):
            starts, lengths = column.offsets[:-1] + np.int64(start), lengths_of(column.offsets).astype(I8)
            self._starts[low:high] = starts
            self._set_views(self.views[low:high], starts, lengths)
            start += int(column.offsets[-1])

    def _set_views(self, views: UInt64s, starts: Int64s, lengths: Int64s) -> None:
        first = self._words[starts] & _WORD_MASKS[np.minimum(lengths, _WORD_BYTES)]
        rest = np.clip(lengths, _WORD_BYTES, _INLINE_BYTES) - _WORD_BYTES
        last = self._words[starts + _WORD_BYTES] & _WORD_MASKS[rest]
        views[:, 0] = lengths.view(U8) | first << _HALF_BITS
        views[:, 1] = first >> _HALF_BITS | last << _HALF_BITS

    def joined(self, rows: Int64s) -> tuple[bytes, Int64s]:
        """Return the joined keys of rows, and the end of each."""
        starts, ends = self._bounds(rows)
        if not len(rows):
            return b"", ends
        seams = (starts[1:] != ends[:-1]).nonzero()[0]  # keys of adjacent rows are joined already
        first, last = starts[np.append(0, seams + 1)], ends[np.append(seams, len(rows) - 1)]
        runs = zip(first.tolist(), last.tolist(), strict=True)
        return b"".join([self._data[start:end] for start, end in runs]), (ends - starts).cumsum()

    def _bounds(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the start and the end of the keys of rows."""
        starts = self._starts[rows]
        return starts, starts + (self.views[rows, 0] & _HALF_MASK).view(I8)

    def choose(self, hashes: UInt64s, present: Sequence[bool]) -> ChosenRows:
        """Return the last row of each key, without rows of columns that are not `present`.

        `hashes`: the hash of each row, in the upper half."""
        entries = hashes | np.arange(1, self.count + 1, dtype=U8)
        entries.sort()
        entries = self._last_of(entries)
        last = (entries & _HALF_MASK).view(I8) - 1
        chosen = np.zeros(self.count, np.bool_)
        chosen[last] = True
        chosen &= np.repeat(np.array(present, np.bool_), np.diff(self.edges))
        rows = chosen.nonzero()[0]
        slots = np.full(self.count, -1, I8)
        slots[rows] = np.arange(len(rows))
        own = slots[last]
        has_slot = own >= 0
        found = entries[has_slot] & ~_HALF_MASK | (own[has_slot] + 1).view(U8)
        return ChosenRows(rows, slots, found)

    def _last_of(self, entries: UInt64s) -> UInt64s:
        """Return the entries of the last row of each key. Entries with equal hashes ascend by their rows."""
        hashes = entries >> _HALF_BITS
        equal = hashes[1:] == hashes[:-1]
        at = equal.nonzero()[0]
        if not len(at):
            return entries
        rows = (entries & _HALF_MASK).view(I8) - 1
        same = self._same(rows[at], rows[at + 1])
        superseded = np.zeros(len(entries), np.bool_)
        superseded[at] = same
        for low, high in _groups(equal, at[~same]):
            last: dict[bytes, int] = {}
            bounds = zip(*self._bounds(rows[low:high]), strict=True)
            for place, (start, end) in enumerate(bounds, low):
                key = self._data[start:end]
                if key in last:
                    superseded[last[key]] = True
                last[key] = place
        found: UInt64s = entries[~superseded]
        return found

    def _same(self, first: Int64s, second: Int64s) -> Bools:
        """Return for each pair of rows whether their keys are equal."""
        one, other = self.views.take(first, axis=0), self.views.take(second, axis=0)
        same: Bools = (one == other).all(axis=1)
        rest = (one[:, 0] & _HALF_MASK).view(I8) - _INLINE_BYTES
        at = (same & (rest > 0)).nonzero()[0]
        mine, others, rest = self._starts[first[at]], self._starts[second[at]], rest[at]
        offset = _INLINE_BYTES
        while len(at):
            differ = (self._words[mine + offset] ^ self._words[others + offset]) & _WORD_MASKS[
                np.minimum(rest, _WORD_BYTES)
            ] != 0
            same[at[differ]] = False
            further = ~differ & (rest > _WORD_BYTES)
            at, mine, others, rest = at[further], mine[further], others[further], rest[further] - _WORD_BYTES
            offset += _WORD_BYTES
        return same


def _groups(equal: Bools, differing: Int64s) -> Iterator[tuple[int, int]]:
    """Yield the ranges of entries with one hash in which neighbours differ, given by their first ones.

    `equal`: whether each entry and the next one have the same hash."""
    end = 0
    for at in differing.tolist():
        if at < end:
            continue
        low = at
        while low and equal[low - 1]:
            low -= 1
        end = at + 1
        while end < len(equal) and equal[end]:
            end += 1
        end += 1
        yield low, end
