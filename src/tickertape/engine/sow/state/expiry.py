"""Life queue: when the lives of records end, in buckets that become finer as the ends approach.

A bucket covers a power of 64 seconds, one second for lives that end within a minute. So the queue has a few
hundred buckets, and 8 bytes in a bucket for each record, besides 8 bytes for each slot.

Invariants:
- A record whose life ends at a time has an entry at or before this time. A record with a later life keeps the
  entry that its slot has, and gets a later one when that is due.
- Nothing is due early. It is due within a second, or later if the clock steps back.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

import numpy as np

from tickertape.base.limits import expiration_never_ms
from tickertape.batch.format import I8, Bools, Int64s
from tickertape.engine.limits import sow_expiry_step_max, sow_growth_rows

NEVER: Final = expiration_never_ms
"""Life or end of a life of a record that does not expire, although its topic has an expiration."""

_SECOND: Final = 1_000_000
_MILLISECOND: Final = 1_000
_SHIFT: Final = 6
"""A bucket of a level has 64 times the seconds of one of the level below."""
_EDGES: Final = np.array([1 << _SHIFT * level for level in range(1, 8)], I8)
"""By level: seconds from which on an end is too far away for it."""
_ROWS_FIRST: Final = 16


def due_times(order_stamps: Int64s, lives: Int64s | None, default: int = 0) -> Int64s:
    """Return the ends of lives in microseconds: 0 without an expiration, `NEVER` for records that stay.

    Args:
        order_stamps: Order stamps of the messages, from which lives count.
        lives: Lives in milliseconds, 0: none. None: no message has one.
        default: Life of messages without their own, in milliseconds. 0: they do not expire.
    """
    wanted = np.full(len(order_stamps), default, I8)
    if lives is not None:
        np.copyto(wanted, lives, where=lives != 0)
    longest = (NEVER - 1 - np.maximum(order_stamps, 0)) // _MILLISECOND
    ends: Int64s = np.maximum(order_stamps + np.minimum(wanted, longest) * _MILLISECOND, 1)
    ends[wanted == 0] = 0
    ends[wanted == NEVER] = NEVER
    return ends


class _Bucket:
    """Slots of one bucket, in any order. Some may be stale, and a slot may be twice in it."""

    def __init__(self) -> None:
        self._slots = np.empty(_ROWS_FIRST, I8)
        self._count = 0

    def append(self, slots: Int64s) -> None:
        self._reserve(len(slots))
        self._slots[self._count : self._count + len(slots)] = slots
        self._count += len(slots)

    def append_one(self, slot: int) -> None:
        self._reserve(1)
        self._slots[self._count] = slot
        self._count += 1

    def _reserve(self, rows: int) -> None:
        rows += self._count
        size = len(self._slots)
        if rows > size:
            size = max(rows, 2 * size)
            self._slots.resize(size if size < sow_growth_rows else _steps(rows))

    def take(self, rows: int) -> Int64s:
        """Remove and return up to `rows` of the slots."""
        taken = self._slots[max(self._count - rows, 0) : self._count].copy()
        self._count -= len(taken)
        return taken

    @property
    def count(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        return self._slots.nbytes


class LifeQueue:
    """Slots of records by the end of their lives. Times are microseconds since 1970 UTC.

    Each time a record is set, its owner calls `add`. When `next_due` is reached, the owner calls `due`, looks
    up the ends of these slots in the record columns, and calls `confirm`, which returns those to expire. If
    it cannot store their expiry, it adds them again."""

    def __init__(self) -> None:
        self._queued = np.zeros(sow_growth_rows, I8)
        """By slot: the second of its first entry, 0 without one. Other entries of the slot are stale."""
        self._buckets: dict[tuple[int, int], _Bucket] = {}
        """By first second and level. None is empty."""
        self._starts: list[tuple[int, int]] = []
        """Heap of the keys of `_buckets`."""
        self._now = 0
        """Second of the last call of `due`."""

    @property
    def bytes(self) -> int:
        """Memory of the columns."""
        return self._queued.nbytes + sum(bucket.bytes for bucket in self._buckets.values())

    def add(self, slots: Int64s, due_us: Int64s) -> None:
        """Add records that were set. Of a repeated slot, the last one is the record.

        Args:
            slots: Slots of the records.
            due_us: Ends of their lives. 0 and `NEVER`: the record does not expire.
        """
        expires = (due_us != 0) & (due_us != NEVER)
        if not expires.all():
            slots, due_us = slots[expires], due_us[expires]
        if not len(slots):
            return
        self._extend(int(slots.max()))
        seconds = due_us // _SECOND + (due_us % _SECOND != 0)
        queued = self._queued[slots]
        later = (queued != 0) & (queued <= seconds)
        if later.any():
            slots, seconds = slots[~later], seconds[~later]
        self._place(slots, seconds)

    def add_one(self, slot: int, due_us: int) -> None:
        """Add one record. The same as `add`, and faster for one."""
        if due_us in (0, NEVER):
            return
        self._extend(slot)
        second = -(-due_us // _SECOND)
        if not 0 < self._queued[slot] <= second:
            self._queued[slot] = second
            shift = _SHIFT * max((abs(second - self._now).bit_length() - 1) // _SHIFT, 0)
            self._bucket(second >> shift << shift, shift // _SHIFT).append_one(slot)

    def due(self, now_us: int, limit: int = sow_expiry_step_max) -> Int64s:
        """Remove and return slots, ascending and distinct, whose entries are due.

        One call examines at most `limit` entries, so it may return none although some are due. Call it until
        `next_due` is in the future. The records of some slots may have changed: see `confirm`."""
        now = self._now = now_us // _SECOND
        found: list[Int64s] = []
        while limit > 0 and self._starts and self._starts[0][0] <= now:
            start, level = self._starts[0]
            bucket = self._buckets[start, level]
            slots = bucket.take(limit)
            limit -= len(slots)
            if not bucket.count:
                heappop(self._starts)
                del self._buckets[start, level]
            queued = self._queued[slots]
            entered = (queued >= max(start, 1)) & (queued < start + (1 << _SHIFT * level))
            ready = entered & (queued <= now)
            found.append(slots[ready])
            self._queued[slots[ready]] = 0
            waiting = entered & ~ready
            self._place(slots[waiting], queued[waiting])
        return _distinct(np.concatenate(found)) if found else np.empty(0, I8)

    def confirm(self, slots: Int64s, due_us: Int64s, now_us: int) -> Int64s:
        """Return the slots whose current records expire, and queue the others for their later ends.

        Args:
            slots: Result of `due`.
            due_us: Ends of the lives of the records that these slots have now. 0: no record, or one without
                an expiration. `NEVER`: a record that stays.
            now_us: The time.
        """
        over: Bools = (due_us != 0) & (due_us <= now_us)
        self.add(slots[~over], due_us[~over])
        return slots[over]

    def next_due(self) -> int | None:
        """Return the time of the next call of `due`, or None. That call may find nothing, but no earlier call
        can."""
        return self._starts[0][0] * _SECOND if self._starts else None

    def _extend(self, slot: int) -> None:
        if slot >= len(self._queued):
            self._queued.resize(_steps(slot + 1))

    def _place(self, slots: Int64s, seconds: Int64s) -> None:
        """Put slots into the buckets of their seconds."""
        if not len(slots):
            return
        self._queued[slots] = seconds
        levels = np.searchsorted(_EDGES, np.abs(seconds - self._now), side="right")
        shifts = _SHIFT * levels
        starts = seconds >> shifts << shifts
        if (starts == starts[0]).all() and (levels == levels[0]).all():
            self._bucket(int(starts[0]), int(levels[0])).append(slots)
            return
        order = np.lexsort((levels, starts))
        slots, starts, levels = slots[order], starts[order], levels[order]
        edges = np.flatnonzero((starts[1:] != starts[:-1]) | (levels[1:] != levels[:-1])) + 1
        firsts = [0, *edges.tolist()]
        for first, end in zip(firsts, [*firsts[1:], len(slots)], strict=True):
            self._bucket(int(starts[first]), int(levels[first])).append(slots[first:end])

    def _bucket(self, start: int, level: int) -> _Bucket:
        bucket = self._buckets.get((start, level))
        if bucket is None:
            bucket = self._buckets[start, level] = _Bucket()
            heappush(self._starts, (start, level))
        return bucket


def _distinct(slots: Int64s) -> Int64s:
    """Return the slots, ascending and each once."""
    # The first call of np.unique would take 15 ms for imports.
    slots = np.sort(slots)
    first = np.ones(len(slots), np.bool_)
    first[1:] = slots[1:] != slots[:-1]
    return slots[first]


def _steps(rows: int) -> int:
    """Return the number of rows that a column of at least `rows` has."""
    return -(-rows // sow_growth_rows) * sow_growth_rows
