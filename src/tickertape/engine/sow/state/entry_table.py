"""Entry table: slots by the hash of their key, with open addressing, in one numpy column.

Invariants:
- A hash never decides that two keys are equal: the caller compares the key of each slot that it finds.
- Clients cannot choose keys with equal hashes, because hashes are mixed with a secret of the process.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from tickertape.batch.format import I1, I8, U8, Bools, Int64s, UInt64s

ENTRIES: Final = 8
"""Entries of a bucket."""
_BUCKET_BYTES: Final = 64
"""A bucket of 8 entries, which is a cache line."""
_BUCKET: Final = Struct("=8Q").unpack_from
_LOAD_MAX: Final = 0.8
_BITS_FIRST: Final = 4

_HALF: Final = (1 << 32) - 1
_TAG_BIT: Final = 1 << 32
_WORD: Final = (1 << 64) - 1
_HALF_MASK: Final = np.uint64(_HALF)
_HALF_BITS: Final = np.uint64(32)
_TAG_MASK: Final = np.uint64(_WORD - _HALF)
_ONE: Final = np.uint32(1)
_U4: Final = np.dtype("<u4")


class HashMixer:
    """Mixes hashes with a secret of the process, so that clients cannot foresee them.

    Args:
        secret: Random bytes of this process, at least 16.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < 16:
            raise ValueError(
                "Cannot create an index of keys: its hash secret is too short. Use at least 16 random bytes."
            )
        digest = blake2b(secret, digest_size=24).digest()
        first, second, third = (int.from_bytes(digest[at : at + 8], "little") for at in (0, 8, 16))
        self._secret = first, second | 1, third | 1
        self._secret_words = tuple(map(np.uint64, self._secret))

    def many(self, hashes: Int64s) -> UInt64s:
        """Mix hashes in place. Return 31 mixed bits, a 1, and 32 zeros for a slot of each."""
        first, second, third = self._secret_words
        mixed = hashes.view(U8)
        mixed ^= first
        mixed *= second
        mixed ^= mixed >> _HALF_BITS
        mixed *= third
        mixed &= _TAG_MASK
        mixed |= np.uint64(_TAG_BIT)
        return mixed

    def one(self, hash_: int) -> int:
        """Mix one hash (see `many`)."""
        first, second, third = self._secret
        mixed = ((hash_ & _WORD) ^ first) * second & _WORD
        mixed = (mixed ^ mixed >> 32) * third & _WORD
        return mixed & (_WORD - _HALF) | _TAG_BIT


