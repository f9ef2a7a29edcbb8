"""Index of the messages that a store on disk still holds, and of their locations.

It keeps no batch alive: a batch that is still in memory is reused, otherwise it is read again.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import overload

import numpy as np

from tickertape.batch.message_batch import MessageBatch
from tickertape.client.publish_store.protocol import Stored


class UnpersistedEntry:
    """Messages `first` to `last`, resent as one batch. They start at offset `at` of segment `number`."""

    __slots__ = ("_batch", "at", "count", "first", "last", "nbytes", "number")

    def __init__(self, first: int, last: int, count: int, nbytes: int, number: int, at: int) -> None:
        self.first = first
        """First sequence. Lower messages at the same location are settled."""
        self.last = last
        self.count = count
        self.nbytes = nbytes
        """Size of the batch in bytes, or an estimate before the batch exists."""
        self.number = number
        self.at = at
        self._batch: weakref.ref[MessageBatch] | None = None

    @property
    def batch(self) -> MessageBatch | None:
        """The batch if it is still in memory, else None."""
        return None if self._batch is None else self._batch()

    @batch.setter
    def batch(self, batch: MessageBatch | None) -> None:
        self._batch = None if batch is None else weakref.ref(batch)


class UnpersistedIndex:
    """Entries in the order of sequences. `read(entry)` returns the batch of an entry."""

    def __init__(self, read: Callable[[UnpersistedEntry], MessageBatch]) -> None:
        self._read = read
        self.entries: deque[UnpersistedEntry] = deque()
        self.nbytes = 0
        self.count = 0
        self.used: Counter[int] = Counter()
        """Number of entries that start in each segment."""

    def add(self, entry: UnpersistedEntry) -> None:
        """Add an entry above all others. The append is atomic with respect to exceptions."""
        self._count(entry, 1)
        self.entries.append(entry)

    def grow(self, sequence: int, nbytes: int) -> None:
        """Add one message to the last entry."""
        entry = self.entries[-1]
        entry.last = sequence
        entry.count += 1
        entry.nbytes += nbytes
        self.nbytes += nbytes
        self.count += 1

    def settle(self, sequence: int) -> None:
        """Remove all messages up to `sequence`."""
        entries = self.entries
        while entries and entries[0].last <= sequence:
            self._count(entries.popleft(), -1)
        if not entries:
            self._count_again(())  # corrects a miscount of an interrupted step
        elif entries[0].first <= sequence:
            entry = entries[0]
            rest = self._part(entry, sequence + 1, entry.last)
            entries[0] = rest
            self.nbytes += rest.nbytes - entry.nbytes
            self.count += rest.count - entry.count

    def holds(self, first: int, last: int) -> bool:
        """Return whether any of the messages `first` to `last` is held."""
        return any(entry.first <= last and entry.last >= first for entry in self.entries)

    def restore(self, entry: UnpersistedEntry) -> None:
        """Insert an entry in order. The entry that it replaced was in a removed segment."""
        self.entries.insert(sum(other.last < entry.first for other in self.entries), entry)
        self._count(entry, 1)

    def replace(self, first: int, last: int, rest: UnpersistedEntry | None) -> bool:
        """Replace the held messages `first` to `last` by `rest`. Return False if none of them is held."""
        if not self.holds(first, last):
            return False
        kept: list[UnpersistedEntry] = []
        for entry in self.entries:
            if entry.last < first or entry.first > last:
                kept.append(entry)
                continue
            if entry.first < first:
                kept.append(self._part(entry, entry.first, first - 1))
            if rest is not None:
                kept.append(rest)
                rest = None
            if entry.last > last:
                kept.append(self._part(entry, last + 1, entry.last))
        kept = [entry for entry in kept if entry.count]
        # A segment that an entry needs is counted at all times.
        self.used.update(entry.number for entry in kept)
        self.entries = deque(kept)
        self._count_again(kept)
        return True

    def oldest(self, otherwise: int) -> int:
        """Return the number of the oldest segment in which an entry starts, or `otherwise`."""
        return min(self.used, default=otherwise)

    def _count_again(self, entries: Sequence[UnpersistedEntry]) -> None:
        self.nbytes = sum(entry.nbytes for entry in entries)
        self.count = sum(entry.count for entry in entries)
        self.used = Counter(entry.number for entry in entries)

    def _part(self, entry: UnpersistedEntry, first: int, last: int) -> UnpersistedEntry:
        """Return the part of an entry from `first` to `last`. Its count may be 0."""
        if entry.count == entry.last - entry.first + 1:
            count = last - first + 1
        else:
            sequences = self._read(entry).sequences
            low, high = np.searchsorted(sequences, np.array((first, last + 1), np.uint64), side="left")
            count = int(high - low)
            if count:
                first, last = int(sequences[low]), int(sequences[high - 1])
        return UnpersistedEntry(
            first, last, count, -(-entry.nbytes * count // entry.count), entry.number, entry.at
        )

    def _count(self, entry: UnpersistedEntry, by: int) -> None:
        self.nbytes += by * entry.nbytes
        self.count += by * entry.count
        self.used[entry.number] += by
        if not self.used[entry.number]:
            del self.used[entry.number]


class UnpersistedView(Sequence[Stored]):
    """Lazy sequence of the batches with the numbers `chosen`. `stored(number)` returns a batch."""

    def __init__(self, stored: Callable[[int], Stored], chosen: range) -> None:
        self._stored = stored
        self._chosen = chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, at: int) -> Stored: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Stored]: ...
    def __getitem__(self, at: int | slice) -> Stored | Sequence[Stored]:
        if isinstance(at, slice):
            return UnpersistedView(self._stored, self._chosen[at])
        return self._stored(self._chosen[at])
