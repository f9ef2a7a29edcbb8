"""Owns what the indexes of all sealed segments take in memory, together: at most `indexes_bytes_max`.

Above it they get coarser, the old and large ones first: an index may hold about as much as its place, counted
from the end of the log, allows (the second half of the first's, the tenth a tenth). Must never read, or touch
what a seal keeps: after a start the index is whole again as far as there is room.
"""

from __future__ import annotations

import numpy as np

from tickertape.base.limits import indexes_bytes_max
from tickertape.journal.index import SegmentIndex


class SealedIndexes:
    """The indexes of sealed segments in the order of the log. `add`, then `relieve` until it is False."""

    def __init__(self, bytes_max: int = indexes_bytes_max) -> None:
        self._bytes_max = bytes_max
        self._indexes: list[SegmentIndex] = []
        self._sizes = np.zeros(64, np.int64)
        """What each takes; 0 for those that cannot take less."""
        self.nbytes = 0
        """What all of them take."""

    def add(self, index: SegmentIndex) -> None:
        """A segment was sealed; nothing is added to its index any more."""
        index.settle()
        at = len(self._indexes)
        if at == len(self._sizes):
            self._sizes = np.concatenate((self._sizes, np.zeros(at, np.int64)))
        self._indexes.append(index)
        self._sizes[at] = index.nbytes
        self.nbytes += index.nbytes

    def relieve(self) -> bool:
        """Halve the resolution of one index, which takes milliseconds; False when that is not wanted, or
        nothing is left to halve."""
        if self.nbytes <= self._bytes_max:
            return False
        count = len(self._indexes)
        at = int((self._sizes[:count] * np.arange(count, 0, -1)).argmax())
        before = int(self._sizes[at])
        if not before:
            return False
        index = self._indexes[at]
        smaller = index.reduce()
        self._sizes[at] = index.nbytes if smaller else 0
        self.nbytes -= before - index.nbytes
        return True

    def fit(self) -> None:
        """Get below the bound at once: for a start."""
        while self.relieve():
            pass
