"""Sorted runs: rows of a result in a total order, in runs of bounded size, and their lazy merge.

Invariants:
- A call sorts at most one run, or about `query_merge_rows_max` rows of all runs. A merge sorts each row once.
- With a limit, only rows that can be among the first ones are kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

import numpy as np

from tickertape.batch.format import I8, Int64s
from tickertape.engine.limits import (
    query_best_rows_min,
    query_merge_rows_max,
    query_merge_rows_min,
    query_run_rows_max,
)

Keys = TypeVar("Keys", "list[str]", Int64s)
Key = TypeVar("Key", str, int)

_NUMBER_BYTES: Final = 4
_KEY_BYTES: Final = 57
"""Memory of a text without its characters, and of its place in a list."""


class _SortedRuns(ABC, Generic[Keys, Key]):
    """Rows with distinct keys. A key contains the number of its row."""

    def __init__(self, rows_max: int, limit: int | None) -> None:
        """`limit`: rows that are needed at most. None: all."""
        self._rows_max = rows_max
        self._limit = limit if limit is not None and 2 * limit <= rows_max else None
        if self._limit is not None:
            self._rows_max = min(rows_max, max(2 * self._limit, query_best_rows_min))
        self._pending: list[Keys] = []
        self._pending_rows = 0
        self._threshold: Key | None = None
        """Rows from it on are not among the first ones."""
        self._runs: list[Keys] = []
        self._heap: list[tuple[Key, int]] = []
        """Lowest key of each run, and number of the run."""
        self._block_rows = query_merge_rows_min
        """Rows of each run that the next refill examines."""
        self._pool: list[Keys] = []
        """At most one part: sorted keys, which are below those of all runs."""

    @property
    def is_limited(self) -> bool:
        """Whether rows may be dropped. They keep their numbers until `renumber`."""
        return self._limit is not None

    def add(self, keys: Keys) -> bool:
        """Add at most a run of rows. Return whether the rows before them were sorted."""
        ends = bool(self._pending_rows) and self._pending_rows + len(keys) > self._rows_max
        if ends:
            self._end_run()
        self._pending.append(keys)
        self._pending_rows += len(keys)
        return ends

    def _end_run(self) -> None:
        if not self._pending_rows:
            return
        keys = self._joined(self._pending)
        self._pending, self._pending_rows = [], 0
        if self._limit is None:
            self._runs.append(keys)
            return
        keys = keys[: self._limit]
        if len(keys) == self._limit:
            self._threshold = self._key(keys, len(keys) - 1)
        self._pending.append(keys)
        self._pending_rows = len(keys)

    def finish(self) -> Int64s | None:
        """Sort the last run. No rows are added afterwards. With a limit, do and return as `renumber`."""
        self._end_run()
        kept = self.renumber() if self.is_limited else None
        self._runs += [keys for keys in self._pending if len(keys)]
        self._pending = []
        self._block_rows = max(query_merge_rows_min, query_merge_rows_max // max(1, len(self._runs)))
        self._heap = [(self._key(keys, 0), number) for number, keys in enumerate(self._runs)]
        heapify(self._heap)
        return kept

    def take(self, count: int) -> Int64s:
        """Return the numbers of the next rows, at most `count`. Call `finish` before."""
        taken: list[Keys] = []
        while count:
            if not self._pool:
                if not self._heap:
                    break
                self._pool.append(self._refill())
            pool = self._pool.pop()
            some = min(len(pool), count)
            taken.append(pool[:some])
            count -= some
            if some < len(pool):
                self._pool.append(pool[some:])
        return np.concatenate([self._numbers(keys) for keys in taken]) if taken else np.zeros(0, I8)

    def _refill(self) -> Keys:
        """Remove the lowest keys of all runs, and return them sorted.

        These are the keys up to the lowest end of a block, so no run has a lower one. Few runs have large
        blocks, and many runs small ones."""
        low: list[tuple[Key, int]] = []
        bound: Key | None = None
        while self._heap and (bound is None or self._heap[0][0] <= bound):
            low.append(heappop(self._heap))
            end = self._block_end(low[-1][1])
            bound = end if bound is None else min(bound, end)
        assert bound is not None
        counts = [self._count_through(self._runs[number], bound) for _, number in low]
        while sum(counts) > query_merge_rows_max and self._block_rows > query_merge_rows_min:
            self._block_rows //= 2
            bound = min([self._block_end(number) for _, number in low])
            counts = [self._count_through(self._runs[number], bound) for _, number in low]
        if 2 * sum(counts) <= query_merge_rows_max:
            self._block_rows = min(2 * self._block_rows, query_merge_rows_max)
        parts: list[Keys] = []
        for entry, count in zip(low, counts, strict=True):
            number = entry[1]
            keys = self._runs[number]
            if count:
                parts.append(keys[:count])
                keys = self._runs[number] = self._rest(keys, count)
            if len(keys):
                heappush(self._heap, (self._key(keys, 0), number))
        return parts[0] if len(parts) == 1 else self._joined(parts)

    def _block_end(self, number: int) -> Key:
        """Return the last key of the block at the start of a run."""
        keys = self._runs[number]
        return self._key(keys, min(self._block_rows, len(keys)) - 1)

    def renumber(self) -> Int64s:
        """Number the kept rows from 0 on, in any order, and return their numbers before."""
        parts = [self._numbers(keys) for keys in self._pending]
        old = np.concatenate(parts) if parts else np.zeros(0, I8)
        first = 0
        for at, keys in enumerate(self._pending):
            self._pending[at] = self._renumbered(keys, first)
            first += len(keys)
        return old

    # -- forms of keys ----------------------------------------------------------------------------------

    @abstractmethod
    def _joined(self, parts: list[Keys]) -> Keys:
        """Return the keys of all parts, sorted."""

    @abstractmethod
    def _count_through(self, keys: Keys, bound: Key) -> int:
        """Return the number of sorted keys up to `bound`, at most a block, and equal ones behind it."""

    @abstractmethod
    def _key(self, keys: Keys, at: int) -> Key:
        """Return one key."""

    @abstractmethod
    def _numbers(self, keys: Keys) -> Int64s:
        """Return the numbers of the rows of keys."""

    @abstractmethod
    def _renumbered(self, keys: Keys, first: int) -> Keys:
        """Return the keys with numbers from `first` on."""

    @abstractmethod
    def _rest(self, keys: Keys, low: int) -> Keys:
        """Return the keys from `low` on. The others are not needed in this run."""


class PositionRuns(_SortedRuns[Int64s, int]):
    """Rows by their positions in the log: arrays of shape (n, 2) with position and number.

    Equal positions, of one message in several queues, are in the order of their numbers."""

    def __init__(self, limit: int | None = None, rows_max: int = query_run_rows_max) -> None:
        super().__init__(rows_max, limit)
        self.nbytes = 0
        """Memory of the keys."""

    @property
    def arrays(self) -> list[Int64s]:
        """All arrays of keys, of at most a run or the rows of a merge each."""
        return [*self._pending, *self._runs, *self._pool]

    def candidates(self, positions: Int64s) -> Int64s | None:
        """Return the indices of the rows to add, None for all. With a limit these are not more than it."""
        at: Int64s | None = None
        if self._threshold is not None:
            at = (positions < self._threshold).nonzero()[0]
            positions = positions[at]
        if self._limit is not None and len(positions) > self._limit:
            first = positions.argpartition(self._limit)[: self._limit]
            at = first if at is None else at[first]
        return at

    def add_rows(self, positions: Int64s, first: int) -> bool:
        """Add rows with numbers from `first` on. See `add`."""
        numbers = np.arange(first, first + len(positions), dtype=I8)
        self.nbytes += 16 * len(positions)
        return self.add(_pairs(positions, numbers))

    def _joined(self, parts: list[Int64s]) -> Int64s:
        keys = parts[0] if len(parts) == 1 else np.concatenate(parts)
        positions, numbers = keys[:, 0], keys[:, 1]
        if (positions[1:] > positions[:-1]).all():
            return keys
        order = positions.argsort(kind="stable")
        rising = positions[order]
        if (rising[1:] == rising[:-1]).any():
            order = np.lexsort((numbers, positions))
        return _pairs(rising, numbers[order])

    def _count_through(self, keys: Int64s, bound: int) -> int:
        return int(keys[:, 0].searchsorted(bound, "right"))

    def _key(self, keys: Int64s, at: int) -> int:
        return int(keys[at, 0])

    def _numbers(self, keys: Int64s) -> Int64s:
        return keys[:, 1]

    def _renumbered(self, keys: Int64s, first: int) -> Int64s:
        self.nbytes = 16 * (first + len(keys))
        return _pairs(keys[:, 0], np.arange(first, first + len(keys), dtype=I8))

    def _rest(self, keys: Int64s, low: int) -> Int64s:
        return keys[low:] if low < len(keys) else _NO_PAIRS  # a view without rows would keep the run


class KeyRuns(_SortedRuns["list[str]", str]):
    """Rows by sort keys: texts of characters below 256 that end with the number of the row."""

    def __init__(self, limit: int | None = None, rows_max: int = query_run_rows_max) -> None:
        super().__init__(rows_max, limit)
        self.nbytes = 0
        """Memory of the keys."""

    @property
    def lists(self) -> list[list[str]]:
        """All lists of keys, of at most a run or the rows of a merge each."""
        return [*self._pending, *self._runs, *self._pool]

    def candidates(self, keys: list[str]) -> Int64s | None:
        """Return the indices of the rows to add, None for all. `keys` have no numbers."""
        threshold = self._threshold
        if threshold is None:
            return None
        return np.array([at for at, key in enumerate(keys) if key < threshold], I8)

    def add_rows(self, keys: list[str], first: int) -> bool:
        """Add rows with distinct keys, and numbers from `first` on. See `add`."""
        self.nbytes += sum(map(len, keys)) + (_KEY_BYTES + _NUMBER_BYTES) * len(keys)
        return self.add(list(map("".join, zip(keys, _numbers_from(first, len(keys)), strict=True))))

    def _joined(self, parts: list[list[str]]) -> list[str]:
        # Python's sort finds the parts that are sorted already, and merges them.
        keys = [key for part in parts for key in part]
        keys.sort()
        return keys

    def _count_through(self, keys: list[str], bound: str) -> int:
        return bisect_right(keys, bound, 0, min(self._block_rows, len(keys)))

    def _key(self, keys: list[str], at: int) -> str:
        return keys[at]

    def _numbers(self, keys: list[str]) -> Int64s:
        joined = "".join([key[-_NUMBER_BYTES:] for key in keys]).encode("latin-1")
        return np.frombuffer(joined, ">u4").astype(I8)

    def _renumbered(self, keys: list[str], first: int) -> list[str]:
        numbers = _numbers_from(first, len(keys))
        renumbered = [key[:-_NUMBER_BYTES] + number for key, number in zip(keys, numbers, strict=True)]
        self.nbytes = (0 if not first else self.nbytes) + sum(map(len, keys)) + _KEY_BYTES * len(keys)
        return renumbered

    def _rest(self, keys: list[str], low: int) -> list[str]:
        del keys[:low]  # in place, so that texts are freed a few at a time
        return keys


def _pairs(positions: Int64s, numbers: Int64s) -> Int64s:
    """Return an array of shape (n, 2) whose columns are contiguous."""
    columns = np.empty((2, len(positions)), I8)
    columns[0], columns[1] = positions, numbers
    return columns.T


_NO_PAIRS: Final = np.zeros((0, 2), I8)


def _numbers_from(first: int, count: int) -> list[str]:
    joined = np.arange(first, first + count, dtype=">u4").tobytes().decode("latin-1")
    return [joined[at : at + _NUMBER_BYTES] for at in range(0, len(joined), _NUMBER_BYTES)]
