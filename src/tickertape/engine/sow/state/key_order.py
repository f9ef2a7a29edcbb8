"""Order of keys that are stored one after the other, without an object for each key."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from tickertape.batch.format import Bools, Int64s, UInt64s

_WORD_BYTES: Final = 8
_MASKS: Final = np.array([(1 << 64) - (1 << 64 - 8 * left) for left in range(_WORD_BYTES + 1)], np.uint64)
"""By number of bytes: the mask of the first bytes of a word."""
_WORDS_MAX: Final = 8
"""Words of a key that are compared. Few keys have more in common, so the rest is compared as bytes."""


class PackedKeys:
    """Keys in one byte string, compared by words of 8 bytes.

    A word has the bytes of a key from a depth on in big-endian order, with zeros behind the last one. The
    number of its bytes decides between equal words, because a key may end with zeros."""

    def __init__(self, offsets: Int64s, body: bytes) -> None:
        """Key i is `body[offsets[i]:offsets[i + 1]]`."""
        self._body = body
        self._starts = offsets[:-1]
        self._lengths = offsets[1:] - offsets[:-1]
        # A word starts at each byte, so words overlap.
        self._words: UInt64s = np.ndarray(
            len(body) + 1, np.dtype(">u8"), body + bytes(_WORD_BYTES), strides=(1,)
        )

    def are_rising(self, rows: Int64s) -> bool:
        """Return whether the key after each of `rows` is above it."""
        for depth in range(0, _WORDS_MAX * _WORD_BYTES, _WORD_BYTES):
            if not len(rows):
                return True
            low, low_bytes = self._at(rows, depth)
            high, high_bytes = self._at(rows + 1, depth)
            same = low == high
            ended = high_bytes < _WORD_BYTES
            if ((low > high) | (same & ended & (low_bytes >= high_bytes))).any():
                return False
            rows = rows[same & (low_bytes == _WORD_BYTES) & ~ended]
        return all(lower < upper for lower, upper in zip(self._keys(rows), self._keys(rows + 1), strict=True))

    def order(self, groups: Int64s) -> tuple[Int64s, Bools]:
        """Return all rows by group and key, and which of them equal the next one. Equal keys keep their
        order."""
        rows = places = np.arange(len(groups))
        order, repeated = rows.copy(), np.zeros(len(groups), np.bool_)
        for depth in range(0, _WORDS_MAX * _WORD_BYTES, _WORD_BYTES):
            if not len(rows):
                return order, repeated
            words, sizes = self._at(rows, depth)
            by = np.lexsort((sizes, words, groups))
            rows, groups, words, sizes = rows[by], groups[by], words[by], sizes[by]
            order[places] = rows
            differs = np.ones(len(rows) + 1, np.bool_)  # from the row before it
            differs[1:-1] = (
                (groups[1:] != groups[:-1]) | (words[1:] != words[:-1]) | (sizes[1:] != sizes[:-1])
            )
            ended = sizes < _WORD_BYTES
            repeated[places[:-1][(ended[1:] & ~differs[1:-1])]] = True
            tied = ~(ended | (differs[:-1] & differs[1:]))
            rows, groups, places = rows[tied], differs[:-1].cumsum()[tied], places[tied]
        entries = sorted(zip(groups.tolist(), self._keys(rows), rows.tolist(), strict=True))
        order[places] = [row for _, _, row in entries]
        equal = [one[:2] == following[:2] for one, following in pairwise(entries)]
        repeated[places[:-1][np.array(equal, np.bool_)]] = True
        return order, repeated

    def places(self, groups: Int64s, others: PackedKeys, other_groups: Int64s) -> tuple[Int64s, Bools]:
        """Return for each of `others` how many keys here are below it, and whether one is equal.

        The keys here are distinct, and ascending by group and key."""
        low = np.zeros(len(other_groups), np.int64)
        high = np.full(len(other_groups), len(groups))
        equal = np.zeros(len(other_groups), np.bool_)
        while len(theirs := (low < high).nonzero()[0]):
            mine = (low[theirs] + high[theirs]) // 2
            signs = np.sign(groups[mine] - other_groups[theirs])
            same = (signs == 0).nonzero()[0]
            signs[same] = self._compare(mine[same], others, theirs[same])
            below = signs < 0
            equal[theirs[signs == 0]] = True
            low[theirs[below]] = mine[below] + 1
            high[theirs[~below]] = mine[~below]
        return low, equal

    def _compare(self, mine: Int64s, others: PackedKeys, theirs: Int64s) -> Int64s:
        """Return -1, 0 or 1 for each pair of an own key and one of `others`."""
        signs = np.zeros(len(mine), np.int64)
        rows = np.arange(len(mine))
        for depth in range(0, _WORDS_MAX * _WORD_BYTES, _WORD_BYTES):
            if not len(rows):
                return signs
            low, low_bytes = self._at(mine[rows], depth)
            high, high_bytes = others._at(theirs[rows], depth)
            sign = np.where(low == high, np.sign(low_bytes - high_bytes), np.where(low < high, -1, 1))
            signs[rows] = sign
            rows = rows[(sign == 0) & (low_bytes == _WORD_BYTES)]
        pairs = zip(self._keys(mine[rows]), others._keys(theirs[rows]), strict=True)
        signs[rows] = np.array([(lower > upper) - (lower < upper) for lower, upper in pairs], np.int64)
        return signs

    def _at(self, rows: Int64s, depth: int) -> tuple[UInt64s, Int64s]:
        """Return the words of `rows` at `depth`, and the number of bytes in each, 0 behind the end."""
        lengths = self._lengths[rows]
        sizes = np.clip(lengths - depth, 0, _WORD_BYTES)
        words = self._words[self._starts[rows] + np.minimum(lengths, depth)].astype(np.uint64)
        return words & _MASKS[sizes], sizes

    def _keys(self, rows: Int64s) -> list[bytes]:
        starts = self._starts[rows]
        ends = starts + self._lengths[rows]
        return [self._body[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
