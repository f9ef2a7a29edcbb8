"""Index cache: bounds the memory of the indexes of all sealed segments to `indexes_bytes_max`.

Above the bound indexes get coarser, old and large ones first: the room of an index falls with the square root
of its place from the end of the log, so that the oldest keeps about half of an equal share. The indexes in
the seals stay as they are.
"""

from __future__ import annotations

import numpy as np

from tickertape.journal.index.segment_index import SegmentIndex
from tickertape.journal.limits import indexes_bytes_max

_EMPTY_BYTES = SegmentIndex().nbytes


class IndexCache:
    """The indexes of sealed segments in the order of the log. `add`, then `relieve` until it is False."""

    def __init__(self, bytes_max: int = indexes_bytes_max) -> None:
        self._bytes_max = bytes_max
        self._indexes: list[SegmentIndex] = []
        self._sizes = np.zeros(64, np.int64)
        """Memory of each index beside its objects; 0 for those that cannot get coarser."""
        self.nbytes = 0
        """Memory of all indexes."""

    def add(self, index: SegmentIndex) -> None:
        """A segment was sealed; nothing is added to its index any more."""
        index.settle()
        at = len(self._indexes)
        if at == len(self._sizes):
            self._sizes = np.concatenate((self._sizes, np.zeros(at, np.int64)))
        self._indexes.append(index)
        self._sizes[at] = index.nbytes - _EMPTY_BYTES
        self.nbytes += index.nbytes

    def forget(self, count: int) -> None:
        """The oldest `count` segments are gone."""
        self.nbytes -= sum(index.nbytes for index in self._indexes[:count])
        del self._indexes[:count]
        left = len(self._indexes)
        self._sizes[:left] = self._sizes[count : count + left]

    def relieve(self) -> bool:
        """Halve the resolution of one index, which takes milliseconds; False when that is not wanted, or
        nothing is left to halve."""
        if self.nbytes <= self._bytes_max:
            return False
        count = len(self._indexes)
        at = int((self._sizes[:count] * np.sqrt(np.arange(count, 0, -1))).argmax())
        if not self._sizes[at]:
            return False
        index = self._indexes[at]
        before = index.nbytes
        self._sizes[at] = index.nbytes - _EMPTY_BYTES if index.reduce() else 0
        self.nbytes -= before - index.nbytes
        return True

    def fit(self) -> None:
        """Get below the bound at once: for a start."""
        while self.relieve():
            pass