class EntryTable:
    """Buckets of 8 entries, with open addressing.

    An entry is the upper half of a hash, and a slot plus 1 in the lower half. 0 is free. The uppermost bits
    of the hash are the number of its home bucket. If that is full, the entry is in the next bucket with a
    free place, and each bucket before it counts it as passed.
    """

    def __init__(self, bits: int) -> None:
        self.buckets: Final = 1 << bits
        self.entries_max: Final = _entries_max(bits)
        memory = np.zeros(_BUCKET_BYTES * (self.buckets + 1), I1)
        start = -memory.__array_interface__["data"][0] % _BUCKET_BYTES
        self._flat: UInt64s = memory[start : start + _BUCKET_BYTES * self.buckets].view(U8)
        self._rows: UInt64s = self._flat.reshape(self.buckets, ENTRIES)
        self._passed: npt.NDArray[np.uint32] = np.zeros(self.buckets, _U4)
        # An element of a memoryview takes half the time of an array's.
        self._words = memoryview(self._flat.data)
        self._counts = memoryview(self._passed.data)
        self._shift = 64 - bits
        self._last = self.buckets - 1
        self.count = 0
        """Number of entries."""
        self._taken = 0
        """Buckets emptied by `take`."""

    @staticmethod
    def nbytes_of(bits: int) -> int:
        """Return the memory of a table of `2**bits` buckets."""
        return (_BUCKET_BYTES + _U4.itemsize) << bits

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self._flat.nbytes + self._passed.nbytes

    def homes(self, hashes: UInt64s) -> Int64s:
        """Return the home bucket of each hash or entry."""
        return (hashes >> np.uint64(self._shift)).astype(I8)

    def next_of(self, buckets: Int64s) -> Int64s:
        """Return the bucket after each bucket."""
        return (buckets + 1) & self._last

    def passed(self, buckets: Int64s) -> Bools:
        """Return for each bucket whether entries may be in a later one."""
        return self._passed.take(buckets) > 0

    def matches(self, hashes: UInt64s, buckets: Int64s) -> tuple[Int64s, Int64s]:
        """Compare each hash with a bucket. Return indices of hashes and slots of all equal entries."""
        rows = self._rows.take(buckets, axis=0)
        rows ^= hashes[:, None]
        at = np.flatnonzero(rows <= _HALF_MASK)
        return at >> 3, rows.reshape(-1).take(at).view(I8) - 1

    def find(self, hashes: UInt64s) -> Int64s:
        """Return the slots of all entries with one of some hashes."""
        found = [np.zeros(0, I8)]
        buckets = self.homes(hashes)
        for _ in range(self.buckets):
            if not hashes.size:
                break
            found.append(self.matches(hashes, buckets)[1])
            further = self.passed(buckets)
            hashes, buckets = hashes[further], self.next_of(buckets[further])
        return np.concatenate(found)

    def slots_of(self, mixed: int) -> list[int]:
        """Return the slots of all entries with this hash."""
        found: list[int] = []
        tag = (mixed >> 32).to_bytes(4, "little")
        bucket = mixed >> self._shift
        for _ in range(self.buckets):
            row = self._words[bucket * ENTRIES : (bucket + 1) * ENTRIES].tobytes()
            at = row.find(tag)
            while at >= 0:
                if at & 7 == 4:  # the upper half of an entry
                    found.append(int.from_bytes(row[at - 4 : at], "little") - 1)
                at = row.find(tag, at + 1)
            if not self._counts[bucket]:
                break
            bucket = (bucket + 1) & self._last
        return found

    def add(self, entries: UInt64s) -> None:
        """Add entries. The caller ensures that they fit."""
        self.count += len(entries)
        buckets = self.homes(entries)
        while entries.size:
            places = buckets * ENTRIES + (self._rows.take(buckets, axis=0) == 0).argmax(axis=1)
            full = self._flat.take(places) != 0
            if full.any():
                np.add.at(self._passed, buckets[full], _ONE)
                buckets[full] = self.next_of(buckets[full])
            free = ~full
            self._flat[places[free]] = entries[free]
            # Of several entries for one place the last is stored, and the others try the next place.
            left = self._flat.take(places) != entries
            entries, buckets = entries[left], buckets[left]

    def fill(self, entries: UInt64s) -> None:
        """Add ascending entries to an empty table. The caller ensures that they fit."""
        homes, rows = self.homes(entries), np.arange(len(entries))
        starts = np.where(np.diff(homes, prepend=-1) != 0, rows, 0)
        ranks = rows - np.maximum.accumulate(starts)
        inside = ranks < ENTRIES
        self._flat[homes[inside] * ENTRIES + ranks[inside]] = entries[inside]
        self.count = int(np.count_nonzero(inside))
        self.add(entries[~inside])

    def add_one(self, entry: int) -> None:
        """Add an entry. The caller ensures that it fits."""
        bucket = entry >> self._shift
        while True:
            row = _BUCKET(self._words, bucket * _BUCKET_BYTES)
            if 0 in row:
                break
            self._counts[bucket] += 1
            bucket = (bucket + 1) & self._last
        self._words[bucket * ENTRIES + row.index(0)] = entry
        self.count += 1

    def discard(self, entries: UInt64s) -> UInt64s:
        """Remove distinct entries, and return those that this table does not have."""
        homes = self.homes(entries)
        distances = np.full(len(entries), -1, I8)
        rows, buckets = np.arange(len(entries)), homes
        for distance in range(self.buckets):
            at = np.flatnonzero(self._rows.take(buckets, axis=0) == entries[rows][:, None])
            which = at >> 3
            self._flat[buckets[which] * ENTRIES + (at & (ENTRIES - 1))] = 0
            distances[rows[which]] = distance
            further = (distances[rows] < 0) & self.passed(buckets)
            rows, buckets = rows[further], self.next_of(buckets[further])
            if not rows.size:
                break
        for distance in range(int(distances.max(initial=0))):
            passed = (homes[distances > distance] + distance) & self._last
            np.subtract.at(self._passed, passed, _ONE)
        missing = distances < 0
        self.count -= len(entries) - int(missing.sum())
        return entries[missing]

    def discard_one(self, entry: int) -> bool:
        """Remove an entry, and return whether this table had it."""
        bucket = home = entry >> self._shift
        for distance in range(self.buckets):
            row = _BUCKET(self._words, bucket * _BUCKET_BYTES)
            if entry in row:
                self._words[bucket * ENTRIES + row.index(entry)] = 0
                for passed in range(distance):
                    self._counts[(home + passed) & self._last] -= 1
                self.count -= 1
                return True
            if not self._counts[bucket]:
                break
            bucket = (bucket + 1) & self._last
        return False

    def take(self, buckets: int) -> UInt64s:
        """Remove the entries of the next buckets, and return them."""
        part = self._rows[self._taken : self._taken + buckets]
        entries: UInt64s = part[part != 0]
        part[:] = 0
        self._taken += buckets
        self.count -= len(entries)
        return entries


def bits_for(entries: int) -> int:
    """Return the size of the smallest table for a number of entries: it has `2**bits` buckets."""
    bits = _BITS_FIRST
    while _entries_max(bits) < entries:
        bits += 1
    return bits


def _entries_max(bits: int) -> int:
    """Return the number of entries that a table of `2**bits` buckets takes before a larger one is made."""
    return int(_LOAD_MAX * ENTRIES * (1 << bits))
