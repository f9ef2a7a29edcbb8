"""Key index: finds the slot of each canonical key, exactly.

Invariants:
- Two keys are equal only if their bytes are. A hash never decides.
- A slot has one key from its insertion to its release, and is not reused before.
- No call moves more than `step_max` entries, however many keys the index has.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from tickertape.batch.format import I1, I8, U8, Bools, Bytes8, Int64s, Labels, UInt64s, lengths_of
from tickertape.engine.limits import (
    sow_growth_rows,
    sow_key_compaction_step_max,
    sow_key_scalar_max,
    sow_rehash_step_max,
)
from tickertape.engine.sow.state.blocks import lengths_in
from tickertape.engine.sow.state.entry_table import ENTRIES, EntryTable, HashMixer, bits_for
from tickertape.engine.sow.state.key_blocks import KeyBlocks
from tickertape.engine.sow.state.key_rows import KeyRows

_COLUMN_ROWS_FIRST: Final = 1_024

_HALF: Final = (1 << 32) - 1
_HALF_MASK: Final = np.uint64(_HALF)

KEY_ROW_BYTES: Final = 16 + 1
"""Memory of the key columns of a slot."""
_INLINE_BYTES: Final = 12
"""Longest key inside its view (Arrow's `binary_view`)."""
_U4: Final = np.dtype("<u4")
_INLINE: Final = np.dtype(f"S{_INLINE_BYTES}")

_FREE: Final = 0
_LIVE: Final = 1
_REMOVED: Final = 2

_STEP_LEAST: Final = 64
_STEP_PER_KEY: Final = 4
_BYTES_PER_EXAMINED: Final = 3
"""Released bytes for each long key that a step examines. Long keys have at least 13 bytes, so that compaction
examines four bytes for each released one."""


class KeyIndex(Protocol):
    """Index from canonical keys to slots: row numbers of the record columns."""

    def find(self, keys: Sequence[bytes]) -> Int64s:
        """Return the slot of each key, or -1 for a key that is absent."""

    def insert(self, keys: Sequence[bytes]) -> Int64s:
        """Add keys that are absent and distinct, and return their slots: released or new ones."""

    def remove(self, slots: Int64s) -> None:
        """Remove the keys of distinct slots. The slots keep the bytes of their keys until `release`."""

    def release(self, slots: Int64s) -> None:
        """Let later insertions reuse removed slots."""

    def keys_of(self, slots: Int64s) -> list[bytes]:
        """Return the keys of slots, also of removed slots before their release."""

    def live(self) -> Bools:
        """Return for each slot whether it has a key that is not removed, as a copy."""

    def __len__(self) -> int:
        """Return the number of keys."""

    @property
    def slots(self) -> int:
        """Number of slots ever created."""

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""


class KeyTable:
    """Exact open-addressing table in numpy columns (a `KeyIndex`).

    A hash is mixed with `secret`, so that clients cannot choose keys with equal hashes. A full table is
    replaced by a larger one, and each call moves a few entries from the older to the newer table.

    Args:
        secret: Random bytes of this process, at least 16.
        step_max: Entries that one call moves to a larger table, at least 8.
        scalar_max: Number of keys below which a call works without arrays.
        blocks: Store of long keys.
    """

    hash_of = staticmethod(hash)
    """Function that is mixed with the secret. Tests replace it in a subclass."""

    def __init__(
        self,
        secret: bytes,
        *,
        step_max: int = sow_rehash_step_max,
        scalar_max: int = sow_key_scalar_max,
        blocks: KeyBlocks | None = None,
    ) -> None:
        self._mixer = HashMixer(secret)
        self._step_max = step_max
        self._scalar_max = scalar_max
        self._tables = [EntryTable(bits_for(0))]
        """Newest last. Keys are inserted there, and the oldest is being emptied."""
        self._views: UInt64s = np.zeros((0, 2), U8)
        """Key of each slot as Arrow's `binary_view`: length and 4 bytes, then 8 bytes or a place."""
        self._states: Bytes8 = np.zeros(0, I1)
        self._free: Int64s = np.zeros(0, I8)
        """Stack of released slots."""
        self._free_count = 0
        self._slots = 0
        self._count = 0
        self._long_keys = KeyBlocks() if blocks is None else blocks
        self.entries_moved: int = 0
        """Entries that were moved to a larger table."""
        self.keys_examined: int = 0
        """Long keys that were examined for compaction."""
        self.buckets_read: int = 0
        """Buckets that searches of many keys have read."""

    def __len__(self) -> int:
        return self._count

    @property
    def slots(self) -> int:
        """See `KeyIndex`."""
        return self._slots

    @property
    def nbytes(self) -> int:
        """See `KeyIndex`."""
        columns = self._views.nbytes + self._states.nbytes + self._free.nbytes
        return columns + sum(table.nbytes for table in self._tables) + self._long_keys.nbytes

    def live(self) -> Bools:
        """See `KeyIndex`."""
        live: Bools = self._states[: self._slots] == _LIVE
        return live

    # -- search -----------------------------------------------------------------------------------------

    def find(self, keys: Sequence[bytes]) -> Int64s:
        """See `KeyIndex`."""
        self._step(len(keys))
        if len(keys) < self._scalar_max:
            return np.array([self._find_one(key) for key in keys], I8)
        hashes = self._hashes(keys)
        views = _views_of(keys)
        found = np.full(len(keys), -1, I8)
        for table in reversed(self._tables):
            self._find_in(table, keys, hashes, views, found)
        return found

    def _find_in(
        self, table: EntryTable, keys: Sequence[bytes], hashes: UInt64s, views: UInt64s, found: Int64s
    ) -> None:
        """Enter the slots of keys that `table` has into `found`. Other keys keep -1."""
        rows = np.flatnonzero(found < 0)
        buckets = table.homes(hashes[rows])
        for _ in range(table.buckets):
            if not rows.size:
                return
            self.buckets_read += rows.size
            at, slots = table.matches(hashes[rows], buckets)
            which = rows[at]
            same = self._same(slots, which, keys, views)
            found[which[same]] = slots[same]
            further = (found[rows] < 0) & table.passed(buckets)
            rows, buckets = rows[further], table.next_of(buckets[further])

    def _same(self, slots: Int64s, which: Int64s, keys: Sequence[bytes], views: UInt64s) -> Bools:
        """Return for each pair of a slot and the index of a key whether the slot has this key."""
        stored = self._views.take(slots, axis=0)
        sought = views.take(which, axis=0)
        same: Bools = stored[:, 0] == sought[:, 0]
        rest: Bools = stored[:, 1] == sought[:, 1]
        if self._long_keys.stored_bytes:
            long = np.flatnonzero(same & (lengths_in(stored) > _INLINE_BYTES))
            if long.size:
                long_keys = [keys[row] for row in which[long].tolist()]
                rest[long] = self._long_keys.start_with(stored[long, 1].tolist(), long_keys)
        same &= rest
        return same

    def _find_one(self, key: bytes) -> int:
        mixed = self._hash(key)
        for table in reversed(self._tables):
            for slot in table.slots_of(mixed):
                if self._key(slot) == key:
                    return slot
        return -1

    # -- insertion and removal --------------------------------------------------------------------------

    def insert(self, keys: Sequence[bytes]) -> Int64s:
        """See `KeyIndex`."""
        count = len(keys)
        self._step(count)
        total = self._count + count
        self._reserve(total)
        slots = self._take_slots(count)
        if count < self._scalar_max:
            for slot, key in zip(slots.tolist(), keys, strict=True):
                self._insert_one(slot, key)
        else:
            views = _views_of(keys)
            long = np.flatnonzero(lengths_in(views) > _INLINE_BYTES)
            if long.size:
                long_keys = [keys[at] for at in long.tolist()]
                views[long, 1] = self._long_keys.append(slots[long].tolist(), long_keys)
            self._views[slots] = views
            self._tables[-1].add(self._hashes(keys) | (slots + 1).view(U8))
        self._states[slots] = _LIVE
        self._count = total
        return slots

    def _reserve(self, count: int) -> None:
        """Make a table that takes this number of keys, unless the newest one does."""
        if count <= self._tables[-1].entries_max:
            return
        if not self._tables[-1].count:
            self._tables.pop()
        self._tables.append(EntryTable(bits_for(count)))

    def fill(self, columns: Sequence[Labels], present: Sequence[bool]) -> list[Int64s]:
        """Set the keys of an empty index at once, which takes a third of the time of insertions.

        Of equal keys the last one counts. `present`: for each column whether its keys are in the index.
        Return for each column the slots of its keys, -1 for keys without one. The slots ascend over all
        columns."""
        if self._slots:
            raise ValueError("Cannot fill an index of keys: it has keys already. Report the defect.")
        rows = KeyRows(columns)
        edges = [*pairwise(rows.edges.tolist())]
        hashes = np.empty(rows.count, U8)
        for (offsets, text), (low, high) in zip(columns, edges, strict=True):
            hashes[low:high] = self._hashes([*map(io.BytesIO(text).read, lengths_of(offsets).tolist())])
        chosen, slots, entries = rows.choose(hashes, present)
        self._count = count = len(self._take_slots(len(chosen)))
        self._reserve(count)
        self._tables[-1].fill(entries)
        views = rows.views[chosen]
        long = np.flatnonzero(lengths_in(views) > _INLINE_BYTES)
        views[long, 1] = self._long_keys.append_joined(long, *rows.joined(chosen[long]))
        self._views[:count], self._states[:count] = views, _LIVE
        return [slots[low:high] for low, high in edges]

    def _insert_one(self, slot: int, key: bytes) -> None:
        length = len(key)
        value = int.from_bytes(key[:_INLINE_BYTES], "little")
        self._views[slot, 0] = length | (value & _HALF) << 32
        self._views[slot, 1] = (
            value >> 32 if length <= _INLINE_BYTES else self._long_keys.append([slot], [key])[0]
        )
        self._tables[-1].add_one(self._hash(key) | slot + 1)

    def remove(self, slots: Int64s) -> None:
        """See `KeyIndex`."""
        self._step(len(slots))
        self._require(slots, _LIVE, "remove")
        keys = self.keys_of(slots)
        if len(keys) < self._scalar_max:
            for slot, key in zip(slots.tolist(), keys, strict=True):
                entry = self._hash(key) | slot + 1
                for table in reversed(self._tables):
                    if table.discard_one(entry):
                        break
        else:
            entries = self._hashes(keys) | (slots + 1).view(U8)
            for table in reversed(self._tables):
                entries = table.discard(entries)
        self._states[slots] = _REMOVED
        self._count -= len(slots)

    def release(self, slots: Int64s) -> None:
        """See `KeyIndex`."""
        self._require(slots, _REMOVED, "release")
        views = self._views.take(slots, axis=0)
        lengths = lengths_in(views)
        long = lengths > _INLINE_BYTES
        released = 0
        if long.any():
            self._long_keys.release(views[long, 1].tolist(), lengths[long].tolist())
            released = int(lengths[long].sum())
        self._views[slots] = 0
        self._states[slots] = _FREE
        end = self._free_count + len(slots)
        if end > len(self._free):
            self._free.resize(_rows_for(end))
        self._free[self._free_count : end] = slots
        self._free_count = end
        self._compact(_STEP_LEAST + released // _BYTES_PER_EXAMINED)

    def _require(self, slots: Int64s, state: int, action: str) -> None:
        """Raise `ValueError` unless all slots have this state."""
        if len(slots) and (slots.min() < 0 or (self._states[: self._slots].take(slots) != state).any()):
            raise ValueError(f"Cannot {action} keys: the index of keys is damaged. Report the defect.")

    def _take_slots(self, count: int) -> Int64s:
        """Return released slots, the last one first, and new slots if these do not suffice."""
        slots = np.empty(count, I8)
        reused = min(count, self._free_count)
        left = self._free_count - reused
        slots[:reused] = self._free[left : self._free_count][::-1]
        self._free_count = left
        end = self._slots + count - reused
        slots[reused:] = np.arange(self._slots, end)
        self._slots = end
        if end > len(self._states):
            rows = _rows_for(end)
            self._views.resize((rows, 2))
            self._states.resize(rows)
        return slots

    # -- keys -------------------------------------------------------------------------------------------

    def keys_of(self, slots: Int64s) -> list[bytes]:
        """See `KeyIndex`."""
        if len(slots) < self._scalar_max:
            return [self._key(slot) for slot in slots.tolist()]
        views = self._views.take(slots, axis=0)
        lengths = lengths_in(views)
        long = np.flatnonzero(lengths > _INLINE_BYTES)
        inline = lengths.copy()
        inline[long] = 0
        text = views.view(I1)[:, 4:]
        joined = text[np.arange(_INLINE_BYTES) < inline[:, None]].tobytes()
        keys = list(map(io.BytesIO(joined).read, inline.tolist()))
        places, long_lengths = views[long, 1].tolist(), lengths[long].tolist()
        for at, place, length in zip(long.tolist(), places, long_lengths, strict=True):
            keys[at] = self._long_keys.key(place, length)
        return keys

    def _key(self, slot: int) -> bytes:
        head = self._views.item(slot, 0)
        rest = self._views.item(slot, 1)
        length = head & _HALF
        if length > _INLINE_BYTES:
            return self._long_keys.key(rest, length)
        return bytes((head >> 32 | rest << 32).to_bytes(_INLINE_BYTES, "little")[:length])

    def _hashes(self, keys: Sequence[bytes]) -> UInt64s:
        """Return the mixed hash of each key."""
        return self._mixer.many(np.fromiter(map(self.hash_of, keys), I8, len(keys)))

    def _hash(self, key: bytes) -> int:
        return self._mixer.one(self.hash_of(key))

    # -- growth and compaction --------------------------------------------------------------------------

    def _step(self, keys: int) -> None:
        """Move some entries from the oldest table to the newest, and compact some long keys."""
        if len(self._tables) == 1 and not self._long_keys.stored_bytes:
            return
        count = _STEP_LEAST + _STEP_PER_KEY * keys
        if len(self._tables) > 1:
            oldest = self._tables[0]
            entries = oldest.take(min(self._step_max, count) // ENTRIES)
            self._tables[-1].add(entries)
            self.entries_moved += len(entries)
            if not oldest.count:
                del self._tables[0]
        self._compact(count)

    def _compact(self, count: int) -> None:
        """Move the long keys among the next `count` ones under compaction."""
        examined = self._long_keys.examine(min(count, sow_key_compaction_step_max))
        if examined is None:
            return
        slots, places = examined
        self.keys_examined += len(slots)
        views = self._views.take(slots, axis=0)
        lengths = lengths_in(views)
        current = (lengths > _INLINE_BYTES) & (views[:, 1] == places)
        slots = slots[current]
        old, sizes = places[current].tolist(), lengths[current].tolist()
        keys = [self._long_keys.key(place, length) for place, length in zip(old, sizes, strict=True)]
        if keys:
            self._views[slots, 1] = self._long_keys.append(slots.tolist(), keys)
            self._long_keys.release(old, sizes)


def _rows_for(rows: int) -> int:
    """Return the size of a column for a number of rows."""
    if rows > sow_growth_rows // 2:
        return -(-rows // sow_growth_rows) * sow_growth_rows
    return max(_COLUMN_ROWS_FIRST, 1 << (rows - 1).bit_length())


def _views_of(keys: Sequence[bytes]) -> UInt64s:
    """Return keys as views. The second half of a long key is not its place."""
    views = np.empty((len(keys), 2), U8)
    parts = views.view(_U4)
    parts[:, 0] = np.fromiter(map(len, keys), _U4, len(keys))
    parts[:, 1:] = np.array(keys, _INLINE).view(_U4).reshape(len(keys), 3)
    return views
