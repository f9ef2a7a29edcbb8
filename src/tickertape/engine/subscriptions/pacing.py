"""Rate limiter: how many messages of a replay may be sent by now, and when the next may.

Every message has a time at which it is due. With a steady rate that is when all messages before it have had
their time, with a multiple it is its place on the recorded timeline, gaps cut to `max_gap`. A delay is not
caught up beyond `rate_catch_up_seconds`: the whole timeline shifts, because the rate must not be exceeded.
"""

from __future__ import annotations

from typing import Final
from weakref import ref

import numpy as np

from tickertape.batch import MessageBatch
from tickertape.batch.format import Int32s, Int64s, lengths_of
from tickertape.engine.limits import rate_catch_up_seconds, rate_tick_seconds
from tickertape.engine.subscriptions.options import Rate, RateUnit

_MICROS: Final = 1_000_000
_GAP_MAX: Final = 1 << 62
"""Microseconds: longer than any recorded gap."""
_BEFORE_ALL: Final = float("-inf")


class RateLimiter:
    """The schedule of one subscription, or of several that are replayed together.

    Times are monotonic seconds. `allowed` asks and changes nothing; `sent` tells what went, in the order of
    the log. `stamps` are given where the recorded times are not those of the batch (conflated messages): one
    for each of its messages, not falling.
    """

    def __init__(self, rate: Rate, max_gap: float | None = None) -> None:
        """`max_gap` in seconds, for a multiple only."""
        self.rate = rate
        self.max_gap = max_gap
        self._timed = rate.unit is RateUnit.MULTIPLE
        self._per_second = rate.amount * _MICROS if self._timed else rate.amount
        """Units of cost a second: messages, bytes, or microseconds of the recorded timeline."""
        self._gap_max = None if max_gap is None else min(max(round(max_gap * self._per_second), 1), _GAP_MAX)
        """The same in microseconds of the recorded timeline."""
        self._due: float | None = None
        """Steady: when the next message is due. Multiple: when the last one was. None before the first."""
        self._last_stamp = 0
        """Multiple: recorded time of the last message."""
        self._hold = _BEFORE_ALL
        """Second before which nothing is allowed: half a tick after the last time that not all was."""
        self._paused_at: float | None = None
        self._cut: tuple[ref[MessageBatch], Int64s] | None = None
        """The batch looked at last, and its timeline with the gaps cut."""

    def allowed(
        self, batch: MessageBatch, low: int, high: int, now: float, stamps: Int64s | None = None
    ) -> tuple[int, float | None]:
        """How many of the messages `[low, high)`, from the front, may go at `now`; and when the next of them
        may, at least `rate_tick_seconds` later: None when all may, or when it is paused and only `resume`
        changes that.
        """
        if self._paused_at is not None:
            return 0, None
        costs = self._costs(batch, stamps)
        start = self._start(batch, low, now, stamps)
        soonest = now + rate_tick_seconds
        if start > now or self._hold > now:
            return 0, max(start, soonest)
        count = _reach(costs, low, high, int((now - start) * self._per_second))
        if count == high - low:
            return count, None
        return count, max(start + _cost(costs, low, low + count) / self._per_second, soonest)

    def sent(
        self, batch: MessageBatch, low: int, high: int, now: float, stamps: Int64s | None = None
    ) -> None:
        """The messages `[low, high)`, at least one, went at `now`."""
        costs = self._costs(batch, stamps)
        start = self._start(batch, low, now, stamps)
        if not self._timed:
            self._due = following = start + _cost(costs, low, high) / self._per_second
        else:
            self._due = following = start + _cost(costs, low, high - 1) / self._per_second
            self._last_stamp = _stamp(batch, high - 1, stamps)
            if high < batch.count:
                following = start + _cost(costs, low, high) / self._per_second
        # Who is held up by its pace gets what is due in a tick together, however often it is looked at. Half
        # of it, because timers may fire a little early.
        self._hold = now + rate_tick_seconds / 2 if following > now else _BEFORE_ALL

    def pause(self, now: float) -> None:
        """Stop the schedule at `now`, unless it is stopped."""
        if self._paused_at is None:
            self._paused_at = now

    def resume(self, now: float) -> None:
        """Go on with a stopped schedule: everything still to come is due later."""
        if self._paused_at is not None and self._due is not None:
            self._due += now - self._paused_at
        self._paused_at = None

    def _start(self, batch: MessageBatch, low: int, now: float, stamps: Int64s | None) -> float:
        """When message `low` is due, if not longer ago than may be caught up."""
        due = self._due
        if due is None:
            return now
        if self._timed:
            gap = max(_stamp(batch, low, stamps) - self._last_stamp, 0)
            if self._gap_max is not None:
                gap = min(gap, self._gap_max)
            due += gap / self._per_second
        return max(due, now - rate_catch_up_seconds)

    def _costs(self, batch: MessageBatch, stamps: Int64s | None) -> Int32s | Int64s | None:
        """Return the cost before each message, from any start; None: 1 for each."""
        if not self._timed:
            return batch.offsets if self.rate.unit is RateUnit.BYTES else None
        if self._gap_max is None or (stamps is None and batch.run_count == 1):
            return batch.timestamps if stamps is None else stamps
        if self._cut is not None and self._cut[0]() is batch:
            return self._cut[1]
        timeline = _without_gaps(batch, stamps, self._gap_max)
        self._cut = ref(batch), timeline
        return timeline


def _without_gaps(batch: MessageBatch, stamps: Int64s | None, gap_max: int) -> Int64s:
    """The recorded times of a batch, moved together where they are further apart than `gap_max`."""
    times = batch.runs["timestamp"] if stamps is None else stamps
    too_long = np.maximum(lengths_of(times) - gap_max, 0)
    if too_long.any():
        times = times.copy()
        times[1:] -= too_long.cumsum()
    elif stamps is None:
        return batch.timestamps
    return times if stamps is not None else np.repeat(times, batch.runs["count"])


def _stamp(batch: MessageBatch, index: int, stamps: Int64s | None) -> int:
    return int((batch.timestamps if stamps is None else stamps)[index])


def _cost(costs: Int32s | Int64s | None, low: int, high: int) -> int:
    """Return the cost of the messages `[low, high)`."""
    return high - low if costs is None else int(costs[high]) - int(costs[low])


def _reach(costs: Int32s | Int64s | None, low: int, high: int, spent: int) -> int:
    """How many of the messages `[low, high)` begin when at most `spent` was spent; the first always does."""
    if costs is None:
        return min(spent + 1, high - low)
    last = int(costs[low]) + spent
    if last >= costs[high - 1]:
        return high - low
    # The number must be of the array's own type, or the whole array is converted.
    return max(int(costs[low:high].searchsorted(costs.dtype.type(last), "right")), 1)
