"""Index cache: limits the memory of the indexes of all sealed segments to `indexes_bytes_max`.

Above the limit indexes become coarser, old and large ones first. The share of an index falls with the square
root of its distance from the end of the log, so the oldest index keeps about half of an equal share. The
indexes stored in the seals do not change.
"""

from __future__ import annotations

import numpy as np

from tickertape.journal.index.segment_index import SegmentIndex
from tickertape.journal.limits import indexes_bytes_max

_EMPTY_BYTES = SegmentIndex().nbytes


class IndexCache:
    """Indexes of sealed segments in log order. Call `add`, then `relieve` until it returns False."""

    def __init__(self, bytes_max: int = indexes_bytes_max) -> None:
        self.bytes_max = bytes_max
        self._indexes: list[SegmentIndex] = []
        self._sizes = np.zeros(64, np.int64)
        """Memory of each index without its objects, or 0 if the index cannot become coarser."""
        self.nbytes = 0
        """Memory of all indexes."""

    def add(self, index: SegmentIndex) -> None:
        """Add the index of a newly sealed segment. The index must not grow afterwards."""
        index.settle()
        at = len(self._indexes)
        if at == len(self._sizes):
            self._sizes = np.concatenate((self._sizes, np.zeros(at, np.int64)))
        self._indexes.append(index)
        self._sizes[at] = index.nbytes - _EMPTY_BYTES
        self.nbytes += index.nbytes

    def forget(self, count: int) -> None:
        """Drop the oldest `count` indexes."""
        self.nbytes -= sum(index.nbytes for index in self._indexes[:count])
        del self._indexes[:count]
        left = len(self._indexes)
        self._sizes[:left] = self._sizes[count : count + left]

    def relieve(self) -> bool:
        """Halve the resolution of one index, which takes milliseconds. False if no reduction is needed or
        possible."""
        if self.nbytes <= self.bytes_max:
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
        """Reduce indexes until they fit, for use at server start."""
        while self.relieve():
            pass
